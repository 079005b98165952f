"""BytePS's byteps.torch.parallel."""
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from .compression import Compression
from .hook import comm_hook, state
from .process_group import init_process_group
from .world import world


class DistributedDataParallel(TorchDDP):
    """PyTorch's, whose gradients are averaged by bps over all ranks of the job. It makes PyTorch's process group if there is
    none: see init_process_group(). What the model has on rank 0 is where all ranks begin. device_ids: for a model on a GPU."""

    def __init__(self, module: torch.nn.Module, device_ids: Any = None, broadcast_buffers: bool = True,
                 compression: Any = Compression.none) -> None:
        world()
        if not torch.distributed.is_initialized():
            init_process_group()
        is_on_host = all(parameter.device.type == "cpu" for parameter in module.parameters())
        given = {} if broadcast_buffers else {"broadcast_buffers": False}  # newer PyTorch warns of it, where it is given
        super().__init__(module, None if is_on_host else device_ids, **given)
        self.register_comm_hook(state(self.process_group, compression=compression), comm_hook)
