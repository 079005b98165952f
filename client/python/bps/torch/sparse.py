"""Sparse tensors (COO) of all ranks, added up.

Ranks have other places, so places and values are gathered, and added on each rank, at the price of the bytes of all ranks: in
rank order, f16 and bf16 in f32 and rounded once, so the sum is the same bit by bit on all ranks. It is coalesced.
"""
import math
from typing import Any, List, Sequence

import torch

_INDEX_BYTES = 8
# What sums are made in, so that an average of them does not overflow.
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.int8: torch.int64, torch.uint8: torch.int64,
         torch.int16: torch.int64, torch.int32: torch.int64}


def as_sparse(tensor: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """With so many sparse dimensions."""
    if not tensor.is_sparse:
        return tensor.to_sparse(sparse_dim)
    return tensor if tensor.sparse_dim() == sparse_dim else tensor.to_dense().to_sparse(sparse_dim)


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
    wide = _WIDE.get(like.dtype, like.dtype)
    total = torch.zeros((len(used), *row_shape), dtype=wide)
    for place, value in zip(where.split([len(one) for one in places]) if places else (), values):
        total.index_add_(0, place, value.to(wide))
    if divisor != 1:
        is_whole = not (total.is_floating_point() or total.is_complex())
        total = torch.div(total, divisor, rounding_mode="trunc" if is_whole else None)
    indices = torch.stack([used // stride % size for stride, size in zip(strides, like.shape)])
    checked = {"check_invariants": False} if "check_invariants" in (torch.sparse_coo_tensor.__doc__ or "") else {}  # torch 2.0
    return torch.sparse_coo_tensor(indices, total.to(like.dtype), like.shape, device=like.device, **checked)._coalesced_(True)
