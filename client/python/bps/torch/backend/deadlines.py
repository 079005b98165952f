"""Ends calls that nobody waits for, at their deadlines."""
import heapq
import itertools
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, List, Optional, Tuple

if TYPE_CHECKING:
    from .call import Call

_MANY = 64


class Deadlines:
    """Has a thread from the first call on, which ends with the process: it is never inside torch or the library while it
    waits. A call that is under way is kept alive by its operations, and one that is over by nobody here. Any thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._changed = threading.Condition()
        self._calls: "List[Tuple[float, int, weakref.ReferenceType[Call]]]" = []
        self._numbers = itertools.count()
        self._has_thread = False

    def watch(self, deadline: float, call: "Call") -> None:
        with self._changed:
            # What has ended goes when its turn comes, or when there is more of that than of others.
            if len(self._calls) > _MANY and sum(_is_over(one[2]()) for one in self._calls) * 2 > len(self._calls):
                self._calls = [one for one in self._calls if not _is_over(one[2]())]
                heapq.heapify(self._calls)
            number = next(self._numbers)
            heapq.heappush(self._calls, (deadline, number, weakref.ref(call)))
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name="bps-deadlines", daemon=True).start()
            elif self._calls[0][1] == number:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._calls:
                    self._changed.wait()
                deadline, _, reference = self._calls[0]
                left = deadline - time.monotonic()
                if left > 0 and not _is_over(reference()):
                    self._changed.wait(left)
                    continue
                heapq.heappop(self._calls)
            call = reference()
            if call is not None and not call.poll():
                call.time_out()
            del call


def _is_over(call: "Optional[Call]") -> bool:
    return call is None or call.is_over


_of_process = Deadlines()


def deadlines() -> Deadlines:
    """Of this process: a child of fork has none of its parent's threads."""
    global _of_process
    if _of_process.pid != os.getpid():
        _of_process = Deadlines()
    return _of_process
