"""bps for PyTorch. Names and calls are those of Horovod and BytePS; client/python/from_horovod.md says what differs.

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
from . import elastic
from .about import (ccl_built, cross_rank, cross_size, cuda_built, ddl_built, gloo_built, gloo_enabled, is_homogeneous, mpi_built,
                    mpi_enabled, mpi_threads_supported, nccl_built, rocm_built, start_timeline, stop_timeline)
from .broadcast import (allgather_object, broadcast, broadcast_, broadcast_async, broadcast_async_, broadcast_object,
                        broadcast_optimizer_state, broadcast_parameters)
from .compression import Compression
from .gathering import (allgather, allgather_async, alltoall, alltoall_async, reducescatter, reducescatter_async,
                        sparse_allreduce_async)
from .grouped import (grouped_allgather, grouped_allgather_async, grouped_allreduce, grouped_allreduce_, grouped_allreduce_async,
                      grouped_allreduce_async_, grouped_reducescatter, grouped_reducescatter_async)
from .handles import Handle
from .hook import CommState, comm_hook, state
from .joining import join
from .operations import (Adasum, allreduce, allreduce_, allreduce_async, allreduce_async_, declare, poll, push_pull, push_pull_,
                         push_pull_async, push_pull_async_, push_pull_async_inplace, push_pull_inplace, synchronize)
from .optimizer import DistributedOptimizer
from .process_group import init_process_group
from .process_sets import ProcessSet, add_process_set, barrier, global_process_set, init, remove_process_set, shutdown
from .sync_batch_norm import SyncBatchNorm
from .world import client, is_initialized, local_rank, local_size, rank, size

_backend.register()

Sum = Op.SUM
Average = Op.AVERAGE
Min = Op.MIN
Max = Op.MAX
Product = Op.PRODUCT

HorovodInternalError = Error

__all__ = [
    "Adasum", "Average", "Code", "CommState", "Compression", "DistributedOptimizer", "Error", "Handle", "HorovodInternalError",
    "Max", "Min", "Op", "ProcessSet", "Product", "Sum", "SyncBatchNorm", "add_process_set", "allgather", "allgather_async",
    "allgather_object", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier",
    "broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "ccl_built", "client", "comm_hook", "cross_rank", "cross_size", "cuda_built", "ddl_built", "declare",
    "elastic", "global_process_set", "gloo_built", "gloo_enabled", "grouped_allgather", "grouped_allgather_async",
    "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "init", "init_process_group", "is_homogeneous", "is_initialized", "join", "local_rank",
    "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "poll", "push_pull", "push_pull_",
    "push_pull_async", "push_pull_async_", "push_pull_async_inplace", "push_pull_inplace", "rank", "reducescatter",
    "reducescatter_async", "remove_process_set", "rocm_built", "shutdown", "size", "sparse_allreduce_async", "start_timeline",
    "state", "stop_timeline", "synchronize",
]
