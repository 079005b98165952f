"""A communication hook for DistributedDataParallel: its buckets are averaged by bps instead of its process group."""
import contextlib
import threading
import time
from typing import Any, Dict, List, Optional, Union

import torch
import torch.distributed

from .._abi import Op
from .._ending import handed_over
from ..errors import EXIT_CODE_CONFIGURATION, Code, Error
from .operations import Handle, start
from .tensors import is_on_gpu
from .world import World, world


class CommState:
    """What one model's hook needs; make it with state(), on all ranks in the same order.

    waited_s: seconds between the end of a backward pass, when the last bucket was handed over, and the arrival of the last
    average, summed over all steps: what communication costs beyond what backward hides.
    """

    def __init__(self, place: World, run_ahead: bool) -> None:
        self._prefix = f"ddp{place.next_hook()}"
        self._run_ahead = run_ahead
        self._streams: Dict[torch.device, Any] = {}
        self._ahead: Dict[str, Handle] = {}  # whose end the host has not seen
        self._lock = threading.Lock()
        self._started: List[Handle] = []  # of this backward pass
        self._under_way = 0
        self._all_handed_over: Optional[float] = None
        self.waited_s = 0.0

    def name_of(self, bucket: torch.distributed.GradBucket, buffer: torch.Tensor) -> str:
        # DDP makes new buckets after the first step: another type or length is another tensor.
        return f"{self._prefix}.bucket{bucket.index()}.{str(buffer.dtype)[len('torch.'):]}.{buffer.numel()}"

    def started(self, handle: Handle, is_last: bool) -> None:
        """DDP waits for futures where no deadline and no signal reaches it. So backward() first comes here to wait: what is
        queued now runs before what DDP queues once the last bucket is on its way."""
        self._started.append(handle)
        if not is_last:
            return
        started, self._started = self._started, []

        def wait() -> None:
            for one in started:
                one.synchronize()

        with contextlib.suppress(RuntimeError):  # DDP's Join calls hooks outside of backward(), and waits by itself
            torch.autograd.Variable._execution_engine.queue_callback(wait)  # type: ignore[attr-defined]

    def runs_ahead(self, buffer: torch.Tensor) -> bool:
        return self._run_ahead and is_on_gpu(buffer)

    def stream_for(self, device: torch.device) -> Any:
        """On which futures wait, one after another, as DDP does: nothing else is queued there."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def went_ahead(self, name: str, handle: Handle) -> None:
        self._ahead[name] = handle

    def catch_up(self, name: str) -> None:
        """With this bucket: its last average is there. Error: that of the operation."""
        handle = self._ahead.pop(name, None)
        if handle is not None:
            handle.synchronize()

    def synchronize(self) -> None:
        """With `run_ahead`: returns when all averages are there, or raises why one will never be; then what has been
        computed since is worth nothing."""
        for name in list(self._ahead):
            self.catch_up(name)

    def handed_over(self, is_last: bool) -> None:
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


def state(process_group: Optional[torch.distributed.ProcessGroup] = None, run_ahead: bool = False) -> CommState:
    """The first argument of register_comm_hook; one for each model. process_group: that of the model; None: the default one.

    run_ahead: of models on a GPU: backward() does not wait for averages, the GPU does, so that the host queues the optimizer
    and the next forward pass meanwhile. Then an error is raised by the next backward() only, or by `synchronize()` of
    what this returns, which is to be called before the model is saved or otherwise believed.

    Code.CONFIGURATION: it is not all ranks of the job, with the same numbers, and these are what would be averaged.
    """
    place = world()
    if process_group is not None or torch.distributed.is_initialized():
        mine = place.client.rank, place.client.world_size
        theirs = torch.distributed.get_rank(process_group), torch.distributed.get_world_size(process_group)
        if mine != theirs:
            here = "is not in it" if theirs[0] < 0 else f"is rank {theirs[0]} of {theirs[1]} in it"
            raise Error(Code.CONFIGURATION, f"the process group is not the job: rank {mine[0]} of {mine[1]} {here}",
                        "the hook averages over all ranks of the job: use a group of all of them, or another hook",
                        EXIT_CODE_CONFIGURATION)
    return CommState(place, run_ahead)


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
    raises the error of an operation, also Code.DEADLINE after the client's operation_timeout, and Ctrl-C ends it. With
    `run_ahead` the future of a bucket on a GPU is complete at once, and a stream waits.
    """
    buffer = bucket.buffer()
    name = hook_state.name_of(bucket, buffer)
    hook_state.catch_up(name)
    future: Any = torch.futures.Future(devices=[buffer.device]) if is_on_gpu(buffer) else torch.futures.Future()
    handle = start(buffer, buffer, name, Op.AVERAGE, priority=bucket.index())
    hook_state.handed_over(bucket.is_last())
    if hook_state.runs_ahead(buffer):
        hook_state.went_ahead(name, handle)
        handle.then(lambda unused: hook_state.arrived())
        with torch.cuda.stream(hook_state.stream_for(buffer.device)):
            handle.wait_stream()
            future.set_result(buffer)  # the future waits for what is queued on the current stream
        return future  # type: ignore[no-any-return]
    hook_state.started(handle, bucket.is_last())

    def complete(error: Optional[Error]) -> None:
        hook_state.arrived()
        future.set_result(buffer if error is None else error)

    handle.then(complete)
    return future.then(_checked)
