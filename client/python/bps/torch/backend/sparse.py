"""all_reduce of sparse tensors (COO)."""
from typing import Any

import torch
from torch.distributed import ReduceOp

from ...handle import Handle
from ..sparse import added, packed
from .reductions import Signature


class SparseAllReduce:
    """Of one tensor of this rank, which takes the sum."""

    def __init__(self, tensor: torch.Tensor, op: Any) -> None:
        """TypeError: op is not SUM."""
        if op != ReduceOp.SUM:
            raise TypeError("bps adds sparse tensors up (SUM), and does nothing else with them; to_dense() makes a dense one")
        self._tensor = tensor
        self._signature = Signature(f"all_reduce of sparse {tensor.dtype} {tuple(tensor.shape)}, {tensor.sparse_dim()} sparse")

    def message(self) -> torch.Tensor:
        return torch.cat([self._signature.bytes, packed(self._tensor)])

    def finish(self, gathered: Handle) -> None:
        """gathered: the messages of all ranks. DistBackendError: they are not those of one call."""
        messages = gathered.parts()
        self._signature.check([torch.frombuffer(one, dtype=torch.uint8) for one in messages])
        with torch.no_grad():
            self._tensor.copy_(added([one[self._signature.length:] for one in messages], self._tensor))
