"""Sparse tensors (COO) of all ranks, added up.

Ranks have other places, so places and values are gathered, and added on each rank, at the price of the bytes of all ranks: in
rank order, f16 and bf16 in f32 and rounded once, so the sum is the same bit by bit on all ranks. It is coalesced.
"""
import math
from typing import Any, List, Sequence

import torch

from .. import handle as bps_handle
from ..errors import invalid
from ..group import Group
from .tensors import dtype_of, memory_of_tensor

_INDEX_BYTES = 8


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of its places and values, on the host."""
    tensor = tensor.detach().coalesce()
    parts = [tensor.indices(), tensor.values()]
    return torch.cat([part.cpu().contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8) for part in parts])


def added(parts: Sequence[Any], like: torch.Tensor, divisor: int = 1) -> torch.Tensor:
    """The sum of what all ranks have packed, by `divisor`; of the type, shape and device of `like`, and as many sparse dimensions.
    parts: buffers of bytes."""
    depth = like.sparse_dim()
    row_shape = like.shape[depth:]
    row = math.prod(row_shape)
    bytes_of_entry = depth * _INDEX_BYTES + row * like.element_size()
    strides = [math.prod(like.shape[dimension + 1:depth]) for dimension in range(depth)]
    places: List[torch.Tensor] = []
    values: List[torch.Tensor] = []
    for part in parts:
        count = len(part) // bytes_of_entry if bytes_of_entry else 0
        if count == 0:  # torch.frombuffer takes no empty one
            continue
        indices = torch.frombuffer(part, dtype=torch.int64, count=depth * count).reshape(depth, count)
        places.append((indices * torch.tensor(strides).reshape(depth, 1)).sum(0))
        values.append(torch.frombuffer(part, dtype=like.dtype, count=row * count, offset=depth * _INDEX_BYTES * count)
                      .reshape(count, *row_shape) if row else torch.empty((count, *row_shape), dtype=like.dtype))
    used, where = torch.unique(torch.cat(places or [torch.empty(0, dtype=torch.int64)]), return_inverse=True)
    wide = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
    total = torch.zeros((len(used), *row_shape), dtype=wide)
    for place, value in zip(where.split([len(one) for one in places]) if places else (), values):
        total.index_add_(0, place, value.to(wide))
    if divisor != 1:
        is_whole = not (total.is_floating_point() or total.is_complex())
        total = torch.div(total, divisor, rounding_mode="trunc" if is_whole else None)
    indices = torch.stack([used // stride % size for stride, size in zip(strides, like.shape)])
    return torch.sparse_coo_tensor(indices, total.to(like.dtype), like.shape, device=like.device)._coalesced_(True)


class SparseSum:
    """Of a gradient, under way on a group. Its ranks agree on `sparse_dim`."""

    def __init__(self, group: Group, gradient: torch.Tensor, sparse_dim: int, what: str, divisor: int) -> None:
        gradient = gradient.detach()
        if not gradient.is_sparse:
            gradient = gradient.to_sparse(sparse_dim)
        elif gradient.sparse_dim() != sparse_dim:
            gradient = gradient.to_dense().to_sparse(sparse_dim)
        dtype_of(gradient._values(), what)
        if not gradient.is_floating_point():
            raise invalid(f"{what} is sparse and has elements of {gradient.dtype}", "sparse gradients are of floats")
        self._gradient = gradient
        self._divisor = divisor
        self._handle: bps_handle.Handle = group.all_gather(memory_of_tensor(packed(gradient)))

    def synchronize(self) -> torch.Tensor:
        self._handle.wait()
        return added(self._handle.parts(), self._gradient, self._divisor)
