"""The two ways in which torch calls a backend that is written in Python.

Since torch 2.14 a backend is a subclass of `Backend`; from 2.6 on it can be one of `ProcessGroup`, which has other names for
some calls. Both are thin: the calls are those of Members.
"""
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence

import torch
from torch._C import _distributed_c10d as c10d

from .call import Call
from .members import Members
from .work import Work, callbacks_may_call

Tensors = Sequence[torch.Tensor]


def _seconds(timeout: Optional[timedelta]) -> Optional[float]:
    """None: what the group has."""
    return timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else None


def _timeout_of(options: Any) -> Optional[float]:
    return _seconds(getattr(options, "timeout", None))


class Calls:
    """What torch calls, in the names of both ways."""

    members: Members
    _coalesced: Optional[List[Call]] = None

    # -- reductions --

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._work(self.members.all_reduce(_list(tensors), _op_of(opts), _timeout_of(opts)))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._work(self.members.reduce(_one(tensors), opts.rootRank, _op_of(opts), _timeout_of(opts)))

    def reduce_scatter(self, outs: Tensors, sources: Sequence[Tensors], opts: Any = None) -> Work:
        return self._work(self.members.reduce_scatter(_one(outs), _one(sources), _op_of(opts), _timeout_of(opts)))

    def reduce_scatter_single(self, out: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        return self._work(self.members.reduce_scatter_single(out, source, _op_of(opts), _timeout_of(opts)))

    def reduce_scatter_single_coalesced(self, outs: Tensors, sources: Tensors, opts: Any = None) -> Work:
        return self._joined("reduce_scatter_tensor_coalesced", [
            self.members.reduce_scatter_single(out, source, _op_of(opts), _timeout_of(opts))
            for out, source in zip(outs, sources)])

    # -- copies --

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._work(self.members.broadcast(_one(tensors), opts.rootRank, _timeout_of(opts)))

    def allgather(self, outs: Sequence[Tensors], sources: Tensors, opts: Any = None) -> Work:
        call = self.members.all_gather(_one(outs), _one(sources), _timeout_of(opts))
        call.results = [call.results]  # hooks before torch 2.15 take the list out of it
        return self._work(call)

    def allgather_coalesced(self, outs: Sequence[Tensors], sources: Tensors, opts: Any = None) -> Work:
        return self._joined("all_gather_coalesced", [
            self.members.all_gather([out[number] for out in outs], source, _timeout_of(opts))
            for number, source in enumerate(sources)])

    def all_gather_single(self, out: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        return self._work(self.members.all_gather_single(out, source, _timeout_of(opts)))

    def all_gather_single_coalesced(self, outs: Tensors, sources: Tensors, opts: Any = None) -> Work:
        return self._joined("all_gather_into_tensor_coalesced", [
            self.members.all_gather_single(out, source, _timeout_of(opts)) for out, source in zip(outs, sources)])

    def gather(self, outs: Sequence[Tensors], sources: Tensors, opts: Any = None) -> Work:
        lists = _one(outs) if outs else []
        return self._work(self.members.gather(lists, _one(sources), opts.rootRank, _timeout_of(opts)))

    def scatter(self, outs: Tensors, sources: Sequence[Tensors], opts: Any = None) -> Work:
        lists = _one(sources) if sources else []
        return self._work(self.members.scatter(_one(outs), lists, opts.rootRank, _timeout_of(opts)))

    def alltoall(self, outs: Tensors, sources: Tensors, opts: Any = None) -> Work:
        return self._work(self.members.all_to_all(outs, sources, _timeout_of(opts)))

    def all_to_all_single(self, out: torch.Tensor, source: torch.Tensor, out_splits: Sequence[int],
                          source_splits: Sequence[int], opts: Any = None) -> Work:
        return self._work(self.members.all_to_all_single(out, source, out_splits, source_splits, _timeout_of(opts)))

    # -- messages --

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Work:
        return self._work(self.members.send(_one(tensors), destination, tag))

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        return self._work(self.members.receive(_one(tensors), source, tag))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        raise RuntimeError("bps receives from a rank that is named: give recv and irecv a source")

    # -- order --

    def barrier(self, opts: Any = None) -> Work:
        return self._work(self.members.barrier(_timeout_of(opts)))

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        self.members.monitored_barrier(_timeout_of(opts), wait_all_ranks)

    # -- several as one --

    def start_coalescing(self) -> None:
        self._coalesced = []

    def end_coalescing(self) -> Work:
        calls, self._coalesced = self._coalesced or [], None
        return self._joined("a coalesced call", calls)

    def _work(self, call: Call) -> Work:
        if self._coalesced is not None:
            self._coalesced.append(call)
        return Work(call, callbacks_may_call())

    def _joined(self, what: str, calls: List[Call]) -> Work:
        return self._work(self.members.joined(what, calls))

    # -- about itself --

    def getBackendName(self) -> str:  # noqa: N802: torch's names
        return "bps"

    def name(self) -> str:
        return "bps"

    def set_timeout(self, timeout: timedelta) -> None:
        self.members.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return self.members.calls

    def _set_sequence_number_for_group(self) -> None:
        pass

    def shutdown(self) -> None:
        self.members.leave()

    def abort(self) -> None:
        self.members.abandon()


def _list(tensors: Any) -> List[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _one(things: Sequence[Any]) -> Any:
    if isinstance(things, torch.Tensor):
        return things
    if len(things) != 1:
        raise ValueError(f"a call of one tensor was given {len(things)}")
    return things[0]


def _op_of(options: Any) -> Any:
    if options is None:
        return torch.distributed.ReduceOp.SUM
    return getattr(options, "reduceOp", options)


def _always(value: Any) -> property:
    return property(lambda self: value)


def backend_class(own: Callable[[Any], Any]) -> Any:
    """Since torch 2.14. own: takes those that torch does not ask its creator for."""

    class BpsBackend(Calls, c10d.Backend):  # type: ignore[misc, name-defined]
        def __init__(self, members: Members) -> None:
            c10d.Backend.__init__(self, members.rank, members.size)
            self.members = members

        # The base class asks the subclass for these, for ever.
        supports_splitting = _always(True)
        supports_coalescing = _always(False)
        supports_shrinking = _always(False)
        supports_reconfigure = _always(False)
        supports_window = _always(False)
        _supports_time_estimate = _always(False)

        @property
        def options(self) -> Any:
            return c10d.Backend.Options("bps", timedelta(seconds=self.members.timeout_s))

        def split(self, store: Any, ranks: Sequence[int], options: Any) -> Any:
            """For split_group, on all ranks of this group."""
            if self.members.rank not in ranks:  # torch crashes if it is given none
                raise ValueError(f"split_group leaves out rank {self.members.rank}, which torch can do with its own backends only: "
                                 "give it a part of its own, or use new_group")
            return own(BpsBackend(self.members.part(ranks, options.group_name, options._timeout.total_seconds())))

    BpsBackend.__name__ = "bps"
    return BpsBackend


def process_group_class() -> Any:
    """From torch 2.6 on."""

    class BpsProcessGroup(Calls, c10d.ProcessGroup):  # type: ignore[misc, name-defined]
        def __init__(self, members: Members) -> None:
            c10d.ProcessGroup.__init__(self, members.rank, members.size)
            self.members = members
            self._name = ""

        def getGroupName(self) -> str:  # noqa: N802
            return self._name

        def setGroupName(self, name: str) -> None:  # noqa: N802
            self._name = name

        _set_group_name = setGroupName
        group_name = property(getGroupName)
        supports_coalescing = _always(False)

        def _get_backend(self, device: Any) -> "BpsProcessGroup":
            return self

        def _start_coalescing(self, device: Any) -> None:
            self.start_coalescing()

        def _end_coalescing(self, device: Any) -> Work:
            return self.end_coalescing()

        _allgather_base = Calls.all_gather_single
        _reduce_scatter_base = Calls.reduce_scatter_single
        alltoall_base = Calls.all_to_all_single
        allgather_into_tensor_coalesced = Calls.all_gather_single_coalesced
        reduce_scatter_tensor_coalesced = Calls.reduce_scatter_single_coalesced
        recvAnysource = Calls.recv_anysource  # noqa: N815

    return BpsProcessGroup
