"""What torch waits for."""
import sys
from datetime import timedelta
from typing import Any, List, Optional

import torch
from torch._C import _distributed_c10d as c10d

from .call import Call

_C10D = ("torch.distributed.distributed_c10d", "torch.distributed.c10d_logger")  # the second one wraps calls of the first
# Hooks of DDP that make no calls in callbacks.
_PLAIN_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"


def _module(frame: Any) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def callbacks_may_call() -> bool:
    """Has code of torch.distributed made the call, and not the reducer of DDP? Callbacks of its future may then make calls."""
    frame: Any = sys._getframe(1)
    here = __name__.rpartition(".")[0]
    while _module(frame).startswith(here):
        frame = frame.f_back
    if not _module(frame).startswith("torch.distributed"):
        return False
    while _module(frame).startswith(_C10D):
        frame = frame.f_back
    return _module(frame) != _PLAIN_HOOKS


class Work(c10d.Work):
    """waits_in_future: get_future() returns one that is done."""

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
        return self._call.poll() and self._call.error is None

    def exception(self) -> Optional[BaseException]:
        return self._call.error

    def result(self) -> List[torch.Tensor]:
        return self._call.results

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        raise RuntimeError("bps receives from a rank that is named")

    def _source_rank(self) -> int:
        return self.source_rank()
