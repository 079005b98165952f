"""DistributedOptimizer with the compressors that programs give it."""
import functools
from typing import Any

import torch

from . import optimizer as distributed
from .compression import wire_dtype_of


@functools.wraps(distributed.DistributedOptimizer)
def DistributedOptimizer(optimizer: torch.optim.Optimizer, named_parameters: Any = None,  # noqa: N802, the name that scripts use
                         compression: Any = None, *arguments: Any, **options: Any) -> Any:
    return distributed.DistributedOptimizer(optimizer, named_parameters, wire_dtype_of(compression), *arguments, **options)
