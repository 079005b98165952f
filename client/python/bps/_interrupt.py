"""Calls that wait, and Ctrl-C.

A signal handler of Python runs in the main thread between two steps of the interpreter, so a C function that waits there
keeps Ctrl-C waiting too. The main thread therefore leaves such a call to another thread and waits for it in a way that
signals interrupt.
"""
import threading
import time
from typing import Any, Callable, Generic, List, Optional, TypeVar

Result = TypeVar("Result")

BEGIN_WITHIN = 1.0  # seconds: only a machine that is very busy takes longer than a millisecond


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class _Outcome(Generic[Result]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun = threading.Event()
        self.done = threading.Event()
        self.results: List[Result] = []
        self.failure: Optional[BaseException] = None
        self.abandoned = False

    def let_begin(self) -> None:
        """A thread that has not begun when the interpreter ends crashes Python before 3.12; one that was never made does
        not begin."""
        deadline = time.monotonic() + BEGIN_WITHIN
        while not self.begun.is_set() and time.monotonic() < deadline:
            try:
                self.begun.wait(deadline - time.monotonic())
            except BaseException:  # noqa: another Ctrl-C; the first one is raised
                pass


def _start(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # there are too many already, or the interpreter is about to end: Ctrl-C then waits
        return False
    return True


def call_interruptibly(function: Callable[[], Result], too_late: Optional[Callable[[Result], Any]] = None) -> Result:
    """What `function` returns or raises. When a signal handler raises meanwhile, that is raised at once, the call goes on
    without us, and `too_late` gets what it returns."""
    if not in_main_thread():
        return function()
    outcome: _Outcome[Result] = _Outcome()

    def run() -> None:
        outcome.begun.set()
        try:
            result = function()
            with outcome.lock:
                outcome.results.append(result)
                wanted = not outcome.abandoned
            if not wanted and too_late is not None:
                too_late(result)
        except BaseException as failure:  # noqa: raised again by who waits
            outcome.failure = failure
        outcome.done.set()

    thread = threading.Thread(target=run, name="bps-call", daemon=True)
    try:
        starts = _start(thread)
        if starts:
            outcome.done.wait()
    except BaseException:
        outcome.let_begin()
        with outcome.lock:
            outcome.abandoned = True
            arrived = bool(outcome.results)
        if arrived and too_late is not None:
            too_late(outcome.results[0])
        raise
    if not starts:
        return function()
    if outcome.failure is not None:
        failure, outcome.failure = outcome.failure, None  # no cycle through its traceback
        raise failure
    return outcome.results[0]
