"""Broadcast of any amount of bytes through a few tensors of fixed size.

A declared tensor stays declared, on the servers and here, for as long as the job runs; parameters and optimizer state are
sent once or seldom, and objects have another length each time. So their bytes, one after another, go in pieces through
the same few tensors.
"""
import ctypes
import functools
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import torch

from .._abi import DType
from .._memory import Memory
from ..handle import Handle
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
    """Bytes of the host under way, in an operation that is in place. A job whose ranks sum on their GPUs takes no host
    memory: there they go by way of this rank's GPU."""

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


def broadcast_bytes(world: World, memories: Sequence[Memory], root: int) -> None:
    """Copies the root's `memories` into those of all others, which must be as long together; returns when it is done."""
    is_root = world.client.rank == root
    under_way: List[_Slot] = []
    for number, parts in enumerate(pieces(memories)):
        if len(under_way) == _SLOTS:
            under_way.pop(0).finish(scatter=not is_root)
        size = _padded(sum(count for _, count in parts))
        buffer = bytearray(size)
        if is_root:
            _copy(buffer, parts, out=False)
        tensor = world.tensor(f"broadcast.{size}.{number % _SLOTS}", DType.U8, size)
        parcel = Parcel(world, buffer, functools.partial(world.client.broadcast, tensor, root=root))
        under_way.append(_Slot(parcel, buffer, parts))
    for slot in under_way:
        slot.finish(scatter=not is_root)
