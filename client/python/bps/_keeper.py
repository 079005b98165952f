"""Keeps one daemon of a cluster that programs have started for themselves, until the last of them has gone.

    python3 -I _keeper.py STARTER FOLDER PROGRAM [ARGUMENT ...]

STARTER is the process id of the program that starts this. FOLDER is private, and has a FIFO `alive` that each program holds open
for writing. This is a process in a session of its own: no program that ends takes the daemon down, and Ctrl-C does not reach it.
The daemon ends with this process, however that ends.
Standard library only, and as little of it as will do: it is the first thing that a job waits for.
"""
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Optional

# After the last program is gone: another one of the job may be about to say why it ends.
_GRACE_S = 10.0
# For the first one to come; its launcher may be starting others.
_FIRST_S = 600.0
_STOP_S = 10.0
_LOOK_MS = 500  # for the daemon's end
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class _Programs:
    """Those that hold the FIFO open."""

    def __init__(self, path: str, daemon: "subprocess.Popen[bytes]") -> None:
        self._path = path
        self._daemon = daemon
        self._fifo = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def come_within(self, limit_s: float) -> bool:
        """Has one come? False also when the daemon has ended."""
        return bool(self._wait(limit_s) & select.POLLIN)

    def begin(self, starter: int) -> bool:
        """Has the first one come? The one that has started this may end before it has, or has ended already."""
        until = time.monotonic() + _FIRST_S
        while os.getppid() == starter and time.monotonic() < until and self._daemon.poll() is None:
            if self.come_within(_LOOK_MS / 1000):
                return True
        return self.come_within(_GRACE_S)

    def stay(self) -> None:
        """Until the last one has gone, or the daemon has ended."""
        while True:
            event = self._wait(None)
            if event & select.POLLIN:
                os.read(self._fifo, 4096)
            else:
                break
        # A new one reports nothing before somebody comes. Who comes meanwhile finds a reader.
        left, self._fifo = self._fifo, os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        os.close(left)

    def _wait(self, limit_s: Optional[float]) -> int:
        poller = select.poll()
        poller.register(self._fifo, select.POLLIN)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while self._daemon.poll() is None and (deadline is None or time.monotonic() < deadline):
            for _, event in poller.poll(_LOOK_MS):
                return event
        return 0


def main() -> None:
    starter, folder, program = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    daemon = None
    try:
        daemon = subprocess.Popen(program, stdin=subprocess.DEVNULL, close_fds=False,  # it has the key's
                                  preexec_fn=_die_with_parent)
        programs = _Programs(os.path.join(folder, "alive"), daemon)
        has_come = programs.begin(starter)
        while has_come:
            programs.stay()
            has_come = programs.come_within(_GRACE_S)
    finally:
        if daemon is not None and daemon.poll() is None:
            daemon.terminate()
            try:
                daemon.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
            shutil.rmtree(folder, ignore_errors=True)
        for name in ("ports", "alive"):  # the log is for the program that has started it
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))
        if os.getppid() != starter:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
