"""A call of a process group that is under way."""
import contextlib
import threading
import time
from typing import Any, Callable, List, Optional, Sequence

import torch
import torch.distributed as dist

from ...errors import Code, Error
from ...handle import Handle
from .buffers import Finish
from .deadlines import deadlines

_NETWORK = (Code.UNREACHABLE, Code.PROTOCOL)
# The advice of the library names calls that a program of torch does not make.
_LEFT = "look at how that rank has ended; if it had less data: DistributedDataParallel has join()"
_DIFFERS = "ranks make the same calls, in the same order; to go on, make a new group: torch.distributed.new_group"


def as_torch_error(error: Error, what: str, is_of_call: bool = True) -> BaseException:
    """With our text."""
    if error.code == Code.INVALID_ARGUMENT:
        return ValueError(f"{what}: {error}")
    kind = dist.DistNetworkError if error.code in _NETWORK else dist.DistBackendError
    advice = _LEFT if "has left the job" in error.message else _DIFFERS
    text = f"{error.message} ({advice})" if is_of_call and error.code == Code.CONFIGURATION else str(error)
    converted = kind(f"{what}: {text}")
    converted.__cause__ = error
    return converted


class torch_errors:  # noqa: N801: a context manager, as those of contextlib
    """Errors of bps leave it as those of torch."""

    def __init__(self, what: str, is_of_call: bool = True) -> None:
        self._what = what
        self._is_of_call = is_of_call

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, exception: Any, trace: Any) -> None:
        if isinstance(exception, Error):
            raise as_torch_error(exception, self._what, self._is_of_call) from exception


class Call:
    """Operations of bps, what is left to do when all have ended well, and what came out.

    Ends once: with a result, or with an error, which every later wait raises again. Its futures end with it. Any thread may
    wait.
    """

    def __init__(self, what: str, timeout_s: float, on_timeout: Callable[[BaseException], None]) -> None:
        self.what = what
        self.results: List[Any] = []  # tensors, or a list of them
        self.error: Optional[BaseException] = None
        self.is_over = False
        self.timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._on_timeout = on_timeout
        self._handles: Sequence[Handle] = ()
        self._finishes: List[Finish] = []
        self._futures: List[Any] = []
        self._lock = threading.Lock()

    def start(self, handles: Sequence[Handle], results: Sequence[torch.Tensor], finishes: Sequence[Optional[Finish]] = ()) -> "Call":
        self._handles = handles
        self.results = list(results)
        self._finishes = [one for one in finishes if one is not None]
        return self

    def start_all(self, calls: "Sequence[Call]") -> "Call":
        """As one, which is waited for instead of them."""
        return self.start([handle for call in calls for handle in call._handles],
                          [result for call in calls for result in call.results],
                          [finish for call in calls for finish in call._finishes])

    def left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def poll(self) -> bool:
        """Has it ended, also by an error?"""
        if not self.is_over and all(handle.poll() for handle in self._handles):
            with contextlib.suppress(Exception):
                self.wait()
        return self.is_over

    def wait(self, timeout_s: Optional[float] = None) -> None:
        """Raises what went wrong, as an error of torch. timeout_s: shorter than the call's own; nothing ends with it."""
        if not self.is_over:
            until = self._deadline if timeout_s is None else min(self._deadline, time.monotonic() + timeout_s)
            try:
                for handle in self._handles:
                    handle.wait(max(until - time.monotonic(), 0.0))
            except Error as error:
                if error.code != Code.DEADLINE:
                    self.end(as_torch_error(error, self.what))
                elif until < self._deadline:
                    raise dist.DistBackendError(f"{self.what}: not done within {timeout_s:g} s: {error}") from error
                else:
                    self.time_out(error)
        self.end(None)
        if self.error is not None:
            raise self.error

    def time_out(self, error: Optional[Error] = None) -> None:
        timed_out = dist.DistBackendError(f"{self.what}: its timeout of {self.timeout_s:g} s is over"
                                          + (f": {error.message}" if error is not None else ""))
        timed_out.__cause__ = error
        self.end(timed_out, is_timeout=True)

    def end(self, error: Optional[BaseException], is_timeout: bool = False) -> None:
        with self._lock:
            if self.is_over:
                return
            if error is not None and is_timeout:
                self._on_timeout(error)  # before anybody sees that it is over, and calls again
            self.error = error
            if error is None:
                try:
                    for finish in self._finishes:
                        finish()
                except Exception as problem:  # noqa: raised by who waits
                    self.error = problem
            self._handles = ()
            self._finishes = []
            self.is_over = True
            futures, self._futures = self._futures, []
        for future in futures:  # their callbacks may make calls
            future.set_result(None)

    def waited_future(self) -> Any:
        """One that is done. Callbacks run here, so that calls which they make come in the order of the program, alike on
        all ranks."""
        self.wait()
        future = torch.futures.Future()
        future.set_result(self.results)
        return future

    def future(self) -> Any:
        """One that ends by itself."""
        base: Any = torch.futures.Future()

        def result(_: Any) -> List[Any]:
            # A future that set_exception() ends counts as a success in places; one whose `then` raises does not.
            if self.error is not None:
                raise self.error
            return self.results

        future = base.then(result)
        with self._lock:
            handles = list(self._handles)
            is_over = self.is_over
            if not is_over:
                self._futures.append(base)
        if is_over:
            base.set_result(None)
            return future
        left = [len(handles)]
        lock = threading.Lock()

        def one_ended(error: Optional[Error]) -> None:
            with lock:
                left[0] -= 1
                is_last = left[0] == 0
            if error is not None:
                self.end(as_torch_error(error, self.what))
            elif is_last:
                self.end(None)

        deadlines().watch(self._deadline, self)
        for handle in handles:
            handle.then(one_ended)
        if not handles:
            self.end(None)
        return future
