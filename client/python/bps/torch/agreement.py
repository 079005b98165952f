"""Do all ranks have the same model? Asked before anything is exchanged, because a tensor that one rank lacks would make
the others wait for it until their deadline."""
import json
from typing import List, Optional, Sequence, Tuple

import torch

from .._abi import DType, Op
from .._memory import memory_of
from ..errors import Code, Error
from .stream import Parcel, broadcast_bytes
from .world import World

_Entry = List[str]


def _kind(tensor: torch.Tensor) -> str:
    frozen = isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad  # a rank that freezes it sends no gradient
    return f"{str(tensor.dtype).replace('torch.', '')} {list(tensor.shape)}{' frozen' if frozen else ''}"


def _listing(tensors: Sequence[Tuple[str, torch.Tensor]]) -> List[_Entry]:
    return [[name, _kind(tensor)] for name, tensor in tensors]


def first_difference(mine: List[_Entry], theirs: List[_Entry]) -> Optional[str]:
    """In words, of rank 0's listing and another; None if there is none."""
    for (my_name, my_kind), (their_name, their_kind) in zip(mine, theirs):
        if my_name != their_name:
            return f"where rank 0 has {their_name} it has {my_name}"
        if my_kind != their_kind:
            return f"its {my_name} is {my_kind}, rank 0's {their_kind}"
    if len(mine) > len(theirs):
        return f"it has {len(mine)} tensors, rank 0 only {len(theirs)}: {mine[len(theirs)][0]} is too many"
    if len(mine) < len(theirs):
        return f"it has only {len(mine)} tensors, rank 0 {len(theirs)}: {theirs[len(mine)][0]} is missing"
    return None


def check_agreement(world: World, tensors: Sequence[Tuple[str, torch.Tensor]], what: str) -> None:
    """Returns on every rank, or raises on every rank. Code.CONFIGURATION, naming the ranks that differ from rank 0, and on
    those the first difference."""
    mine = _listing(tensors)
    data = bytearray(json.dumps(mine).encode())
    length = bytearray(len(data).to_bytes(8, "little"))
    broadcast_bytes(world, [memory_of(length, "length", writable=True)], root=0)
    theirs = bytearray(data if world.client.rank == 0 else int.from_bytes(length, "little"))
    broadcast_bytes(world, [memory_of(theirs, "listing", writable=True)], root=0)
    difference = first_difference(mine, json.loads(theirs.decode()))

    tensor = world.tensor("agreement", DType.U8, world.client.world_size)
    flags = bytearray(world.client.world_size)
    flags[world.client.rank] = 0 if difference is None else 1
    Parcel(world, flags, lambda given: world.client.push_pull(tensor, given, op=Op.MAX)).wait()
    ranks = [rank for rank, flag in enumerate(flags) if flag]
    if not ranks:
        return
    who = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
    detail = f": on rank {world.client.rank}, {difference}" if difference is not None else ""
    raise Error(Code.CONFIGURATION, f"{what} of {who} is not that of rank 0{detail}",
                "build it alike on all ranks" + ("" if detail else f"; {who} can say what differs"))
