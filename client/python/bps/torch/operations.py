"""push_pull of tensors: under BytePS's names, and under Horovod's (allreduce).

With a name it is an operation of a declared tensor, and ranks may call in any order. Without one, and on a process set, it is
a call of a group, and ranks call in the same order.
"""
import functools
from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch

from .._abi import Op
from ..client import Scale
from ..errors import Code, Error, invalid
from .backend import buffers
from .calls import CallGroup, calls_of_name, check_name, described
from .compression import is_own, wire_dtype_of
from .handles import Derived, Handle, TensorHandle
from .process_sets import ProcessSet, calls_of, global_process_set, is_all
from .tensors import check_place, dtype_of, is_on_gpu, is_plain, memory_of_tensor
from .world import world

Adasum = "Adasum"  # a name that programs have; no operation

_SCALED = (Op.SUM, Op.AVERAGE)  # of floats; what else is to be scaled is scaled here


class How(NamedTuple):
    """What is done to tensors. compression: one of Compression, a torch.dtype, or a compressor of the program."""

    op: Op = Op.AVERAGE
    compression: Any = None
    scale: Scale = Scale()
    process_set: Optional[ProcessSet] = None


def start(source: torch.Tensor, target: Optional[torch.Tensor], name: Optional[str], op: Op, priority: int = 0,
          compression: Any = None, scale: Scale = Scale(), process_set: Optional[ProcessSet] = None) -> Handle:
    """Starts to reduce `source` of all ranks into `target`, which may be the same tensor; None: into a new one. With
    `compression` a copy of that type travels, and the result is copied back."""
    check_name(name)
    check_place(source, name or "the tensor")
    if is_own(compression):
        return _start_compressed(source, target, name, priority, How(op, compression, scale, process_set))
    if scale != Scale() and not (op in _SCALED and source.is_floating_point() and world().calls_without_names
                                 and not is_on_gpu(source)):
        begun = start(scaled(source.detach(), scale.prescale), target, name, op, priority, compression, process_set=process_set)
        return Derived([begun], lambda results: results[0].copy_(scaled(results[0], scale.postscale)))
    has_calls = world().calls_without_names
    how = How(op, compression, scale, process_set)
    is_call = name is None and priority == 0 and not is_on_gpu(source)
    if not is_all(process_set) or (has_calls and is_call):
        return _start_call(source, target, name, how, calls_of(process_set))
    if target is None:
        target = torch.empty_like(source, memory_format=torch.contiguous_format)
    if name is None or not has_calls:
        return start_declared(source, target, name, op, priority, compression, scale)
    with world().counted_round(name) as number:
        as_call = functools.partial(_start_round, source, target, name, how, number)
        if name in world().name_groups:
            return as_call()
        return start_declared(source, target, name, op, priority, compression, scale, as_call)


def start_declared(source: torch.Tensor, target: Optional[torch.Tensor], name: Optional[str], op: Op, priority: int = 0,
                   compression: Any = None, scale: Scale = Scale(),
                   again: Optional[Callable[[], Handle]] = None) -> TensorHandle:
    """As start(), of a declared tensor. Without a name it has one that tells its type, length and turn. again: makes the same as
    a call of a group; see TensorHandle."""
    place = world()
    given, target, staging = _prepared(source, target, name or "the tensor", compression, on_host=False)
    output = target if staging is None else staging
    dtype = dtype_of(given, name or "the tensor")
    unnamed = None if name is not None else place.take_unnamed(f"{dtype.name.lower()}.{given.numel()}")
    may_be_longer = name is not None and place.calls_without_names and not is_on_gpu(given)
    if name not in place.names and name in place.client._declared:
        again = None  # the program has declared it
    try:
        if again is not None and name is not None and may_be_longer and place.leave_to_group(name, dtype, given.numel()):
            handle = TensorHandle(target, None, None, None, place, again, name)
            handle.advance()
            return handle
        tensor = place.tensor(name or unnamed or "", dtype, given.numel(), priority, may_be_longer)
        operation = place.client.push_pull(tensor, memory_of_tensor(given), memory_of_tensor(output), op,
                                           None if scale == Scale() else scale)
    except BaseException as error:
        if isinstance(error, Error) and error.code == Code.CONFIGURATION:
            place.drop_failed(place.client._declared.get(name or unnamed or ""))
            if again is not None and not is_on_gpu(given):
                return TensorHandle(target, None, None, unnamed, place, again, name)
        if unnamed is not None:
            place.release_unnamed(unnamed)
        raise
    return TensorHandle(target, operation, staging, unnamed, place, again, name)


def _start_round(source: torch.Tensor, target: torch.Tensor, name: str, how: How, number: int) -> Handle:
    """What a declared tensor does, as a call of the group that stands for its name."""
    return _start_call(source, target, name, how, calls_of_name(world(), name), f", round {number}")


def _start_call(source: torch.Tensor, target: Optional[torch.Tensor], name: Optional[str], how: How, calls: CallGroup,
                which: str = "") -> Handle:
    """Of a group, in memory of the host."""
    given, target, staging = _prepared(source, target, name or "the tensor", how.compression, on_host=True)
    memory, output = memory_of_tensor(given), memory_of_tensor(target if staging is None else staging)

    def finish() -> torch.Tensor:
        if staging is not None:
            buffers.put(target, staging)
        return target

    meaning = f"{how.op.name.lower()} of {described(given)}{_scale_text(how.scale)}{which}"
    return calls.start(
        "allreduce", name, meaning, lambda group: [group.push_pull(memory, output, how.op, how.scale)], finish,
        needs_all=how.op not in _SCALED)


def _start_compressed(source: torch.Tensor, target: Optional[torch.Tensor], name: Optional[str], priority: int, how: How) -> Handle:
    """By a compressor of the program."""
    sent, context = how.compression.compress(source.detach())
    begun = start(sent, None, name, how.op, priority, None, how.scale, how.process_set)

    def finish(results: Any) -> torch.Tensor:
        result: torch.Tensor = how.compression.decompress(results[0], context)
        if target is None:
            return result
        buffers.put(target, result)
        return target

    return Derived([begun], finish)


def _prepared(source: torch.Tensor, target: Optional[torch.Tensor], what: str, compression: Any,
              on_host: bool) -> Tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor]]:
    """What is given, where the result goes, and where it goes first, if that is somewhere else. Without copies where that can
    be."""
    dtype_of(source, what)
    source = source.detach()
    wire = wire_dtype_of(compression)
    if wire is None or not source.is_floating_point():
        wire = source.dtype

    def fits(tensor: torch.Tensor) -> bool:
        return tensor.dtype == wire and is_plain(tensor) and not (on_host and is_on_gpu(tensor))

    given = source
    if on_host and is_on_gpu(given):
        given = buffers.source(given)
    if given.dtype != wire:
        given = given.to(wire, memory_format=torch.contiguous_format)
    elif not is_plain(given):
        given = given.clone(memory_format=torch.contiguous_format)
    if target is None:
        target = torch.empty_like(source, memory_format=torch.contiguous_format)
    target = target.detach()
    if fits(target):
        return given, target, None
    own = given if given is not source else torch.empty_like(given, memory_format=torch.contiguous_format)
    return given, target, own


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """As Horovod does it: integers in f64, halves in f32, and then as before."""
    if factor == 1.0:
        return tensor
    wide = torch.float64 if not tensor.is_floating_point() else torch.promote_types(tensor.dtype, torch.float32)
    return (tensor.to(wide) * factor).to(tensor.dtype)


def _scale_text(scale: Scale) -> str:
    """The other factors may differ between ranks."""
    return "" if scale.postscale == 1.0 else f" times {scale.postscale!r}"


class _Reduced(torch.autograd.Function):
    """A push_pull that gradients flow back through: they are reduced alike."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, name: Optional[str], priority: int, how: How) -> torch.Tensor:
        context.how = None if name is None else f"{name}.gradient", priority, how
        return reduced(tensor, name, priority, how)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        op = context.how[2].op
        if op not in _SCALED:
            raise invalid(f"no gradient flows back through {op.name.lower()} of all ranks", "detach() what it gives")
        return (reduced(gradient, *context.how), None, None, None)


def reduced(tensor: torch.Tensor, name: Optional[str], priority: int, how: How) -> torch.Tensor:
    """Into a new tensor, which belongs to the graph of `tensor`, if there is one."""
    check_place(tensor, name or "the tensor")
    if is_own(how.compression):  # what it does belongs to the graph, too
        sent, context = how.compression.compress(tensor)
        result: torch.Tensor = reduced(sent, name, priority, how._replace(compression=None))
        result = how.compression.decompress(result, context)
        return result
    if tensor.requires_grad and torch.is_grad_enabled():
        tracked: torch.Tensor = _Reduced.apply(tensor, name, priority, how)  # type: ignore[no-untyped-call]
        return tracked
    done: torch.Tensor = start(tensor, None, name, how.op, priority, how.compression, how.scale, how.process_set).synchronize()
    return done


def checked_op(average: Optional[bool], op: Any) -> Op:
    """Of Horovod's two arguments for it. Error: INVALID_ARGUMENT for Adasum, and for both."""
    if op is not None and average is not None:
        raise invalid(f"average={average} and op={op!r} say both how tensors are reduced", "give op only")
    if op == Adasum:
        raise invalid("Adasum is not there", "use Average or Sum")
    if op is None:
        return Op.SUM if average is False else Op.AVERAGE
    if op not in tuple(Op):
        raise invalid(f"op={op!r}: tensors are reduced by Average, Sum, Min, Max or Product", "give one of them, as bps.torch.Sum")
    return Op(op)


# ---- BytePS's names ----


def push_pull_async(tensor: torch.Tensor, name: Optional[str] = None, average: bool = True, priority: int = 0,
                    version: int = 0) -> Handle:
    """Starts to average (or add up) `tensor` of all ranks into a new tensor, which synchronize() returns.

    name: equal on all ranks, one operation at a time; without one, ranks must call in the same order. priority: higher
    goes first. version: BytePS's, which has no effect there either. No gradient flows back through it.
    """
    return start(tensor, None, name, checked_op(average, None), priority)


def push_pull_async_inplace(tensor: torch.Tensor, name: Optional[str] = None, average: bool = True, priority: int = 0,
                            version: int = 0) -> Handle:
    """As push_pull_async, in place; the tensor must be left alone until synchronize()."""
    return start(tensor, tensor, name, checked_op(average, None), priority)


def push_pull(tensor: torch.Tensor, name: Optional[str] = None, average: bool = True, priority: int = 0, version: int = 0,
              compression: Any = None) -> torch.Tensor:
    """The average (or sum) of all ranks' `tensor`, as a new tensor. A gradient that flows back through it is averaged (or
    added up) alike, so all ranks must let one, in the same order."""
    return reduced(tensor, name, priority, How(checked_op(average, None), compression))


def push_pull_inplace(tensor: torch.Tensor, name: Optional[str] = None, average: bool = True, priority: int = 0,
                      version: int = 0) -> torch.Tensor:
    """As push_pull, in place."""
    result: torch.Tensor = push_pull_async_inplace(tensor, name, average, priority).synchronize()
    return result


push_pull_async_ = push_pull_async_inplace
push_pull_ = push_pull_inplace


def declare(name: str) -> int:
    """BytePS's, not needed: a tensor is declared by its first use. Returns 0, as there."""
    check_name(name)
    return 0


def poll(handle: Handle) -> bool:
    """Has it ended? Then synchronize() does not wait."""
    return _checked_handle(handle).poll()


def synchronize(handle: Handle) -> Any:
    """Waits for the operation and returns its result. Ctrl-C ends the wait, not the operation."""
    return _checked_handle(handle).synchronize()


def _checked_handle(handle: Any) -> Handle:
    if not isinstance(handle, Handle):
        raise invalid(f"{handle!r} is no handle", "give what a function whose name ends with _async has returned")
    return handle


# ---- Horovod's names ----


def allreduce_async(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None,
                    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set, compression: Any = None) -> Handle:
    """Starts to reduce `tensor` of all ranks into a new tensor. No gradient flows back through it."""
    return start(tensor, None, name, checked_op(average, op), 0, compression,
                 Scale(1.0, prescale_factor, postscale_factor), process_set)


def allreduce_async_(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> Handle:
    """As allreduce_async, in place."""
    return start(tensor, tensor, name, checked_op(average, op), 0, None, Scale(1.0, prescale_factor, postscale_factor),
                 process_set)


def allreduce(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, compression: Any = None,
              op: Optional[Op] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The average of all ranks' `tensor`, or what `op` makes of them, as a new tensor. Gradients flow back through Sum and
    Average, and are reduced alike."""
    return reduced(tensor, name, 0, How(checked_op(average, op), compression, Scale(1.0, prescale_factor, postscale_factor),
                                        process_set))


def allreduce_(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """As allreduce, in place."""
    result: torch.Tensor = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).synchronize()
    return result
