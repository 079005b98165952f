"""A call of a process group that is under way, and the object that torch waits for."""
import heapq
import itertools
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ...errors import Code, Error
from ...handle import Handle
from .buffers import Finish

_NETWORK = (Code.UNREACHABLE, Code.PROTOCOL)


def told(error: Error, what: str) -> BaseException:
    """As an error of torch, with our text."""
    if error.code == Code.INVALID_ARGUMENT:
        return ValueError(f"{what}: {error}")
    kind = dist.DistNetworkError if error.code in _NETWORK else dist.DistBackendError
    told = kind(f"{what}: {error}")
    told.__cause__ = error
    return told


class Call:
    """Operations of bps, what is left to do when all have ended well, and what came out.

    Ends once: with a result, or with an error, which every later wait raises again. Any thread may wait.
    """

    def __init__(self, what: str, timeout_s: float, on_timeout: Callable[[BaseException], None]) -> None:
        self.what = what
        self.results: List[torch.Tensor] = []
        self.error: Optional[BaseException] = None
        self.is_over = False
        self.timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._on_timeout = on_timeout
        self._handles: Sequence[Handle] = ()
        self._finishes: List[Finish] = []
        self._lock = threading.Lock()

    def start(self, handles: Sequence[Handle], results: Sequence[torch.Tensor], finishes: Sequence[Optional[Finish]] = ()) -> "Call":
        self._handles = handles
        self.results = list(results)
        self._finishes = [one for one in finishes if one is not None]
        return self

    def start_all(self, calls: "Sequence[Call]") -> "Call":
        """As one, which takes over what they have."""
        return self.start([handle for call in calls for handle in call._handles],
                          [result for call in calls for result in call.results],
                          [finish for call in calls for finish in call._finishes])

    def left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def poll(self) -> bool:
        """Has it ended, also by an error?"""
        return self.is_over or all(handle.poll() for handle in self._handles)

    def wait(self, timeout_s: Optional[float] = None) -> None:
        """Raises what went wrong, as an error of torch. timeout_s: shorter than the call's own; nothing ends with it."""
        if not self.is_over:
            now = time.monotonic()
            until = self._deadline if timeout_s is None else min(self._deadline, now + timeout_s)
            try:
                for handle in self._handles:
                    handle.wait(max(until - time.monotonic(), 0.0))
            except Error as error:
                if error.code != Code.DEADLINE:
                    self.end(told(error, self.what))
                elif until < self._deadline:
                    raise dist.DistBackendError(f"{self.what}: not done within {timeout_s:g} s: {error}") from error
                else:
                    self.time_out(error)
        self.end(None)
        if self.error is not None:
            raise self.error

    def time_out(self, error: Optional[Error] = None) -> None:
        timed_out = dist.DistBackendError(f"{self.what}: timed out after {self.timeout_s:g} s"
                                          + (f": {error}" if error is not None else ""))
        timed_out.__cause__ = error
        self.end(timed_out)
        self._on_timeout(timed_out)

    def end(self, error: Optional[BaseException]) -> None:
        with self._lock:
            if self.is_over:
                return
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

        def result(_: Any) -> List[torch.Tensor]:
            # A future that set_exception() ends counts as a success in places; one whose `then` raises does not.
            if self.error is not None:
                raise self.error
            return self.results

        future = base.then(result)
        left = [len(self._handles)]
        lock = threading.Lock()

        def one_ended(error: Optional[Error]) -> None:
            with lock:
                left[0] -= 1
                is_last = left[0] <= 0
            if error is not None:
                self.end(told(error, self.what))
            elif is_last:
                self.end(None)
            if is_last:
                _deadlines.forget(self)
                _complete(base)

        handles = list(self._handles)
        if self.is_over or not handles:
            self.end(None)
            _complete(base)
            return future
        _deadlines.watch(self._deadline, self, base)
        for handle in handles:
            handle.then(one_ended)
        return future


def _complete(future: Any) -> None:
    if not future.done():
        try:
            future.set_result(None)
        except RuntimeError:  # another thread was faster
            pass


class _Deadlines:
    """Ends calls that nobody waits for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: List[Tuple[float, int, Call, Any]] = []
        self._numbers = itertools.count()
        self._thread: Optional[threading.Thread] = None

    def watch(self, deadline: float, call: Call, future: Any) -> None:
        with self._changed:
            heapq.heappush(self._calls, (deadline, next(self._numbers), call, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="bps-deadlines", daemon=True)
                self._thread.start()
            elif self._calls[0][2] is call:
                self._changed.notify()

    def forget(self, call: Call) -> None:
        """Cheap: what has ended goes when its turn comes, or when there is more of that than of others."""
        with self._changed:
            if len(self._calls) > 64 and sum(one[2].is_over for one in self._calls) * 2 > len(self._calls):
                self._calls = [one for one in self._calls if not one[2].is_over]
                heapq.heapify(self._calls)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._calls:
                    self._changed.wait()
                deadline, _, call, future = self._calls[0]
                left = deadline - time.monotonic()
                if left > 0 and not call.is_over:
                    self._changed.wait(left)
                    continue
                heapq.heappop(self._calls)
            if not call.is_over and not call.poll():
                call.time_out()
                _complete(future)
            del call, future


_deadlines = _Deadlines()


def issued_by_python() -> bool:
    """Did code of torch.distributed make the call, and not the reducer of DDP? Callbacks of its futures may then make calls.
    Those of torch's default hooks make none."""
    frame = sys._getframe(1)
    here = __name__.rpartition(".")[0]
    while frame is not None and frame.f_globals.get("__name__", "").startswith(here):
        frame = frame.f_back
    if frame is None or not frame.f_globals.get("__name__", "").startswith("torch.distributed"):
        return False
    while frame is not None and frame.f_globals.get("__name__", "").startswith("torch.distributed.distributed_c10d"):
        frame = frame.f_back
    return frame is None or frame.f_globals.get("__name__", "") != "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"


class Work(dist.Work if hasattr(dist, "Work") else torch._C._distributed_c10d.Work):
    """What torch waits for."""

    def __init__(self, call: Call, waits_in_future: bool) -> None:
        super().__init__()
        self._call = call
        self._waits_in_future = waits_in_future

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds()
        self._call.wait(seconds if seconds > 0 else None)
        return True

    def get_future(self) -> Any:
        return self._call.waited_future() if self._waits_in_future else self._call.future()

    # torch passes what follows on only with a process group of ours (torch before 2.14).

    def is_completed(self) -> bool:
        return self._call.poll()

    def is_success(self) -> bool:
        return self._call.is_over and self._call.error is None

    def exception(self) -> Optional[BaseException]:
        return self._call.error

    def result(self) -> List[torch.Tensor]:
        return self._call.results

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        raise RuntimeError("bps receives from a rank that was named")

    def _source_rank(self) -> int:
        return self.source_rank()
