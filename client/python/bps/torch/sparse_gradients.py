"""Sparse gradients, as those of torch.nn.Embedding(sparse=True): ranks exchange the rows that they have, of any number."""
import math
from typing import List

import torch

from .._abi import Op
from ..errors import invalid
from .agreement import Members
from .tensors import dtype_of, memory_of_tensor

_INDEX_BYTES = 8


class SparseSum:
    """A sum or average of sparse gradients under way; a group of its own gathers indices and values.

    Rows are added in rank order, f16 and bf16 in f32 and rounded once, so the result is the same bit by bit on all ranks. It
    is coalesced.
    """

    def __init__(self, members: Members, gradient: torch.Tensor, sparse_dim: int, what: str, op: Op) -> None:
        if not gradient.is_sparse:
            gradient = gradient.detach().to_sparse(sparse_dim)
        elif gradient.sparse_dim() != sparse_dim:
            gradient = gradient.detach().to_dense().to_sparse(sparse_dim)
        gradient = gradient.detach().coalesce()
        dtype_of(gradient.values(), what)
        if not gradient.is_floating_point():
            raise invalid(f"{what} is sparse and has elements of {gradient.dtype}", "sparse gradients are of floats")
        self._members = members
        self._gradient = gradient
        self._op = op
        parts = [gradient.indices(), gradient.values()]
        rows = torch.cat([part.cpu().contiguous().reshape(-1).view(torch.uint8) for part in parts])
        self._handle = members.group.all_gather(memory_of_tensor(rows))

    def synchronize(self) -> torch.Tensor:
        self._handle.wait()
        like, depth = self._gradient, self._gradient.sparse_dim()
        row_shape = like.shape[depth:]
        row = math.prod(row_shape)
        bytes_of_entry = depth * _INDEX_BYTES + row * like.element_size()
        places: List[torch.Tensor] = []
        values: List[torch.Tensor] = []
        strides = [math.prod(like.shape[dimension + 1:depth]) for dimension in range(depth)]
        for part in self._handle.parts():
            count = len(part) // bytes_of_entry
            if count == 0:  # torch.frombuffer takes no empty one
                continue
            indices = torch.frombuffer(part, dtype=torch.int64, count=depth * count).reshape(depth, count)
            places.append((indices * torch.tensor(strides).reshape(depth, 1)).sum(0))
            values.append(torch.frombuffer(part, dtype=like.dtype, count=row * count, offset=depth * _INDEX_BYTES * count)
                          .reshape(count, *row_shape) if row else like.new_empty((count, *row_shape), device="cpu"))
        used, where = torch.unique(torch.cat(places or [torch.empty(0, dtype=torch.int64)]), return_inverse=True)
        wide = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
        total = torch.zeros((len(used), *row_shape), dtype=wide)
        for place, value in zip(where.split([len(one) for one in places]) if places else (), values):
            total.index_add_(0, place, value.to(wide))
        if self._op == Op.AVERAGE:
            total /= self._members.size
        indices = torch.stack([used // stride % size for stride, size in zip(strides, like.shape)])
        return torch.sparse_coo_tensor(indices, total.to(like.dtype), like.shape, device=like.device)._coalesced_(True)
