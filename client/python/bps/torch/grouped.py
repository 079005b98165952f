"""Several tensors in one call of the program: Horovod's grouped operations.

Each is an operation of its own, in the order of the list, and all are under way at once. The result is a list.
"""
from typing import Any, List, Optional, Sequence, Tuple

import torch

from .._abi import Op
from ..client import Scale
from ..errors import invalid
from .compression import NoneCompressor, compressor_of
from .gathering import allgather_async, own_rows, reducescatter_async, scattered_gradient
from .handles import Derived, Handle
from .operations import How, checked_op, start
from .process_sets import ProcessSet, global_process_set

Tensors = Sequence[torch.Tensor]


def _listed(tensors: Any) -> List[torch.Tensor]:
    if isinstance(tensors, torch.Tensor) or not hasattr(tensors, "__iter__"):
        raise invalid(f"a grouped operation is given a {type(tensors).__name__}", "give a list of tensors")
    return list(tensors)


def _name(name: Optional[str], number: int) -> Optional[str]:
    return None if name is None else f"{name}.{number}"


def _all(handles: List[Handle]) -> Handle:
    return Derived(handles, list)


# ---- allreduce ----


def _allreduce(tensors: Tensors, targets: Sequence[Optional[torch.Tensor]], name: Optional[str], how: How) -> Handle:
    return _all([start(tensor, target, _name(name, number), how.op, 0, how.compression, how.scale, how.process_set)
                 for number, (tensor, target) in enumerate(zip(tensors, targets))])


def grouped_allreduce_async(tensors: Tensors, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> Handle:
    listed = _listed(tensors)
    how = How(checked_op(average, op), None, Scale(1.0, prescale_factor, postscale_factor), process_set)
    return _allreduce(listed, [None] * len(listed), name, how)


def grouped_allreduce_async_(tensors: Tensors, average: Optional[bool] = None, name: Optional[str] = None,
                             op: Optional[Op] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> Handle:
    listed = _listed(tensors)
    how = How(checked_op(average, op), None, Scale(1.0, prescale_factor, postscale_factor), process_set)
    return _allreduce(listed, listed, name, how)


class _Reduced(torch.autograd.Function):
    """Gradients are reduced alike."""

    @staticmethod
    def forward(context: Any, name: Optional[str], how: How, *tensors: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        context.how = how
        context.name = name
        return tuple(_allreduce(tensors, [None] * len(tensors), name, how).synchronize())

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:  # type: ignore[override]
        how: How = context.how
        if how.op not in (Op.SUM, Op.AVERAGE):
            raise invalid(f"no gradient flows back through {how.op.name.lower()} of all ranks", "detach() what it gives")
        name = None if context.name is None else f"{context.name}.gradient"
        return (None, None, *_Reduced.apply(name, how, *gradients))  # type: ignore[no-untyped-call]


def grouped_allreduce(tensors: Tensors, average: Optional[bool] = None, name: Optional[str] = None,
                      compression: Any = NoneCompressor, op: Optional[Op] = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """Gradients flow back through Sum and Average."""
    how = How(checked_op(average, op), None, Scale(1.0, prescale_factor, postscale_factor), process_set)
    compression = compressor_of(compression)
    sent = [compression.compress(tensor) for tensor in _listed(tensors)]
    if not sent:
        return []
    results = _Reduced.apply(name, how, *(tensor for tensor, _ in sent))  # type: ignore[no-untyped-call]
    return [compression.decompress(result, context) for result, (_, context) in zip(results, sent)]


def grouped_allreduce_(tensors: Tensors, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None,
                       prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    results: List[torch.Tensor] = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor,
                                                           process_set).synchronize()
    return results


# ---- allgather ----


def grouped_allgather_async(tensors: Tensors, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Handle:
    return _all([allgather_async(tensor, _name(name, number), process_set) for number, tensor in enumerate(_listed(tensors))])


class _Gathered(torch.autograd.Function):
    """Each rank gets the average, over all ranks, of the gradients of its rows."""

    @staticmethod
    def forward(context: Any, name: Optional[str], process_set: ProcessSet, *tensors: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        context.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        context.process_set = process_set
        return tuple(grouped_allgather_async(tensors, name, process_set).synchronize())

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:  # type: ignore[override]
        return (None, None, *(own_rows(gradient, rows, context.process_set) for gradient, rows in zip(gradients, context.rows)))


def grouped_allgather(tensors: Tensors, name: Optional[str] = None,
                      process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """Gradients flow back through it."""
    listed = _listed(tensors)
    return list(_Gathered.apply(name, process_set, *listed)) if listed else []  # type: ignore[no-untyped-call]


# ---- reducescatter ----


def grouped_reducescatter_async(tensors: Tensors, name: Optional[str] = None, op: Op = Op.AVERAGE,
                                process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> Handle:
    return _all([reducescatter_async(tensor, _name(name, number), op, process_set, prescale_factor, postscale_factor)
                 for number, tensor in enumerate(_listed(tensors))])


class _ReducedAndScattered(torch.autograd.Function):
    """As that of reducescatter()."""

    @staticmethod
    def forward(context: Any, name: Optional[str], how: How, *tensors: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        context.how = how
        process_set = how.process_set or global_process_set
        return tuple(grouped_reducescatter_async(tensors, name, how.op, process_set, how.scale.prescale,
                                                 how.scale.postscale).synchronize())

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:  # type: ignore[override]
        how: How = context.how
        scattered = [scattered_gradient(gradient, how) for gradient in gradients]
        return (None, None, *grouped_allgather(scattered, process_set=how.process_set or global_process_set))


def grouped_reducescatter(tensors: Tensors, name: Optional[str] = None, compression: Any = NoneCompressor, op: Op = Op.AVERAGE,
                          process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> List[torch.Tensor]:
    """Gradients flow back through Sum and Average."""
    how = How(checked_op(None, op), None, Scale(1.0, prescale_factor, postscale_factor), process_set)
    compression = compressor_of(compression)
    sent = [compression.compress(tensor) for tensor in _listed(tensors)]
    if not sent:
        return []
    results = _ReducedAndScattered.apply(name, how, *(tensor for tensor, _ in sent))  # type: ignore[no-untyped-call]
    return [compression.decompress(result, context) for result, (_, context) in zip(results, sent)]
