"""Programs that a measurement runs: with a deadline, ended with all they started, their words kept."""
import os
import signal
import subprocess
import time

from row import NotMeasured

# Settings and ranks of other jobs are none of theirs.
FOREIGN = ("BPS_", "OMPI_", "PMIX_", "SLURM_")


def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


class Program:
    """One that runs. A context manager: it is ended when the block is left."""

    PATIENCE = 20  # seconds between SIGTERM and SIGKILL

    def __init__(self, command, limit, name=None):
        self.name = name or os.path.basename(command[0])
        self.deadline = time.monotonic() + limit
        self.limit = limit
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True)
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # SIGTERM first: who made hosts or temporary files removes them.
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                break
            os.killpg(self.pid, number)
            try:
                self.process.wait(self.PATIENCE)
            except subprocess.TimeoutExpired:
                pass
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()

    def output(self, watch=None):
        """Its stdout once it has ended well. Meanwhile `watch()` is called: often until it says that it has seen something, for
        a program may be short, then seldom, so as not to disturb it."""
        pause = 0.1
        while True:
            left = self.deadline - time.monotonic()
            try:
                out, err = self.process.communicate(timeout=max(0.01, min(left, pause) if watch else left))
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() >= self.deadline:
                    raise NotMeasured(f"{self.name} did not end within {self.limit} s") from None
                if watch():
                    pause = 0.5
        if self.process.returncode != 0:
            said = " / ".join((err.strip() or out.strip()).splitlines()[-3:])
            raise NotMeasured(f"{self.name} failed ({self.process.returncode}): {said[:300]}")
        return out


def output_of(command, limit=60, watch=None):
    with Program(command, limit) as program:
        return program.output(watch)
