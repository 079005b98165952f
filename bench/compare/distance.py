"""Where a hypervisor moves the CPUs of this machine about: how far apart they were while something was measured."""
import threading
import time


class CpuDistance:
    """Nanoseconds of a cache line's way to the farthest CPU and back, sampled while programs run."""

    # To a CPU that shares no cache the way takes four to six times as long; otherwise samples differ by two thirds.
    FAR = 3

    def __init__(self, measure):
        # () -> (nanoseconds, whether that held up nothing that runs), or None if it cannot be told now
        self.measure = measure
        self.runs = []
        self.disturbs = False
        self.failed = 0

    def _limit(self):
        return self.FAR * min((sample for run in self.runs for sample in run), default=float("inf"))

    def _measured(self):
        result = self.measure()
        if result is None:
            self.failed += 1
            return None
        distance, harmless = result
        self.disturbs = self.disturbs or not harmless
        return distance

    def begin_run(self):
        self.runs.append([])

    def sample(self, beside=False):
        """Of this run; `beside` what is being measured: not if that would be held up."""
        if self.runs and not (beside and self.disturbs) and (distance := self._measured()) is not None:
            self.runs[-1].append(distance)

    def settle(self, patience=3):
        """Until CPUs are near each other, which takes an idle second, or `patience` seconds have passed. What it sees
        belongs to no run."""
        deadline = time.monotonic() + patience
        while ((distance := self._measured()) is None or distance > self._limit()) and time.monotonic() < deadline:
            threading.Event().wait(0.1)

    def near(self):
        """Of each run, whether no CPU was far from another in it, as far as is known."""
        limit = self._limit()
        return [all(sample <= limit for sample in run) for run in self.runs]

    def said(self):
        near, far = [], []
        for sample in sorted(sample for run in self.runs for sample in run):
            (near if sample <= self._limit() else far).append(sample)
        middle = lambda values: f"{values[len(values) // 2]:.0f} ns"
        said = " or ".join(middle(values) for values in (near, far) if values) or "at an unknown distance"
        return said + (f" ({self.failed} samples failed)" if self.failed else "")
