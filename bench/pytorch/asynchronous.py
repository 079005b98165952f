#!/usr/bin/env python3
"""Synchronous against asynchronous training with one worker that is twice as slow as the others.

    bps-run -n 4 -s 2 -- python3 asynchronous.py [--steps 400] [--compute-ms 20] [--plot loss.png]

Each way trains the same classifier from the same parameters, on data of its rank, for the time that the synchronous one takes.
A step's computing is a pause, as of a GPU, so that workers do not compete for cores. Rank 0 measures the loss
on data that nobody trains on. It prints steps a second of all ranks together, and the loss over time.
"""
import argparse
import copy
import json
import pathlib
import sys
import threading
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "client/python")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

import bps.torch  # noqa: E402

CLASSES, FEATURES = 10, 64
MARKS = (0.25, 0.5, 1.0)  # of the time, at which losses are printed


class Data:
    """Points of clusters that overlap."""

    def __init__(self, seed):
        self._random = torch.Generator().manual_seed(seed)
        self._centers = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1)) * 0.4

    def batch(self, samples):
        labels = torch.randint(CLASSES, (samples,), generator=self._random)
        return self._centers[labels] + torch.randn(samples, FEATURES, generator=self._random), labels


class Pace:
    """A worker's computing: the pause that is left of a step."""

    def __init__(self, options):
        is_slow = bps.torch.rank() == bps.torch.size() - 1
        self._seconds = options.compute_ms / 1000 * (options.slowness if is_slow else 1.0)
        self._pause = threading.Event()

    def finish(self, began):
        self._pause.wait(max(0.0, self._seconds - (time.monotonic() - began)))


class Curve:
    """The loss over time; on rank 0."""

    def __init__(self, model, test, every_s):
        self.points = []
        self._model, self._test, self._every_s = model, test, every_s
        self._began = time.monotonic()

    def look(self, is_end=False):
        now = time.monotonic() - self._began
        if bps.torch.rank() == 0 and (is_end or not self.points or now >= self.points[-1][0] + self._every_s):
            with torch.no_grad():
                inputs, labels = self._test
                self.points.append((now, nn.functional.cross_entropy(self._model(inputs), labels).item()))


def train(way, model, options, test, seconds):
    """Steps of this rank, how long it took, and the curve. seconds: None: as many steps as the options say."""
    ranks = bps.torch.size()
    rate = options.rate if way["mode"] == "sync" else options.rate / ranks
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=options.momentum)
    optimizer = bps.torch.DistributedOptimizer(optimizer, model.named_parameters(), **way)
    data, pace = Data(100 + bps.torch.rank()), Pace(options)
    bps.torch.barrier()
    curve, began, steps = Curve(model, test, options.every_s), time.monotonic(), 0
    while (steps < options.steps) if seconds is None else (time.monotonic() - began < seconds):
        step_began = time.monotonic()
        curve.look()
        inputs, labels = data.batch(options.batch)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        pace.finish(step_began)
        optimizer.step()
        steps += 1
    elapsed = time.monotonic() - began
    bps.torch.barrier()
    optimizer.synchronize()
    curve.look(is_end=True)
    return steps, elapsed, curve.points


def at(points, moment):
    return [loss for when, loss in points if when <= moment][-1]


def plot(path, results):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6))
    for name, result in results.items():
        axes.plot(*zip(*result["points"]), label=name)
    axes.set(xlabel="seconds", ylabel="loss on test data", yscale="log")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=400, help="of each rank, synchronous (400)")
    parser.add_argument("--compute-ms", type=float, default=20.0, help="of a step of a fast rank (20)")
    parser.add_argument("--slowness", type=float, default=2.0, help="of the last rank (2)")
    parser.add_argument("--staleness", type=int, default=8, help="of the bounded way (8)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.05, help="divided by the number of ranks where they do not wait (0.05)")
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--every-s", type=float, default=0.1, help="seconds between losses (0.1)")
    parser.add_argument("--plot", metavar="FILE", help="a picture of the losses; needs matplotlib")
    parser.add_argument("--json", metavar="FILE", help="all points")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bps.torch.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    test = Data(2).batch(2000)
    ways = {"sync": {"mode": "sync"}, "async": {"mode": "async"},
            f"async, staleness {options.staleness}": {"mode": "async", "staleness": options.staleness}}
    results, seconds = {}, None
    for name, way in ways.items():
        steps, elapsed, points = train(way, copy.deepcopy(model), options, test, seconds)
        total = bps.torch.allreduce(torch.tensor(float(steps)), name="steps", op=bps.torch.Sum).item()
        seconds = bps.torch.broadcast_object(elapsed) if seconds is None else seconds
        results[name] = {"steps_per_s": total / seconds, "points": points}
    if bps.torch.rank() != 0:
        return
    print(f"{bps.torch.size()} ranks, the last one {options.slowness:g} times as slow; {options.compute_ms:g} ms of computing a "
          f"step; {seconds:.1f} s for each way")
    for name, result in results.items():
        losses = ", ".join(f"{at(result['points'], mark * seconds):.4f} after {mark * seconds:.1f} s" for mark in MARKS)
        faster = result["steps_per_s"] / results["sync"]["steps_per_s"]
        print(f"{name:20} {result['steps_per_s']:7.1f} steps/s ({faster:.2f}), loss {losses}, {result['points'][-1][1]:.4f} at the end")
    final = results["sync"]["points"][-1][1]
    for name, result in results.items():
        reached = [when for when, loss in result["points"] if loss <= final]
        print(f"{name:20} " + (f"at the loss of sync's end after {reached[0]:.1f} s" if reached else "never at sync's last loss"))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results))
    if options.plot:
        plot(options.plot, results)


if __name__ == "__main__":
    main()
