"""allgather, reducescatter, alltoall: what ranks have, one after the other along the first dimension.

They are calls of a group, in memory of the host: a tensor of a GPU is copied there and back. The gradients are Horovod's.
"""
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch

from .. import handle as bps_handle
from .._abi import Op
from ..client import Scale
from ..errors import invalid
from .backend import buffers
from .calls import CallGroup, described
from .compression import NoneCompressor, is_own, wire_dtype_of
from .handles import Derived, Handle
from .operations import How, allreduce, checked_op, scaled
from .process_sets import ProcessSet, calls_of, global_process_set
from .sparse import added, packed
from .tensors import check_place, dtype_of, memory_of_tensor

Splits = Union[None, Sequence[int], torch.Tensor]


def _checked(tensor: torch.Tensor, kind: str, name: Optional[str]) -> torch.Tensor:
    what = name or "the tensor"
    check_place(tensor, what)
    if tensor.dim() == 0:
        raise invalid(f"{kind}: {what} is a number, without a first dimension", "give tensor.reshape(1)")
    return tensor.detach()


class _Rows:
    """The rows of a tensor, as bytes. Where a row has no elements a byte stands for it, so that rows can be counted."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.like = tensor
        self.row = list(tensor.shape[1:])
        self.has_elements = 0 not in self.row
        self.bytes_each = torch.Size(self.row).numel() * tensor.element_size() if self.has_elements else 1
        source = buffers.source(tensor) if self.has_elements else torch.zeros(tensor.shape[0], dtype=torch.uint8)
        self.memory = buffers.bytes_of(source)

    def put_together(self, parts: Sequence[memoryview]) -> Tuple[torch.Tensor, List[int]]:
        """What came from all ranks, and how many rows from each."""
        counts = [len(part) // self.bytes_each for part in parts]
        whole = torch.empty([sum(counts), *self.row], dtype=self.like.dtype)
        if self.has_elements:
            places = buffers.as_bytes(whole).split([len(part) for part in parts])
            for place, part in zip(places, parts):
                if len(part):
                    place.copy_(torch.frombuffer(part, dtype=torch.uint8))
        return whole.to(self.like.device), counts


# ---- allgather ----


def allgather_async(tensor: torch.Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts to put the tensors of all ranks one after the other, of any type. They may differ in their first dimension."""
    given = _checked(tensor, "allgather", name)
    rows = _Rows(given)
    started: List[bps_handle.Handle] = []

    def begin(group: Any) -> List[bps_handle.Handle]:
        started[:] = [group.all_gather(rows.memory)]
        return started

    return calls_of(process_set).start("allgather", name, described(given, rows.row), begin,
                                       lambda: rows.put_together(started[0].parts())[0])


class _Gathered(torch.autograd.Function):
    """Each rank gets the average, over all ranks, of the gradients of its rows."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, name: Optional[str], process_set: ProcessSet) -> torch.Tensor:
        context.rows = tensor.shape[0]
        context.process_set = process_set
        gathered: torch.Tensor = allgather_async(tensor, name, process_set).synchronize()
        return gathered

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return own_rows(gradient, context.rows, context.process_set), None, None


def own_rows(gradient: torch.Tensor, rows: int, process_set: ProcessSet) -> torch.Tensor:
    """Of the average of what all ranks give, those that this rank has gathered."""
    average = allreduce(gradient, process_set=process_set)
    counts: torch.Tensor = allgather_async(torch.tensor([rows]), None, process_set).synchronize()
    return average.narrow(0, int(counts[:calls_of(process_set).rank].sum()), rows)


def allgather(tensor: torch.Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The tensors of all ranks, one after the other. Gradients flow back through it."""
    _checked(tensor, "allgather", name)
    gathered: torch.Tensor = _Gathered.apply(tensor, name, process_set)  # type: ignore[no-untyped-call]
    return gathered


def sparse_allreduce_async(tensor: torch.Tensor, name: Optional[str] = None, op: Op = Op.AVERAGE,
                           process_set: ProcessSet = global_process_set) -> Derived:
    """Starts to add up, or to average, sparse tensors of the same shape and any number of elements. Call what it returns, as
    with Horovod, or give it to synchronize(): that gives a sparse tensor, which is coalesced. What ranks have is gathered, so
    each rank takes as much as all ranks give."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
        raise invalid(f"{name or 'the tensor'} is no sparse tensor", "use allreduce")
    op = checked_op(None, op)
    if op not in (Op.SUM, Op.AVERAGE):
        raise invalid(f"{op!r} of sparse tensors", "use Sum or Average")
    if tensor.sparse_dim() == 0:
        raise invalid(f"{name or 'the tensor'} has no sparse dimension", "use allreduce of to_dense()")
    return Derived([start_sparse(calls_of(process_set), tensor, name, op)], lambda results: results[0])


def start_sparse(calls: CallGroup, tensor: torch.Tensor, name: Optional[str], op: Op) -> Handle:
    """Starts to add up, or to average, sparse tensors of a group. A rank that has joined has nothing to add."""
    memory = memory_of_tensor(packed(tensor))
    started: List[bps_handle.Handle] = []

    def begin(group: Any) -> List[bps_handle.Handle]:
        started[:] = [group.all_gather(memory)]
        return started

    return calls.start("sparse_allreduce", name, f"{described(tensor)}, {tensor.sparse_dim()} dimensions sparse", begin,
                       lambda: added(started[0].parts(), tensor, calls.size if op == Op.AVERAGE else 1), needs_all=False)


# ---- reducescatter ----


def shares(rows: int, ranks: int) -> List[int]:
    """How many rows each rank gets: the first ones get one more, if they do not come out even."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


def reducescatter_async(tensor: torch.Tensor, name: Optional[str] = None, op: Op = Op.AVERAGE,
                        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0, compression: Any = None) -> Handle:
    """Starts to reduce the tensors of all ranks, which are alike, and to give each rank its share of the rows."""
    how = How(checked_op(None, op), compression, Scale(1.0, prescale_factor, postscale_factor), process_set)
    given = _checked(tensor, "reducescatter", name)
    dtype_of(given, name or "the tensor")
    calls = calls_of(process_set)
    wire = wire_dtype_of(compression) if given.is_floating_point() else None
    sent = buffers.source(scaled(given, prescale_factor).to(wire or given.dtype))
    counts = shares(given.shape[0], calls.size)
    calls.check_member()
    place = torch.empty([counts[calls.rank], *given.shape[1:]], dtype=sent.dtype)
    memory, output = memory_of_tensor(sent), memory_of_tensor(place)
    row = torch.Size(given.shape[1:]).numel()
    parts = [count * row for count in counts]
    return calls.start("reducescatter", name, f"{how.op.name.lower()} of {described(sent)}",
                       lambda group: [group.reduce_scatter(memory, output, how.op, parts)],
                       lambda: scaled(place, postscale_factor).to(given.device, given.dtype))


class _ReducedAndScattered(torch.autograd.Function):
    """Horovod's: the gradients of all ranks' rows, one after the other, times the ranks for a sum."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, name: Optional[str], how: How) -> torch.Tensor:
        context.how = how
        share: torch.Tensor = reducescatter_async(tensor, name, how.op, how.process_set or global_process_set, how.scale.prescale,
                                                  how.scale.postscale, how.compression).synchronize()
        return share

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        how: How = context.how
        return allgather(scattered_gradient(gradient, how), process_set=how.process_set or global_process_set), None, None


def scattered_gradient(gradient: torch.Tensor, how: How) -> torch.Tensor:
    if how.op not in (Op.SUM, Op.AVERAGE):
        raise invalid(f"no gradient flows back through {how.op.name.lower()} of all ranks", "detach() what it gives")
    ranks = calls_of(how.process_set).size if how.op == Op.SUM else 1
    return gradient * (ranks * how.scale.prescale * how.scale.postscale)


def reducescatter(tensor: torch.Tensor, name: Optional[str] = None, compression: Any = NoneCompressor, op: Op = Op.AVERAGE,
                  process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """This rank's share of the rows of the average of all ranks' tensors, or of what `op` makes of them. Gradients flow back
    through Sum and Average."""
    _checked(tensor, "reducescatter", name)
    if is_own(compression):
        sent, context = compression.compress(tensor)
        own: torch.Tensor = compression.decompress(
            reducescatter(sent, name, NoneCompressor, op, process_set, prescale_factor, postscale_factor), context)
        return own
    how = How(checked_op(None, op), compression, Scale(1.0, prescale_factor, postscale_factor), process_set)
    share: torch.Tensor = _ReducedAndScattered.apply(tensor, name, how)  # type: ignore[no-untyped-call]
    return share


# ---- alltoall ----


def _split(splits: Splits, rows: int, calls: CallGroup) -> List[int]:
    if splits is None:
        if rows % calls.size != 0:
            raise invalid(f"alltoall of {rows} rows, which {calls.size} ranks cannot share equally", "give splits")
        return [rows // calls.size] * calls.size
    if isinstance(splits, torch.Tensor):
        if splits.is_floating_point() or splits.is_complex() or splits.dtype == torch.bool:
            raise invalid(f"splits are of {splits.dtype}", "give whole numbers, e.g. torch.int32")
        splits = splits.tolist()
    counts = [int(count) for count in splits]
    if len(counts) != calls.size or min(counts) < 0 or sum(counts) != rows:
        raise invalid(f"splits are {counts}, and the tensor has {rows} rows",
                      f"give {calls.size} numbers, one for each rank, that are together the number of rows")
    return counts


def alltoall_async(tensor: torch.Tensor, splits: Splits = None, name: Optional[str] = None,
                   process_set: ProcessSet = global_process_set) -> Handle:
    """Starts to give each rank its rows of `tensor`, of any type. splits: how many, for each rank; None: all the same.
    synchronize() returns what came from all ranks, in their order, and how many rows came from each."""
    given = _checked(tensor, "alltoall", name)
    calls = calls_of(process_set)
    calls.check_member()
    counts = _split(splits, given.shape[0], calls)
    rows = _Rows(given)
    started: List[bps_handle.Handle] = []
    like = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32)

    def begin(group: Any) -> List[bps_handle.Handle]:
        started[:] = [group.all_to_all(rows.memory, source_bytes=[count * rows.bytes_each for count in counts])]
        return started

    def finish() -> Tuple[torch.Tensor, torch.Tensor]:
        whole, received = rows.put_together(started[0].parts())
        return whole, torch.tensor(received, dtype=like.dtype, device=like.device)

    return calls.start("alltoall", name, described(given, rows.row), begin, finish)


class _Exchanged(torch.autograd.Function):
    """Gradients go back to where the rows came from."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, splits: Splits, name: Optional[str],
                process_set: ProcessSet) -> Tuple[torch.Tensor, torch.Tensor]:
        context.process_set = process_set
        whole, received = alltoall_async(tensor, splits, name, process_set).synchronize()
        context.received = received
        context.mark_non_differentiable(received)
        return whole, received

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor, *_: Any) -> Any:  # type: ignore[override]
        back, _received = _Exchanged.apply(gradient, context.received, None, context.process_set)  # type: ignore[no-untyped-call]
        return back, None, None, None


def alltoall(tensor: torch.Tensor, splits: Splits = None, name: Optional[str] = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """What came from all ranks; with splits also how many rows came from each. Gradients flow back through it."""
    _checked(tensor, "alltoall", name)
    whole, received = _Exchanged.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    return whole if splits is None else (whole, received)
