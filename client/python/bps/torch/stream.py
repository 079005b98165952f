"""Bytes of the host that all ranks exchange: what they compare, and broadcasts of any amount.

They are calls without names, so ranks that are at different places in the program get an error at once, and may go on. A job
whose ranks sum first has none. There a few tensors are declared, which stay on the servers for as long as the job runs; parameters
and optimizer state are sent once or seldom, and objects have another length each time. So bytes of a broadcast go in pieces of few
sizes, one after another.
"""
import ctypes
import functools
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import torch

from .._abi import DType, Op
from .._memory import Memory
from ..group import Group
from ..handle import Handle
from .calls import CallGroup, calls_of_all
from .tensors import memory_of_tensor
from .world import World

PIECE_BYTES = 1 << 20
_LEAST_PIECE_BYTES = 1 << 12
_LEAST_REDUCED_BYTES = 1 << 10
_SLOTS = 4  # declared pieces that may be under way

_Part = Tuple[int, int]  # address and bytes of what lies in a piece


def pieces(memories: Sequence[Memory]) -> Iterator[List[_Part]]:
    """The bytes of `memories`, in order, cut into lists of at most PIECE_BYTES together."""
    parts: List[_Part] = []
    room = PIECE_BYTES
    for memory in memories:
        done = 0
        while done < memory.bytes:
            taken = min(room, memory.bytes - done)
            parts.append((memory.pointer + done, taken))
            done += taken
            room -= taken
            if room == 0:
                yield parts
                parts, room = [], PIECE_BYTES
    if parts:
        yield parts


def _copy(buffer: bytearray, parts: List[_Part], out: bool) -> None:
    pinned = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    position = ctypes.addressof(pinned)
    for address, count in parts:
        ctypes.memmove(address if out else position, position if out else address, count)
        position += count


def _calls_of(world: World, calls: Optional[CallGroup]) -> Optional[CallGroup]:
    """None: there are none."""
    return calls_of_all(world) if calls is None and world.calls_without_names else calls


def reduce_bytes(world: World, values: bytearray, op: Op, what: str, calls: Optional[CallGroup] = None) -> None:
    """`values`, as long on all ranks, become what `op` makes of those of all ranks. calls: of the ranks, if not all. what: for the
    error when ranks call different things."""
    used = _calls_of(world, calls)
    if used is not None:
        used.make(f"exchange ({op.name.lower()})", f"{what}, {len(values)} bytes", lambda group: [group.push_pull(values, op=op)])
        return
    buffer = values + bytearray(_padded(len(values), _LEAST_REDUCED_BYTES) - len(values))
    with world.declared_series.exchange(f"exchange of {what}"):
        tensor = world.tensor(f"bytes.{op.name.lower()}.{len(buffer)}", DType.U8, len(buffer))
        _Declared(world, buffer, lambda given: world.client.push_pull(tensor, given, op=op)).wait()
    values[:] = buffer[:len(values)]


def broadcast_bytes(world: World, memories: Sequence[Memory], root: int, what: str, calls: Optional[CallGroup] = None) -> None:
    """Copies the root's `memories`, of u8, into those of all others, which must be alike; returns when it is done. calls, what: as
    reduce_bytes."""
    used = _calls_of(world, calls)
    if used is not None:
        _broadcast_by_calls(world, memories, root, what, used)
    else:
        with world.declared_series.exchange(f"broadcast of {what}"):
            _broadcast_declared(world, memories, root)


def _broadcast_by_calls(world: World, memories: Sequence[Memory], root: int, what: str, calls: CallGroup) -> None:
    """In place; what is small goes together."""
    large = [memory for memory in memories if memory.bytes >= PIECE_BYTES]
    packed: List[Tuple[bytearray, List[_Part]]] = []
    for parts in pieces([memory for memory in memories if memory.bytes < PIECE_BYTES]):
        packed.append((bytearray(sum(count for _, count in parts)), parts))
        if world.client.rank == root:
            _copy(*packed[-1], out=False)

    def begin(group: Group) -> List[Handle]:
        return [group.broadcast(one, root) for one in (*large, *(buffer for buffer, _ in packed))]

    total = sum(memory.bytes for memory in memories)
    calls.make("broadcast", f"{what}, {total} bytes from rank {root}", begin)
    if world.client.rank != root:
        for buffer, parts in packed:
            _copy(buffer, parts, out=True)


# ---- declared ----


def _padded(count: int, least: int) -> int:
    """Few different sizes, so that few tensors are declared."""
    size = least
    while size < count:
        size *= 2
    return size


class _Declared:
    """Bytes under way, in place, through a declared tensor. Of a job whose ranks sum on their GPUs they go by way of this rank's
    GPU: such a job takes no host memory."""

    def __init__(self, world: World, buffer: bytearray, start: Callable[[Any], Handle]) -> None:
        self._buffer = buffer
        self._carrier: Optional[torch.Tensor] = None
        if not world.sums_on_gpus:
            self._handle = start(buffer)
            return
        self._carrier = torch.frombuffer(buffer, dtype=torch.uint8).to(torch.device("cuda", world.client.info().cuda_device))
        self._handle = start(memory_of_tensor(self._carrier))

    def wait(self) -> None:
        """Afterwards the result is in the buffer."""
        self._handle.wait()
        if self._carrier is not None:
            torch.frombuffer(self._buffer, dtype=torch.uint8).copy_(self._carrier)


def _broadcast_declared(world: World, memories: Sequence[Memory], root: int) -> None:
    is_root = world.client.rank == root
    under_way: List[Tuple[_Declared, bytearray, List[_Part]]] = []

    def finish_one() -> None:
        carried, buffer, parts = under_way.pop(0)
        carried.wait()
        if not is_root:
            _copy(buffer, parts, out=True)

    for number, parts in enumerate(pieces(memories)):
        if len(under_way) == _SLOTS:
            finish_one()
        buffer = bytearray(_padded(sum(count for _, count in parts), _LEAST_PIECE_BYTES))
        if is_root:
            _copy(buffer, parts, out=False)
        tensor = world.tensor(f"bytes.broadcast.{len(buffer)}.{number % _SLOTS}", DType.U8, len(buffer))
        under_way.append((_Declared(world, buffer, functools.partial(world.client.broadcast, tensor, root=root)), buffer, parts))
    while under_way:
        finish_one()
