"""DistributedOptimizer as programs of Horovod and BytePS make it: with their compressors, and with the names that they read."""
import functools
from typing import Any

import torch

from . import optimizer as distributed
from .compression import wire_dtype_of


@functools.wraps(distributed.DistributedOptimizer)
def DistributedOptimizer(optimizer: torch.optim.Optimizer, named_parameters: Any = None,  # noqa: N802, the name that scripts use
                         compression: Any = None, *arguments: Any, **options: Any) -> Any:
    made = distributed.DistributedOptimizer(optimizer, named_parameters, wire_dtype_of(compression), *arguments, **options)
    made._parameter_names = made._exchange._names
    return made
