"""Do all ranks have the same model? Asked before anything is exchanged, because a tensor that one rank lacks would make
the others wait for it until their deadline."""
import json
from typing import List, Optional, Sequence, Tuple

import torch

from .._abi import Op
from .._memory import memory_of
from ..errors import Code, Error
from .calls import CallGroup
from .stream import broadcast_bytes, reduce_bytes
from .world import World

_Entry = List[str]


def _kind(tensor: torch.Tensor) -> str:
    frozen = isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad  # a rank that freezes it sends no gradient
    return f"{str(tensor.dtype).replace('torch.', '')} {list(tensor.shape)}{' frozen' if frozen else ''}"


def _listing(tensors: Sequence[Tuple[str, torch.Tensor]]) -> List[_Entry]:
    return [[name, _kind(tensor)] for name, tensor in tensors]


def first_difference(mine: List[_Entry], theirs: List[_Entry], root: int = 0) -> Optional[str]:
    """In words, of the root's listing and another; None if there is none."""
    for (my_name, my_kind), (their_name, their_kind) in zip(mine, theirs):
        if my_name != their_name:
            return f"where rank {root} has {their_name} it has {my_name}"
        if my_kind != their_kind:
            return f"its {my_name} is {my_kind}, rank {root}'s {their_kind}"
    if len(mine) > len(theirs):
        return f"it has {len(mine)} tensors, rank {root} only {len(theirs)}: {mine[len(theirs)][0]} is too many"
    if len(mine) < len(theirs):
        return f"it has only {len(mine)} tensors, rank {root} {len(theirs)}: {theirs[len(mine)][0]} is missing"
    return None


def check_agreement(world: World, tensors: Sequence[Tuple[str, torch.Tensor]], what: str,
                    calls: Optional[CallGroup] = None) -> None:
    """Returns on every rank, or raises on every rank. Code.CONFIGURATION, naming the ranks that differ from the first one,
    and on those the first difference. calls: of the ranks, if not all."""
    ranks: Sequence[int] = range(world.client.world_size) if calls is None else calls.ranks
    root, rank = ranks[0], world.client.rank
    mine = _listing(tensors)
    data = bytearray(json.dumps(mine).encode())
    length = bytearray(len(data).to_bytes(8, "little"))
    broadcast_bytes(world, [memory_of(length, "length", writable=True)], root, "length of a listing", calls)
    theirs = bytearray(data if rank == root else int.from_bytes(length, "little"))
    broadcast_bytes(world, [memory_of(theirs, "listing", writable=True)], root, "listing of tensors", calls)
    difference = first_difference(mine, json.loads(theirs.decode()), root)

    flags = bytearray(len(ranks))
    flags[ranks.index(rank)] = 0 if difference is None else 1
    reduce_bytes(world, flags, Op.MAX, "flags of ranks that differ", calls)
    others = [one for one, flag in zip(ranks, flags) if flag]
    if not others:
        return
    who = ("rank " if len(others) == 1 else "ranks ") + ", ".join(map(str, others))
    detail = f": on rank {rank}, {difference}" if difference is not None else ""
    raise Error(Code.CONFIGURATION, f"{what} of {who} is not that of rank {root}{detail}",
                "build it alike on all ranks" + ("" if detail else f"; {who} can say what differs"))
