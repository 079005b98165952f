"""all_reduce of sparse tensors (COO).

Ranks give different places, so all places and values are gathered, and added up on each rank, in rank order, at the price of
the bytes of all ranks.
"""
from typing import Any, List

import torch
from torch.distributed import ReduceOp

from ...handle import Handle
from . import buffers
from .reductions import Signature

_COUNT = 8  # bytes of it


class SparseSum:
    """Of one tensor of this rank, which takes the sum."""

    def __init__(self, tensor: torch.Tensor, op: Any) -> None:
        """TypeError: op is not SUM."""
        if op != ReduceOp.SUM:
            raise TypeError("bps adds sparse tensors up (SUM), and does nothing else with them; to_dense() makes a dense one")
        self._tensor = tensor
        self._signature = Signature(f"all_reduce of sparse {tensor.dtype} {tuple(tensor.shape)}, {tensor.sparse_dim()} sparse")

    def message(self) -> torch.Tensor:
        """What the others need: the signature, the number of places, the places, the values."""
        given = self._tensor.detach().coalesce().cpu()
        count = torch.tensor([given.values().shape[0]])
        return torch.cat([self._signature.bytes] + [buffers.as_bytes(buffers.source(one))
                                                    for one in (count, given.indices(), given.values())])

    def finish(self, gathered: Handle) -> None:
        """gathered: the messages of all ranks. DistBackendError: they are not those of one call."""
        received = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in gathered.parts()]
        self._signature.check(received)
        places: List[torch.Tensor] = []
        values: List[torch.Tensor] = []
        dimensions, shape = self._tensor.sparse_dim(), list(self._tensor.shape)
        for message in received:
            rest = message[self._signature.length:]
            count = int(rest[:_COUNT].clone().view(torch.int64))
            end = _COUNT + count * dimensions * _COUNT
            places.append(rest[_COUNT:end].clone().view(torch.int64).view(dimensions, count))
            values.append(rest[end:].clone().view(self._tensor.dtype).view([count] + shape[dimensions:]))
        total = torch.sparse_coo_tensor(torch.cat(places, 1), torch.cat(values), shape, check_invariants=True).coalesce()
        with torch.no_grad():
            self._tensor.copy_(total)
