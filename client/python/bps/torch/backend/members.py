"""The ranks of a process group, and the calls that they make: what c10d asks for, made of what bps has.

Tensors are checked before anything is sent, so a call that is refused leaves the group as it was.
"""
import contextlib
import functools
import os
from typing import Any, List, Optional, Sequence

import torch
import torch.distributed as dist

from ..._abi import Op
from ...errors import Code, Error
from ...group import Group
from ...handle import Handle
from ..tensors import memory_of_tensor
from . import buffers
from .buffers import Finish, bytes_of, parts_of
from .call import Call, torch_errors
from .job import Job
from .reductions import Reduction, Signature, reduction_of, viewed
from .sparse import SparseAllReduce

Tensors = Sequence[torch.Tensor]

# Tags of messages that no program sends.
_ARRIVED = (1 << 63) + 1
_GO_ON = (1 << 63) + 2


class Members:
    """Ranks are those of the process group. owns_job: it has joined the job, and ends it."""

    def __init__(self, job: Job, group: Group, ranks: Sequence[int], timeout_s: float, owns_job: bool) -> None:
        self.group = group
        self.ranks = list(ranks)  # of the job
        self.rank = self.ranks.index(job.client.rank)
        self.size = len(self.ranks)
        self.name = group.name
        self.timeout_s = timeout_s
        self.failure: Optional[BaseException] = None
        self.calls = 0
        self.has_ended = False
        self._job = job
        self._owns_job = owns_job
        self._pid = os.getpid()

    # -- reductions --

    def all_reduce(self, tensors: Tensors, op: Any, timeout_s: Optional[float] = None) -> Call:
        call = self._call("all_reduce", timeout_s)
        handles: List[Handle] = []
        finishes: List[Optional[Finish]] = []
        if any(tensor.is_sparse for tensor in tensors):
            return self._sparse_all_reduce(call, tensors, op)
        reductions = self._reductions(tensors, op, "tensor", written=True)
        with torch_errors(call.what):
            for tensor, reduction in zip(tensors, reductions):
                if reduction.fold is not None:
                    handles.append(self._gathered(f"all_reduce of {reduction.text}", tensor, tensor, reduction, finishes))
                    continue
                place, finish = buffers.target(tensor, is_source=True)
                handles.append(self.group.push_pull(memory_of_tensor(viewed(place)), op=reduction.op, scale=reduction.scale))
                finishes.append(finish)
        return call.start(handles, tensors, finishes)

    def _sparse_all_reduce(self, call: Call, tensors: Tensors, op: Any) -> Call:
        if not all(tensor.is_sparse for tensor in tensors):
            raise ValueError("all_reduce of sparse and dense tensors at once: make two calls of it")
        sums = [SparseAllReduce(tensor, op) for tensor in tensors]
        with torch_errors(call.what):
            handles = [self.group.all_gather(bytes_of(one.message())) for one in sums]
        return call.start(handles, tensors, [functools.partial(one.finish, handle) for one, handle in zip(sums, handles)])

    def reduce(self, tensor: torch.Tensor, root: int, op: Any, timeout_s: Optional[float] = None) -> Call:
        call = self._call("reduce", timeout_s)
        is_root, job_root = self.rank == root, self._job_rank(root, "root")
        reduction, = self._reductions([tensor], op, "tensor", written=is_root)
        finishes: List[Optional[Finish]] = []
        with torch_errors(call.what):
            if reduction.fold is not None:
                what = f"reduce to rank {root} of {reduction.text}"
                handle = self._gathered(what, tensor, tensor if is_root else None, reduction, finishes)
                return call.start([handle], [tensor], finishes)
            place, finish = buffers.target(tensor, is_source=True) if is_root else (buffers.source(tensor), None)
            handle = self.group.reduce(memory_of_tensor(viewed(place)), root=job_root, op=reduction.op, scale=reduction.scale)
        return call.start([handle], [tensor], [finish])

    def reduce_scatter(self, out: torch.Tensor, sources: Tensors, op: Any, timeout_s: Optional[float] = None) -> Call:
        """sources: one for each rank."""
        call = self._call("reduce_scatter", timeout_s)
        self._check_count(sources, "input_list")
        buffers.check(out, "output", written=True)
        self._same(sources[self.rank], out, "input_list", "output")
        reduction = self._reductions(sources, op, "input_list", written=False)[0]
        whole = torch.cat([buffers.source(one).reshape(-1) for one in sources])
        return self._scattered(call, out, whole, [one.numel() for one in sources], reduction)

    def reduce_scatter_single(self, out: torch.Tensor, source: torch.Tensor, op: Any,
                              timeout_s: Optional[float] = None) -> Call:
        call = self._call("reduce_scatter_tensor", timeout_s)
        buffers.check(out, "output", written=True)
        reduction, = self._reductions([source], op, "input", written=False)
        self._same_type(source, out, "input", "output")
        self._times(source, out, "input", "output")
        return self._scattered(call, out, buffers.source(source).reshape(-1), [out.numel()] * self.size, reduction)

    def _scattered(self, call: Call, out: torch.Tensor, whole: torch.Tensor, counts: List[int], reduction: Reduction) -> Call:
        finishes: List[Optional[Finish]] = []
        with torch_errors(call.what):
            if reduction.fold is not None:
                signature = Signature(f"reduce_scatter of {reduction.text}")
                signed = [part for one in whole.split(counts) for part in (signature.bytes, buffers.as_bytes(one))]
                parts = signature.places(self.size, buffers.byte_count(out))
                handle = self.group.all_to_all(bytes_of(torch.cat(signed)), bytes_of(parts),
                                               [signature.length + count * whole.element_size() for count in counts],
                                               [parts.shape[1]] * self.size)
                finishes.append(lambda: buffers.put(out, reduction.folded(signature.checked(parts, out))))
                return call.start([handle], [out], finishes)
            place, finish = buffers.target(out, is_source=False)
            seen = viewed(whole)
            times = seen.numel() // max(whole.numel(), 1)
            handle = self.group.reduce_scatter(memory_of_tensor(seen), memory_of_tensor(viewed(place)), op=reduction.op,
                                               parts=[count * times for count in counts], scale=reduction.scale)
        return call.start([handle], [out], [finish])

    # -- copies --

    def broadcast(self, tensor: torch.Tensor, root: int, timeout_s: Optional[float] = None) -> Call:
        call = self._call("broadcast", timeout_s)
        is_root = self.rank == root
        buffers.check(tensor, "tensor", written=not is_root)
        with torch_errors(call.what):
            place, finish = (buffers.source(tensor), None) if is_root else buffers.target(tensor, is_source=False)
            handle = self.group.broadcast(bytes_of(place), root=self._job_rank(root, "root"))
        return call.start([handle], [tensor], [finish])

    def all_gather(self, outs: Tensors, source: torch.Tensor, timeout_s: Optional[float] = None) -> Call:
        """outs: one for each rank, of any lengths."""
        call = self._call("all_gather", timeout_s)
        self._check_count(outs, "tensor_list")
        for out in outs:
            buffers.check(out, "tensor_list", written=True)
        buffers.check(source, "tensor", written=False)
        self._same(source, outs[self.rank], "tensor", "tensor_list")
        with torch_errors(call.what):
            whole = torch.empty(sum(parts_of(outs)), dtype=torch.uint8)
            handle = self.group.all_gather(bytes_of(buffers.source(source)), bytes_of(whole), parts_of(outs))
        return call.start([handle], outs, [lambda: buffers.spread(whole, outs)])

    def all_gather_single(self, out: torch.Tensor, source: torch.Tensor, timeout_s: Optional[float] = None) -> Call:
        call = self._call("all_gather_into_tensor", timeout_s)
        buffers.check(out, "output", written=True)
        buffers.check(source, "input", written=False)
        self._same_type(source, out, "input", "output")
        self._times(out, source, "output", "input")
        with torch_errors(call.what):
            place, finish = buffers.target(out, is_source=False)
            handle = self.group.all_gather(bytes_of(buffers.source(source)), bytes_of(place))
        return call.start([handle], [out], [finish])

    def gather(self, outs: Tensors, source: torch.Tensor, root: int, timeout_s: Optional[float] = None) -> Call:
        """outs: at the root."""
        call = self._call("gather", timeout_s)
        buffers.check(source, "tensor", written=False)
        if self.rank != root:
            with torch_errors(call.what):
                return call.start([self.group.gather(bytes_of(buffers.source(source)), None, self._job_rank(root, "root"))], [])
        self._check_count(outs, "gather_list")
        for out in outs:
            buffers.check(out, "gather_list", written=True)
        self._same(source, outs[self.rank], "tensor", "gather_list")
        with torch_errors(call.what):
            whole = torch.empty(sum(parts_of(outs)), dtype=torch.uint8)
            handle = self.group.gather(bytes_of(buffers.source(source)), bytes_of(whole), self._job_rank(root, "root"), parts_of(outs))
        return call.start([handle], outs, [lambda: buffers.spread(whole, outs)])

    def scatter(self, out: torch.Tensor, sources: Tensors, root: int, timeout_s: Optional[float] = None) -> Call:
        """sources: at the root."""
        call = self._call("scatter", timeout_s)
        buffers.check(out, "tensor", written=True)
        if self.rank == root:
            self._check_count(sources, "scatter_list")
            for source in sources:
                buffers.check(source, "scatter_list", written=False)
            self._same(sources[self.rank], out, "scatter_list", "tensor")
        with torch_errors(call.what):
            place, finish = buffers.target(out, is_source=False)
            if self.rank == root:
                handle = self.group.scatter(bytes_of(buffers.flat(sources)), bytes_of(place), self._job_rank(root, "root"), parts_of(sources))
            else:
                handle = self.group.scatter(None, bytes_of(place), self._job_rank(root, "root"))
        return call.start([handle], [out], [finish])

    def all_to_all(self, outs: Tensors, sources: Tensors, timeout_s: Optional[float] = None) -> Call:
        """One for each rank."""
        call = self._call("all_to_all", timeout_s)
        self._check_count(outs, "output_tensor_list")
        self._check_count(sources, "input_tensor_list")
        for out in outs:
            buffers.check(out, "output_tensor_list", written=True)
        for source in sources:
            buffers.check(source, "input_tensor_list", written=False)
        with torch_errors(call.what):
            whole = torch.empty(sum(parts_of(outs)), dtype=torch.uint8)
            handle = self.group.all_to_all(bytes_of(buffers.flat(sources)), bytes_of(whole), parts_of(sources), parts_of(outs))
        return call.start([handle], outs, [lambda: buffers.spread(whole, outs)])

    def all_to_all_single(self, out: torch.Tensor, source: torch.Tensor, out_splits: Sequence[int],
                          source_splits: Sequence[int], timeout_s: Optional[float] = None) -> Call:
        """Splits: rows for each rank; none: all are equal."""
        call = self._call("all_to_all_single", timeout_s)
        buffers.check(out, "output", written=True)
        buffers.check(source, "input", written=False)
        self._same_type(source, out, "input", "output")
        takes, gives = self._split(out, out_splits, "output"), self._split(source, source_splits, "input")
        with torch_errors(call.what):
            place, finish = buffers.target(out, is_source=False)
            handle = self.group.all_to_all(bytes_of(buffers.source(source)), bytes_of(place), gives, takes)
        return call.start([handle], [out], [finish])

    # -- messages --

    def send(self, tensor: torch.Tensor, destination: int, tag: int) -> Call:
        call = self._call(f"send to rank {destination}")
        buffers.check(tensor, "tensor", written=False)
        with torch_errors(call.what):
            handle = self.group.send(bytes_of(buffers.source(tensor)), self._job_rank(destination, "destination"), tag)
        return call.start([handle], [tensor])

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Call:
        call = self._call(f"receive from rank {source}")
        buffers.check(tensor, "tensor", written=True)
        with torch_errors(call.what):
            place, finish = buffers.target(tensor, is_source=False)
            handle = self.group.receive(bytes_of(place), self._job_rank(source, "source"), tag)
        return call.start([handle], [tensor], [finish])

    # -- order --

    def barrier(self, timeout_s: Optional[float] = None) -> Call:
        call = self._call("barrier", timeout_s)
        with torch_errors(call.what):
            return call.start([self.group.push_pull(bytes_of(torch.empty(0)), op=Op.MAX)], [])

    def monitored_barrier(self, timeout_s: Optional[float], names_all: bool) -> None:
        """Rank 0 names the ranks that have not come."""
        call = self._call("monitored_barrier", timeout_s)
        nothing = torch.empty(0)
        with torch_errors(call.what):
            if self.rank != 0:
                arrived = self.group.send(bytes_of(nothing), self.ranks[0], _ARRIVED)
                return call.start([arrived, self.group.receive(bytes_of(nothing), self.ranks[0], _GO_ON)], []).wait()
            waits = [(rank, self.group.receive(bytes_of(nothing), self.ranks[rank], _ARRIVED)) for rank in range(1, self.size)]
            missing: List[int] = []
            for rank, handle in waits:
                try:
                    handle.wait(call.left_s())
                except Error as error:
                    if error.code != Code.DEADLINE:
                        raise
                    missing.append(rank)
                    if not names_all:
                        break
            if missing:
                ranks = ("Ranks " if len(missing) > 1 else "Rank ") + ", ".join(map(str, missing))
                # A late message of theirs would meet the next one.
                self._fail(dist.DistBackendError(f"{call.what}: {ranks} failed to pass monitoredBarrier in "
                                                 f"{call.timeout_s * 1000:.0f} ms"))
                raise self.failure
            sends = [self.group.send(bytes_of(nothing), self.ranks[rank], _GO_ON) for rank in range(1, self.size)]
        call.start(sends, []).wait()

    # -- several --

    def joined(self, what: str, calls: Sequence[Call]) -> Call:
        """One call that is over when all are."""
        return self._call(what).start_all(calls)

    def part(self, ranks: Sequence[int], name: str, timeout_s: float) -> "Members":
        """Of this group, to call on among themselves; this rank is one of them."""
        call = self._call("split_group")
        job_ranks = [self.ranks[rank] for rank in ranks]
        with torch_errors(call.what):
            return Members(self._job, self._job.client.group(f"torch.{name}", job_ranks), job_ranks, timeout_s, owns_job=False)

    # -- end --

    def leave(self) -> None:
        """Of a group: makes no later calls. Of the job: ends it."""
        self._end(False)

    def abandon(self) -> None:
        self._end(True)

    def _end(self, by_abandoning: bool) -> None:
        if os.getpid() != self._pid or self.has_ended:
            return
        self.has_ended = True
        self.failure = RuntimeError(f"process group {self.name} has been destroyed")
        if self._owns_job:
            with torch_errors(f"bps: destroy_process_group of {self.name}", is_of_call=False):
                self._job.end(by_abandoning)
        elif self._job.is_here:
            with contextlib.suppress(Error):  # the job is over already
                self.group.drop()

    # -- inside --

    def _call(self, what: str, timeout_s: Optional[float] = None) -> Call:
        if os.getpid() != self._pid:
            raise RuntimeError(f"{what} in a child that was forked after init_process_group: start it with spawn, or "
                               "call torch.distributed in the parent only")
        if self.failure is not None:
            raise self.failure
        self.calls += 1
        return Call(f"bps: {what} of group {self.name}", self.timeout_s if timeout_s is None else timeout_s, self._fail)

    def _job_rank(self, rank: int, what: str) -> int:
        """Of a rank of the group. ValueError: there is none."""
        if not 0 <= rank < self.size:
            raise ValueError(f"{what} {rank} is no rank of group {self.name}: ranks are 0 to {self.size - 1}")
        return self.ranks[rank]

    def _fail(self, error: BaseException) -> None:
        """A call has timed out: its peers may have it still, so later calls could meet other ones."""
        self._job.has_timed_out = True
        if self.failure is None:
            self.failure = error

    def _gathered(self, what: str, source: torch.Tensor, out: Optional[torch.Tensor], reduction: Reduction,
                  finishes: List[Optional[Finish]]) -> Handle:
        """What bps cannot reduce on the way; it sees bytes only, so `what` goes with them."""
        signature = Signature(what)
        parts = signature.places(self.size, buffers.byte_count(source))

        def finish() -> None:
            from_ranks = signature.checked(parts, source)
            if out is not None:
                buffers.put(out, reduction.folded(from_ranks))

        finishes.append(finish)
        signed = torch.cat([signature.bytes, buffers.as_bytes(buffers.source(source))])
        return self.group.all_gather(bytes_of(signed), bytes_of(parts))

    def _reductions(self, tensors: Tensors, op: Any, what: str, written: bool) -> List[Reduction]:
        for tensor in tensors:
            buffers.check(tensor, what, written)
        return [reduction_of(op, tensor.dtype) for tensor in tensors]

    def _check_count(self, tensors: Tensors, what: str) -> None:
        if len(tensors) != self.size:
            raise ValueError(f"{what} has {len(tensors)} tensors, and the group has {self.size} ranks")

    def _same(self, a: torch.Tensor, b: torch.Tensor, a_name: str, b_name: str) -> None:
        """Of this rank's part, which it gives and takes."""
        self._same_type(a, b, a_name, b_name)
        if a.numel() != b.numel():
            raise ValueError(f"{a_name} has {a.numel()} elements for rank {self.rank}, and {b_name} {b.numel()}")

    @staticmethod
    def _same_type(a: torch.Tensor, b: torch.Tensor, a_name: str, b_name: str) -> None:
        if a.dtype != b.dtype:
            raise TypeError(f"{a_name} is {a.dtype}, and {b_name} is {b.dtype}")

    def _times(self, whole: torch.Tensor, part: torch.Tensor, whole_name: str, part_name: str) -> None:
        if whole.numel() != part.numel() * self.size:
            raise ValueError(f"{whole_name} has {whole.numel()} elements, and {part_name} {part.numel()}; it is to be "
                             f"{self.size} times as long")

    def _split(self, tensor: torch.Tensor, splits: Sequence[int], what: str) -> List[int]:
        """In bytes."""
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits:
            if rows % self.size != 0:
                raise ValueError(f"{what} has {rows} rows, which {self.size} ranks cannot share equally")
            splits = [rows // self.size] * self.size
        if len(splits) != self.size or sum(splits) != rows or min(splits) < 0:
            raise ValueError(f"the split sizes of {what} are {list(splits)}, and are to be {self.size} numbers that are together "
                             f"its {rows} rows")
        row = buffers.byte_count(tensor) // rows if rows else 0
        return [split * row for split in splits]
