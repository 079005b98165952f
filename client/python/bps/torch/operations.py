"""push_pull of tensors: under BytePS's names, and under Horovod's (allreduce)."""
import threading
import time
from typing import Any, Optional

import torch

from .. import handle as bps_handle
from .._abi import Op
from ..errors import Code, Error, invalid
from .tensors import check_place, dtype_of, is_on_gpu, is_plain, memory_of_tensor, will_be_used_here
from .world import World, world

_LONGEST_PAUSE_S = 0.002  # of a wait that has to ask: so late it may hear of the end


class Handle:
    """A push_pull that is under way; give it to synchronize(). `tensor`: where its result goes."""

    def __init__(self, tensor: torch.Tensor, operation: bps_handle.Handle, staging: Optional[torch.Tensor],
                 unnamed: Optional[str], place: World) -> None:
        self.tensor = tensor
        self._operation = operation
        self._staging = staging
        self._copied: Any = None  # the torch.cuda.Event after the copy out of `staging`
        self._unstaging = threading.Lock()
        self._unnamed = unnamed
        self._world = place

    def poll(self) -> bool:
        return self._operation.poll()

    def then(self, function: bps_handle.Callback) -> None:
        """See bps.Handle.then. Only tensors that need no copy are complete inside the function."""
        self._operation.then(function)

    def wait_stream(self) -> torch.Tensor:
        """Lets PyTorch's current stream wait for the result; for tensors on a GPU. The call blocks until the last copy is
        queued. It does not check the result: call synchronize() before you use what was computed from it. See
        bps.Handle.wait_stream."""
        if not is_on_gpu(self.tensor):
            raise invalid("a stream is to wait for a tensor that is not on a GPU", "call synchronize()")
        self._operation.wait_stream(torch.cuda.current_stream(self.tensor.device).cuda_stream)
        self.place_here()
        will_be_used_here(self.tensor)
        return self.tensor

    def place_here(self) -> None:
        """Of an operation that has ended, or that the current stream waits for: what is queued from now on on that stream
        finds the result in `tensor`."""
        self._unstage()
        if self._copied is not None:
            torch.cuda.current_stream(self.tensor.device).wait_event(self._copied)

    def synchronize(self) -> torch.Tensor:
        """Waits, also of a tensor on a GPU on the host; afterwards the name may be used again. Error: that of the
        operation; Code.DEADLINE, and it may be called again."""
        self._operation.wait()
        self._unstage()
        self._wait_for_copy()
        if self._unnamed is not None:
            self._world.release_unnamed(self._unnamed)
            self._unnamed = None
        return self.tensor

    def _wait_for_copy(self) -> None:
        """What the program has queued on the stream before may take any time, and PyTorch waits for an event without a
        deadline: so the event is asked, ever less often. Ctrl-C ends it."""
        if self._copied is None:
            return
        timeout_s, pause_s = self._world.operation_timeout_s, 20e-6
        deadline = time.monotonic() + timeout_s
        while not self._copied.query():  # raises what has gone wrong with the GPU
            if time.monotonic() >= deadline:
                name = self._operation.tensor.name
                raise Error(Code.DEADLINE, f"waited {timeout_s:.3g} s for the copy of {name} to its place: the stream that "
                            "copies has not done what was queued on it before",
                            "the operation has ended well: look at what the program computes there, and call synchronize() "
                            "again")
            threading.Event().wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _unstage(self) -> None:
        """Of a tensor on a GPU the copy is queued on the current stream, and whoever else uses the result waits for it. DDP's
        hook comes here in two threads."""
        with self._unstaging:
            if self._staging is None:
                return
            with torch.no_grad():
                self.tensor.copy_(self._staging)
            if is_on_gpu(self.tensor):
                will_be_used_here(self._staging)
                self._copied = torch.cuda.Event()
                self._copied.record(torch.cuda.current_stream(self.tensor.device))
            self._staging = None


class Compression:
    """The type that floating point gradients travel as; they are added in f32 all the same."""

    none: Optional[torch.dtype] = None
    fp16: Optional[torch.dtype] = torch.float16
    bf16: Optional[torch.dtype] = torch.bfloat16


def start(source: torch.Tensor, target: Optional[torch.Tensor], name: Optional[str], op: Op, priority: int = 0,
          compression: Optional[torch.dtype] = None) -> Handle:
    """Starts to reduce `source` of all ranks into `target`, which may be the same tensor; None: into a new one. With
    `compression` a copy of that type travels, and the result is copied back."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"the name of a tensor is a string, not {name!r}")
    place = world()
    what = name or "the tensor"
    check_place(source, what)
    dtype = dtype_of(source, what)
    source = source.detach()
    if target is None:
        target = torch.empty_like(source, memory_format=torch.contiguous_format)
    target = target.detach()
    given = source
    if compression is not None and source.is_floating_point() and source.dtype != compression:
        given = source.to(compression, memory_format=torch.contiguous_format)
        dtype = dtype_of(given, what)
    elif not is_plain(source):
        given = source.clone(memory_format=torch.contiguous_format)
    staging = None
    if given is not source:
        staging = given if given.dtype != target.dtype or not is_plain(target) else None
    elif not is_plain(target):
        staging = torch.empty_like(source, memory_format=torch.contiguous_format)
    output = target if staging is None else staging
    if name is None and priority == 0 and place.calls_without_names and not is_on_gpu(given):
        operation = place.client.world.push_pull(memory_of_tensor(given), memory_of_tensor(output), op)
        return Handle(target, operation, staging, None, place)
    unnamed = None if name is not None else place.take_unnamed(f"{dtype.name.lower()}.{source.numel()}")
    try:
        tensor = place.tensor(name or unnamed or "", dtype, source.numel(), priority)
        operation = place.client.push_pull(tensor, memory_of_tensor(given), memory_of_tensor(output), op)
    except BaseException:
        if unnamed is not None:
            place.release_unnamed(unnamed)
        raise
    return Handle(target, operation, staging, unnamed, place)


class _Reduced(torch.autograd.Function):
    """A push_pull that gradients flow back through: they are reduced alike."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, name: Optional[str], op: Op, priority: int,
                compression: Optional[torch.dtype]) -> torch.Tensor:
        context.how = None if name is None else f"{name}.gradient", op, priority, compression
        return _reduced(tensor, name, op, priority, compression)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        op = context.how[1]
        if op not in (Op.SUM, Op.AVERAGE):
            raise invalid(f"no gradient flows back through {op.name.lower()} of all ranks", "detach() what it gives")
        return (_reduced(gradient, *context.how), None, None, None, None)


def _reduced(tensor: torch.Tensor, name: Optional[str], op: Op, priority: int = 0,
             compression: Optional[torch.dtype] = None) -> torch.Tensor:
    """Into a new tensor, which belongs to the graph of `tensor`, if there is one."""
    check_place(tensor, name or "the tensor")
    if tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = _Reduced.apply(tensor, name, op, priority, compression)  # type: ignore[no-untyped-call]
        return result
    return start(tensor, None, name, op, priority, compression).synchronize()


def _op(average: Optional[bool], op: Optional[Op]) -> Op:
    if op is not None:
        return Op(op)
    return Op.SUM if average is False else Op.AVERAGE


# ---- BytePS's names ----


def push_pull_async(tensor: torch.Tensor, name: Optional[str] = None, average: bool = True, priority: int = 0) -> Handle:
    """Starts to average (or add up) `tensor` of all ranks into a new tensor, which synchronize() returns.

    name: equal on all ranks, one operation at a time; without one, ranks must call in the same order. priority: higher
    goes first. No gradient flows back through it.
    """
    return start(tensor, None, name, _op(average, None), priority)


def push_pull_async_(tensor: torch.Tensor, name: Optional[str] = None, average: bool = True, priority: int = 0) -> Handle:
    """As push_pull_async, in place; the tensor must be left alone until synchronize()."""
    return start(tensor, tensor, name, _op(average, None), priority)


def push_pull(tensor: torch.Tensor, name: Optional[str] = None, average: bool = True, priority: int = 0) -> torch.Tensor:
    """The average (or sum) of all ranks' `tensor`, as a new tensor. A gradient that flows back through it is averaged (or
    added up) alike, so all ranks must let one, in the same order."""
    return _reduced(tensor, name, _op(average, None), priority)


def push_pull_(tensor: torch.Tensor, name: Optional[str] = None, average: bool = True, priority: int = 0) -> torch.Tensor:
    """As push_pull, in place."""
    return push_pull_async_(tensor, name, average, priority).synchronize()


def poll(handle: Handle) -> bool:
    """Has it ended? Then synchronize() does not wait."""
    return handle.poll()


def synchronize(handle: Handle) -> torch.Tensor:
    """Waits for the operation and returns its result. Ctrl-C ends the wait, not the operation."""
    return handle.synchronize()


# ---- Horovod's names ----


def allreduce_async(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
                    compression: Optional[torch.dtype] = None, op: Optional[Op] = None) -> Handle:
    return start(tensor, None, name, _op(average, op), compression=compression)


def allreduce_async_(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
                     op: Optional[Op] = None) -> Handle:
    return start(tensor, tensor, name, _op(average, op))


def allreduce(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
              compression: Optional[torch.dtype] = None, op: Optional[Op] = None) -> torch.Tensor:
    """As push_pull, with any operation; gradients flow back through Sum and Average."""
    return _reduced(tensor, name, _op(average, op), compression=compression)


def allreduce_(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
               op: Optional[Op] = None) -> torch.Tensor:
    return allreduce_async_(tensor, average, name, op).synchronize()
