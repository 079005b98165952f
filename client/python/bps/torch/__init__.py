"""bps for PyTorch. Names and calls follow Horovod and BytePS; client/python/README.md lists what of theirs is here.

    import bps.torch as hvd                                       was: import horovod.torch as hvd
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

A program that uses DistributedDataParallel gets one line (and bps.torch.init()):

    ddp.register_comm_hook(bps.torch.state(), bps.torch.comm_hook)

And one that uses torch.distributed asks for another backend, with torch 2.6 or later:

    torch.distributed.init_process_group("bps")

All of it works on CPU tensors and on tensors of one CUDA GPU, of any shape and stride; contiguous ones go without a copy. Every
function may raise bps.Error; all ranks must call them in the same order, as with every such library.
"""
from .._abi import Op
from ..errors import Code, Error
from . import backend as _backend
from .broadcast import (broadcast, broadcast_, broadcast_object, broadcast_optimizer_state, broadcast_parameters)
from .hook import CommState, comm_hook, state
from .operations import (Compression, Handle, allreduce, allreduce_, allreduce_async, allreduce_async_, poll, push_pull,
                         push_pull_, push_pull_async, push_pull_async_, synchronize)
from .optimizer import DistributedOptimizer
from .process_group import init_process_group
from .world import barrier, client, init, is_initialized, local_rank, local_size, rank, shutdown, size

_backend.register()

Sum = Op.SUM
Average = Op.AVERAGE
Min = Op.MIN
Max = Op.MAX
Product = Op.PRODUCT

__all__ = [
    "Average", "Code", "CommState", "Compression", "DistributedOptimizer", "Error", "Handle", "Max", "Min", "Op", "Product",
    "Sum", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "barrier", "broadcast", "broadcast_",
    "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "client", "comm_hook", "init", "init_process_group",
    "is_initialized", "local_rank", "local_size", "poll", "push_pull", "push_pull_", "push_pull_async",
    "push_pull_async_", "rank", "shutdown", "size", "state", "synchronize",
]
