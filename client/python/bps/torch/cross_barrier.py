"""BytePS's byteps.torch.cross_barrier: bps.torch, and an optimizer that does not wait at a step's end.

    import bps.torch.cross_barrier as bps                         was: import byteps.torch.cross_barrier as bps
"""
from typing import Any

import torch

from . import *  # noqa: F401,F403: all of it belongs to BytePS's module, too
from . import Compression, DistributedOptimizer


def CrossBarrier(model: torch.nn.Module, optimizer: torch.optim.Optimizer, named_parameters: Any = None,  # noqa: N802
                 compression: Any = Compression.none, backward_passes_per_step: int = 1, num_steps: int = 10**6) -> Any:
    """DistributedOptimizer(model=model). num_steps: BytePS's, not needed: after the last step call synchronize(), or
    state_dict() of the model, which do the updates that are still to come."""
    return DistributedOptimizer(optimizer, named_parameters, compression, backward_passes_per_step, model=model)
