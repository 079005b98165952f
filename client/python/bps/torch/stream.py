"""Bytes of the host that all ranks exchange: what they compare, and broadcasts of any amount.

They are calls without names, so ranks that are at different places in the program hear of it at once, and may go on. A job whose
ranks sum first has none. There a few tensors are declared, which stay on the servers for as long as the job runs; parameters and
optimizer state are sent once or seldom, and objects have another length each time. So bytes of a broadcast go in pieces of few
sizes, one after another.
"""
import ctypes
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
_SLOTS = 4  # pieces that may be under way

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


def _padded(count: int) -> int:
    """Few different sizes, so that few tensors are declared."""
    size = _LEAST_PIECE_BYTES
    while size < count:
        size *= 2
    return size


class Parcel:
    """Bytes under way, in place. Of a job whose ranks sum on their GPUs they go by way of this rank's GPU: such a job takes no
    host memory."""

    def __init__(self, world: World, buffer: bytearray, what: str, op: Optional[Op] = None, root: int = 0, slot: int = 0,
                 calls: Optional[CallGroup] = None) -> None:
        """op: of a reduction; None: a broadcast from the root. calls: of the ranks, if not all. what: for the error when ranks
        call different things."""
        self._buffer = buffer
        self._carrier: Optional[torch.Tensor] = None
        if calls is None and world.calls_without_names:
            calls = calls_of_all(world)
        self._wait = self._declared(world, op, root, slot) if calls is None else self._called(calls, what, op, root)

    def _called(self, calls: CallGroup, what: str, op: Optional[Op], root: int) -> Callable[[], Any]:
        buffer = self._buffer
        kind, where = ("broadcast", f"from rank {root}") if op is None else (f"exchange ({op.name.lower()})", "of each rank")

        def begin(group: Group) -> List[Handle]:
            return [group.broadcast(buffer, root) if op is None else group.push_pull(buffer, op=op)]

        return calls.start(kind, None, f"{what}, {len(buffer)} bytes {where}", begin, lambda: None).synchronize

    def _declared(self, world: World, op: Optional[Op], root: int, slot: int) -> Callable[[], Any]:
        given: Any = self._buffer
        if world.sums_on_gpus:
            gpu = torch.device("cuda", world.client.info().cuda_device)
            self._carrier = torch.frombuffer(self._buffer, dtype=torch.uint8).to(gpu)
            given = memory_of_tensor(self._carrier)
        count, client = len(self._buffer), world.client
        tensor = world.tensor(f"bytes.{'broadcast' if op is None else op.name.lower()}.{count}.{slot}", DType.U8, count)
        return (client.broadcast(tensor, given, root) if op is None else client.push_pull(tensor, given, op=op)).wait

    def wait(self) -> None:
        """Afterwards the result is in the buffer."""
        self._wait()
        if self._carrier is not None:
            torch.frombuffer(self._buffer, dtype=torch.uint8).copy_(self._carrier)


class _Slot:
    """A piece under way."""

    def __init__(self, parcel: Parcel, buffer: bytearray, parts: List[_Part]) -> None:
        self.parcel = parcel
        self.buffer = buffer
        self.parts = parts

    def finish(self, scatter: bool) -> None:
        self.parcel.wait()
        if scatter:
            _copy(self.buffer, self.parts, out=True)


def _copy(buffer: bytearray, parts: List[_Part], out: bool) -> None:
    pinned = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    position = ctypes.addressof(pinned)
    for address, count in parts:
        ctypes.memmove(address if out else position, position if out else address, count)
        position += count


def broadcast_bytes(world: World, memories: Sequence[Memory], root: int, what: str,
                    calls: Optional[CallGroup] = None) -> None:
    """Copies the root's `memories` into those of all others, which must be as long together; returns when it is done. calls: of
    the ranks, if not all. what: for
    the error when ranks call different things."""
    is_root = world.client.rank == root
    under_way: List[_Slot] = []
    for number, parts in enumerate(pieces(memories)):
        if len(under_way) == _SLOTS:
            under_way.pop(0).finish(scatter=not is_root)
        size = sum(count for _, count in parts)
        buffer = bytearray(size if world.calls_without_names else _padded(size))
        if is_root:
            _copy(buffer, parts, out=False)
        under_way.append(_Slot(Parcel(world, buffer, what, None, root, number % _SLOTS, calls), buffer, parts))
    for slot in under_way:
        slot.finish(scatter=not is_root)
