"""A communication hook for DistributedDataParallel: its buckets are averaged by bps instead of its process group."""
import contextlib
import threading
import time
from typing import Any, List, Optional, Set, Union

import torch
import torch.distributed

from .._abi import Op
from .._ending import handed_over
from ..errors import Code, Error, invalid
from .compression import wire_dtype_of
from .handles import TensorHandle
from .operations import start_declared
from .tensors import is_on_gpu
from .world import World, world


class CommState:
    """What one model's hook needs; make it with state(), on all ranks in the same order.

    waited_s: seconds between the end of a backward pass, when the last bucket was handed over, and the arrival of the last
    average, summed over all steps: what communication costs beyond what backward hides.
    """

    def __init__(self, place: World, compression: Optional[torch.dtype] = None) -> None:
        self.compression = compression
        self._prefix = f"ddp{place.next_hook()}"
        self._names: Set[str] = set()
        place.drop_with(self, self._names)
        self._lock = threading.Lock()
        self._started: List[TensorHandle] = []  # of this backward pass
        self._under_way = 0
        self._all_handed_over: Optional[float] = None
        self.waited_s = 0.0

    def name_of(self, bucket: torch.distributed.GradBucket, buffer: torch.Tensor) -> str:
        # DDP makes new buckets after the first step: another type or length is another tensor.
        name = f"{self._prefix}.bucket{bucket.index()}.{str(buffer.dtype)[len('torch.'):]}.{buffer.numel()}"
        self._names.add(name)
        return name

    def started(self, handle: TensorHandle, is_last: bool) -> None:
        """DDP waits for futures where no deadline and no signal reaches it. So backward() first comes here to wait: what is
        queued now runs before what DDP queues once the last bucket is on its way. Of a model on the host that is the thread
        which called backward(); of one on a GPU it is that of the device, to which Ctrl-C does not come."""
        self._started.append(handle)
        if not is_last:
            return
        started, self._started = self._started, []

        def wait() -> None:
            for one in started:
                one.synchronize()

        with contextlib.suppress(RuntimeError):  # DDP's Join calls hooks outside of backward(), and waits by itself
            torch.autograd.Variable._execution_engine.queue_callback(wait)  # type: ignore[attr-defined]

    def count_bucket(self, is_last: bool) -> None:
        with self._lock:
            self._under_way += 1
            if is_last:
                self._all_handed_over = time.monotonic()

    def arrived(self) -> None:
        with self._lock:
            self._under_way -= 1
            if self._under_way == 0 and self._all_handed_over is not None:
                self.waited_s += time.monotonic() - self._all_handed_over
                self._all_handed_over = None


def state(process_group: Optional[torch.distributed.ProcessGroup] = None, *,
          compression: Any = None) -> CommState:
    """The first argument of register_comm_hook; one for each model. process_group: that of the model; None: the default one.
    compression: Compression.fp16 or bf16, what f32 travels as, for half the traffic, at the price of a copy of each bucket.

    Code.CONFIGURATION: it is not all ranks of the job, with the same numbers, and these are what would be averaged.
    """
    place = world()
    dtype = wire_dtype_of(compression)
    if dtype not in (None, torch.float16, torch.bfloat16):
        raise invalid(f"compression={compression}", "give Compression.fp16, bf16 or none")
    if process_group is not None or torch.distributed.is_initialized():
        mine = place.client.rank, place.client.world_size
        theirs = torch.distributed.get_rank(process_group), torch.distributed.get_world_size(process_group)
        if mine != theirs:
            here = "is not in it" if theirs[0] < 0 else f"is rank {theirs[0]} of {theirs[1]} in it"
            raise Error(Code.CONFIGURATION, f"the process group is not the job: rank {mine[0]} of {mine[1]} {here}",
                        "the hook averages over all ranks of the job: use a group of all of them, or another hook")
    return CommState(place, dtype)


def _checked(future: Any) -> torch.Tensor:
    """Raises inside then(), which is how a failure reaches those who wait for a future outside of Python, as DDP does."""
    result: Union[torch.Tensor, Error] = future.value()
    if isinstance(result, Error):
        handed_over(result)
        raise result
    return result


# DDP looks at the annotations and wants these.
def comm_hook(hook_state: CommState, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """`ddp.register_comm_hook(bps.torch.state(), bps.torch.comm_hook)`: averages a bucket over all ranks, in place.

    The future that DDP waits for is completed by the thread of bps on which callbacks run, so nobody polls. backward()
    raises the error of an operation, also Code.DEADLINE after the client's operation_timeout; of models on the host, Ctrl-C
    ends it, too. It waits on the host, also of a model on a GPU: so a failed step is an error before it is used.
    """
    buffer = bucket.buffer()
    future: Any = torch.futures.Future(devices=[buffer.device]) if is_on_gpu(buffer) else torch.futures.Future()
    handle = start_declared(buffer, buffer, hook_state.name_of(bucket, buffer), Op.AVERAGE, priority=bucket.index(),
                            compression=hook_state.compression if buffer.dtype == torch.float32 else None)
    hook_state.count_bucket(bucket.is_last())
    hook_state.started(handle, bucket.is_last())

    def complete(error: Optional[Error]) -> None:
        hook_state.arrived()
        if error is None:
            handle.place_here()
        future.set_result(buffer if error is None else error)

    handle.then(complete)
    return future.then(_checked)
