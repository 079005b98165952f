"""Calls on a group of ranks, of arrays that nobody has declared.

All ranks of a group make the same calls on it, in the same order. See bps/calls.h.
"""
import ctypes
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from . import _abi, _checks, _library
from ._abi import DType, Op
from ._memory import Memory, memory_of
from .errors import invalid
from .handle import Handle, Tensor

if TYPE_CHECKING:
    from .client import Client, Scale


class Group:
    """Ranks of the job that call on it; from Client.group, or Client.world."""

    def __init__(self, client: "Client", number: int, name: str) -> None:
        self._client = client
        self._number = number
        self.name = name

    def push_pull(self, source: Any, out: Any = None, op: Op = Op.AVERAGE, scale: "Optional[Scale]" = None) -> Handle:
        """Starts to reduce `source` of all ranks into `out` of all ranks (None: in place); returns at once. Both are contiguous
        arrays of one type and length, on the host, untouched until the handle says done. Any number of calls may be under
        way."""
        self._client._check_op(op)
        output = memory_of(source if out is None else out, self._what("out"), writable=True)
        given = output if out is None else memory_of(source, self._what("source"))
        return self._start((given, output), _library.get().bps_group_push_pull, int(given.dtype),
                           self._client._scaled(given, scale), self._output(given, output), int(op))

    def broadcast(self, array: Any, root: int = 0) -> Handle:
        """Starts to copy the root's `array` into those of all others; returns at once. They are contiguous arrays of as many
        bytes, of any type without pointers. root: a rank of the job."""
        root = self._client._checked_rank(root)
        memory = memory_of(array, self._what("array"), writable=self._client.rank != root, as_bytes=True)
        return self._start((memory,), _library.get().bps_group_broadcast, ctypes.byref(memory.c_buffer()), root)

    def reduce(self, source: Any, out: Any = None, root: int = 0, op: Op = Op.AVERAGE,
               scale: "Optional[Scale]" = None) -> Handle:
        """Starts to reduce `source` of all ranks into `out` of the root (None: in place there); returns at once. `out` is
        ignored elsewhere. root: a rank of the job."""
        self._client._check_op(op)
        root = self._client._checked_rank(root)
        takes = self._client.rank == root
        given = memory_of(source, self._what("source"), writable=takes and out is None)
        output = None
        if takes:
            output = given if out is None else memory_of(out, self._what("out"), writable=True)
        return self._start((given,) if output is None else (given, output), _library.get().bps_group_reduce, int(given.dtype),
                           self._client._scaled(given, scale), None if output is None else self._output(given, output),
                           int(op), root)

    def reduce_scatter(self, source: Any, out: Any, op: Op = Op.AVERAGE, parts: Optional[Sequence[int]] = None,
                       exact_order: bool = False, scale: "Optional[Scale]" = None) -> Handle:
        """Starts to reduce `source` of all ranks, of which each takes its part into `out`; returns at once. parts: elements of
        each rank's, in the order of the group, together those of `source`; None: all as long as `out`. See
        Client.reduce_scatter."""
        self._client._check_op(op)
        given = memory_of(source, self._what("source"))
        output = memory_of(out, self._what("out"), writable=True)
        return self._start((given, output), _library.get().bps_group_reduce_scatter, int(given.dtype),
                           self._client._scaled(given, scale), self._output(given, output), *self._parts(parts), int(op),
                           int(bool(exact_order)))

    def push_pull_many(self, sources: Sequence[Any], outs: Optional[Sequence[Any]] = None, op: Op = Op.AVERAGE,
                       scale: "Optional[Scale]" = None) -> Handle:
        """push_pull of several arrays of one type, with one handle: done when all are."""
        self._client._check_op(op)
        sources = _checks.sequence(self._what("sources"), sources, "arrays")
        outs = None if outs is None else _checks.sequence(self._what("outs"), outs, "arrays")
        if not sources or (outs is not None and len(outs) != len(sources)):
            raise invalid(f"{self._what('sources')}: {len(sources)} arrays, outs: {0 if outs is None else len(outs)}; give one "
                          "out for each source, at least one")
        outputs = [memory_of(one, self._what("outs"), writable=True) for one in (sources if outs is None else outs)]
        given = outputs if outs is None else [memory_of(one, self._what("sources")) for one in sources]
        for source, output in zip(given, outputs):
            self._output(source, output)
            if source.dtype != given[0].dtype:
                raise invalid(f"{self._what('sources')} has {given[0].dtype.name.lower()} and {source.dtype.name.lower()}")
        ins = (_abi.CBuffer * len(given))(*(self._client._scaled_buffer(one, scale) for one in given))
        places = (_abi.CBuffer * len(given))(*(one.c_buffer() for one in outputs))
        return self._start((*given, *outputs), _library.get().bps_push_pull_many, int(given[0].dtype), ins, places, len(given),
                           int(op))

    def all_gather(self, source: Any, out: Any = None, part_bytes: Optional[Sequence[int]] = None) -> Handle:
        """Starts to copy `source` of all ranks into `out` of all ranks, one after the other in the order of the group; returns
        at once. They are contiguous arrays of any type without pointers. part_bytes: of each rank's; None: all as long as
        `source`. Without `out`, on all ranks, each `source` may have any length: Handle.parts gives them."""
        given = memory_of(source, self._what("source"), as_bytes=True)
        output = None if out is None else memory_of(out, self._what("out"), writable=True, as_bytes=True)
        return self._start((given,) if output is None else (given, output), _library.get().bps_group_all_gather,
                           ctypes.byref(given.c_buffer()), self._maybe(output), *self._parts(part_bytes))

    def send(self, array: Any, destination: int, tag: int = 0) -> Handle:
        """Starts to send the bytes of `array` to another rank of the group; returns at once. The n-th send to it with a tag meets
        the n-th receive there. Done when it has been received, or, up to 64 KiB, when it has been copied."""
        memory = memory_of(array, self._what("array"), as_bytes=True)
        return self._start((memory,), _library.get().bps_send, ctypes.byref(memory.c_buffer()),
                           self._client._checked_rank(destination, "destination"), self._tag(tag))

    def receive(self, array: Any, source: int, tag: int = 0) -> Handle:
        """Starts to receive what another rank of the group sends with this tag, as many bytes as `array` has; returns at
        once."""
        memory = memory_of(array, self._what("array"), writable=True, as_bytes=True)
        return self._start((memory,), _library.get().bps_receive, ctypes.byref(memory.c_buffer()),
                           self._client._checked_rank(source, "source"), self._tag(tag))

    def scatter(self, source: Any, out: Any, root: int = 0, part_bytes: Optional[Sequence[int]] = None) -> Handle:
        """Starts to give each rank its part of the root's `source`, into its `out`; returns at once. source and part_bytes are
        ignored elsewhere. part_bytes: of each rank's, in the order of the group; None: all are equal."""
        is_root = self._client._checked_rank(root) == self._client.rank
        output = memory_of(out, self._what("out"), writable=True, as_bytes=True)
        given = memory_of(source, self._what("source"), as_bytes=True) if is_root else None
        return self._start((output,) if given is None else (given, output), _library.get().bps_scatter, self._maybe(given),
                           ctypes.byref(output.c_buffer()), *self._parts(part_bytes if is_root else None), root)

    def gather(self, source: Any, out: Any, root: int = 0, part_bytes: Optional[Sequence[int]] = None) -> Handle:
        """Starts to bring `source` of all ranks into `out` of the root, one after the other; returns at once. out and
        part_bytes are ignored elsewhere; part_bytes as in scatter."""
        is_root = self._client._checked_rank(root) == self._client.rank
        given = memory_of(source, self._what("source"), as_bytes=True)
        output = memory_of(out, self._what("out"), writable=True, as_bytes=True) if is_root else None
        return self._start((given,) if output is None else (given, output), _library.get().bps_gather,
                           ctypes.byref(given.c_buffer()), self._maybe(output),
                           *self._parts(part_bytes if is_root else None), root)

    def all_to_all(self, source: Any, out: Any = None, source_bytes: Optional[Sequence[int]] = None,
                   out_bytes: Optional[Sequence[int]] = None) -> Handle:
        """Starts to give each rank its part of `source`, and to take one from each into `out`; returns at once. source_bytes:
        what this rank gives to each, out_bytes: what it takes from each, in the order of the group; None: all are equal.
        Without `out`, on all ranks, only givers have to know the lengths: Handle.parts gives what came."""
        given = memory_of(source, self._what("source"), as_bytes=True)
        output = None if out is None else memory_of(out, self._what("out"), writable=True, as_bytes=True)
        gives, count = self._parts(source_bytes)
        takes, taken = self._parts(out_bytes)
        if gives is not None and takes is not None and count != taken:
            raise invalid(f"{self._what('source')} has {count} parts, and out {taken}")
        return self._start((given,) if output is None else (given, output), _library.get().bps_all_to_all,
                           ctypes.byref(given.c_buffer()), self._maybe(output), gives, takes, max(count, taken))

    def join(self) -> Handle:
        """Starts to join: this rank has run out of data, and makes no calls on the group until all ranks have joined; returns at
        once. Until then the library makes the others' calls here with zeros; averages divide by all ranks. When it is done,
        Handle.last_joined is the rank that came last. See bps_join in bps/calls.h."""
        handle = Handle(self._client, self._tensor(DType.U8, 0), ())
        error = _library.new_error()
        _library.check(_library.get().bps_join(self._client._pointer, self._number, ctypes.byref(handle._raw),
                                               ctypes.byref(error)), error)
        return handle

    def barrier(self, timeout_s: Optional[float] = None) -> None:
        """Returns when every rank of the group has called it as often as this one."""
        self.push_pull(bytearray(), op=Op.MAX).wait(timeout_s)

    def drop(self) -> Handle:
        """Ends the group for this rank, which makes no later calls on it; returns at once. Calls under way go on. The name may
        be used again at once. The handle is done when all its ranks have dropped it, or are gone."""
        handle = Handle(self._client, self._tensor(DType.U8, 0), ())
        error = _library.new_error()
        _library.check(_library.get().bps_drop_group(self._client._pointer, self._number, ctypes.byref(handle._raw),
                                                     ctypes.byref(error)), error)
        return handle

    def __repr__(self) -> str:
        return f"<bps.Group {self.name!r}>"

    # -- inside --

    def _what(self, name: str) -> str:
        return f"{name} of a call on group {self.name!r}"

    def _parts(self, parts: Optional[Sequence[int]]) -> Any:
        """List and length, as C takes them."""
        if parts is None:
            return None, 0
        lengths = _checks.lengths(f"the parts of a call on group {self.name!r}", parts)
        return (ctypes.c_uint64 * len(lengths))(*lengths), len(lengths)

    @staticmethod
    def _maybe(memory: Optional[Memory]) -> Any:
        return None if memory is None else ctypes.byref(memory.c_buffer())

    def _tag(self, tag: int) -> int:
        return _checks.whole(self._what("tag"), tag, 0, (1 << 64) - 1)

    def _tensor(self, dtype: DType, count: int) -> Tensor:
        return Tensor(-1, f"group {self.name!r}", dtype, count)

    def _output(self, given: Memory, output: Memory) -> Any:
        if output.dtype != given.dtype:
            raise invalid(f"{self._what('out')} is {output.dtype.name.lower()}, and source is {given.dtype.name.lower()}")
        return ctypes.byref(output.c_buffer())

    def _start(self, memories: Sequence[Memory], call: Callable[..., int], *arguments: Any) -> Handle:
        client = self._client
        client._sweep()
        handle = Handle(client, self._tensor(memories[0].dtype, memories[0].count), tuple(memories))
        error = _library.new_error()
        _library.check(call(client._pointer, self._number, *arguments, ctypes.byref(handle._raw), ctypes.byref(error)), error)
        return handle
