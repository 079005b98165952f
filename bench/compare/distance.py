"""Which turns count: where a hypervisor moves the CPUs of this machine about, what is compared ran on like CPUs."""
import threading
import time


class CpuDistance:
    """How far apart the CPUs were, in nanoseconds of a cache line's way there and back, sampled while turns ran."""

    # To a CPU that shares no cache the way takes four to six times as long; otherwise samples differ by a third.
    FAR = 2

    def __init__(self, measure):
        self.measure = measure  # () -> nanoseconds, or None if that cannot be told now
        self.turns = []

    def _limit(self):
        return self.FAR * min((sample for turn in self.turns for sample in turn), default=float("inf"))

    def begin_turn(self):
        self.turns.append([])

    def sample(self):
        if self.turns and (distance := self.measure()) is not None:
            self.turns[-1].append(distance)

    def settle(self, patience=3):
        """Until CPUs are near each other, which takes an idle second, or `patience` seconds have passed."""
        deadline = time.monotonic() + patience
        while ((distance := self.measure()) is None or distance > self._limit()) and time.monotonic() < deadline:
            threading.Event().wait(0.1)

    def near(self):
        """Of each turn, whether no CPU was far from another in it, as far as is known."""
        limit = self._limit()
        return [all(sample <= limit for sample in turn) for turn in self.turns]

    def said(self):
        near, far = [], []
        for sample in sorted(sample for turn in self.turns for sample in turn):
            (near if sample <= self._limit() else far).append(sample)
        middle = lambda values: f"{values[len(values) // 2]:.0f} ns"
        return " or ".join(middle(values) for values in (near, far) if values)
