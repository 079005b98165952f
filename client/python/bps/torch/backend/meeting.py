"""Ranks that meet in the store of torch, to find their job."""
import contextlib
import os
import socket
import threading
import time
from typing import Any, Callable, Iterator, Optional, Union

from ...errors import Code, Error

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.2
_MOST_NAMED = 8


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Error(Code.UNREACHABLE, f"the store of torch is gone: {str(error).splitlines()[0]}",
                    "it belongs to rank 0 or to the launcher: look for how that has ended") from error


class Meeting:
    """Of one init_process_group. The store may still have the keys of the time before destroy and init, so each rank counts its
    own, and all keys have that number.

    A blocking wait would stop the other users of a store, so it is looked at again and again. Whoever fails leaves a note.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        self.timeout_s = timeout_s
        self.store = store
        with _store_errors():
            self._generation = int(store.add(f"bps/generation/{rank}", 1))
        self._deadline = time.monotonic() + timeout_s

    def add(self, key: str, number: int = 1) -> int:
        with _store_errors():
            return int(self.store.add(self._key(key), number))

    def set(self, key: str, text: str) -> None:
        with _store_errors():
            self.store.set(self._key(key), text)

    def arrive(self) -> None:
        self.set(f"rank/{self.rank}", "here")
        self.add("ranks")

    def wait_for_all(self) -> None:
        """Error.code DEADLINE: the ranks that have not arrived."""
        self.until(lambda: self.add("ranks", 0) == self.size, self._missing)

    def _missing(self) -> str:
        missing = [rank for rank in range(self.size) if not self._has(f"rank/{rank}")]
        shown = ", ".join(map(str, missing[:_MOST_NAMED])) + (", ..." if len(missing) > _MOST_NAMED else "")
        return f"{'ranks' if len(missing) > 1 else 'rank'} {shown} did not call init_process_group"

    def join_timeout_ms(self) -> Optional[int]:
        """None: BPS_JOIN_TIMEOUT says."""
        return None if os.environ.get("BPS_JOIN_TIMEOUT") else int(self.timeout_s * 1000)

    def rank_0_is_late(self) -> str:
        with _store_errors():
            of_rank_0 = int(self.store.add("bps/generation/0", 0))
        return (f"rank {self.rank} has called init_process_group {self._generation} times with this store, rank 0 {of_rank_0} "
                "times")

    def get(self, key: str, problem: Union[str, Callable[[], str]]) -> str:
        self.until(lambda: self._has(key), problem)
        return self._text(key)

    def until(self, condition: Callable[[], bool], problem: Union[str, Callable[[], str]]) -> None:
        """Error.code DEADLINE: that is the problem. UNREACHABLE: another rank has failed."""
        pause = threading.Event()
        pause_s = _FIRST_PAUSE_S
        while not condition():
            if self._has("failed"):
                raise Error(Code.UNREACHABLE, self._text("failed"))
            if time.monotonic() > self._deadline:
                raise Error(Code.DEADLINE, f"{problem if isinstance(problem, str) else problem()}, within {self.timeout_s:g} s",
                            "start the missing ranks, or give init_process_group a longer timeout")
            pause.wait(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def fail(self, error: Error) -> None:
        """For the other ranks."""
        if error.code != Code.UNREACHABLE:  # then another one has done so
            with contextlib.suppress(Error):  # the store is gone, too: the first error counts
                self.set("failed", f"rank {self.rank} on {socket.gethostname()}: {error.message}")

    def _has(self, key: str) -> bool:
        with _store_errors():
            return bool(self.store.check([self._key(key)]))

    def _text(self, key: str) -> str:
        with _store_errors():
            return str(self.store.get(self._key(key)).decode())

    def _key(self, key: str) -> str:
        return f"bps/{self._generation}/{key}"
