"""Sparse tensors: those of all ranks, one after the other, which is their sum."""
from typing import Any, List, Optional

import torch

from .._abi import Op
from ..errors import invalid
from .gathering import allgather_async
from .handles import Derived
from .operations import checked_op
from .process_sets import ProcessSet, calls_of, global_process_set


def sparse_allreduce_async(tensor: torch.Tensor, name: Optional[str] = None, op: Op = Op.AVERAGE,
                           process_set: ProcessSet = global_process_set) -> Derived:
    """Starts to add up, or to average, sparse tensors of the same shape and any number of elements. Call what it returns, as
    with Horovod, or give it to synchronize(): that gives a sparse tensor, which is not coalesced. Indices and values are
    gathered, so each rank takes as much as all ranks have."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
        raise invalid(f"{name or 'the tensor'} is no sparse tensor", "use allreduce")
    if checked_op(None, op) not in (Op.SUM, Op.AVERAGE):
        raise invalid(f"{op!r} of sparse tensors", "use Sum or Average")
    tensor = tensor.detach()
    indices, values = tensor._indices(), tensor._values()
    ranks = calls_of(process_set).size
    shape = tensor.shape
    handles = [allgather_async(part, None if name is None else f"{name}.{what}", process_set)
               for part, what in ((indices.t().contiguous(), "indices"), (values, "values"))]

    def finish(results: List[Any]) -> torch.Tensor:
        gathered, numbers = results
        if op == Op.AVERAGE:
            numbers = numbers / ranks
        return torch.sparse_coo_tensor(gathered.t(), numbers, shape)

    return Derived(handles, finish)
