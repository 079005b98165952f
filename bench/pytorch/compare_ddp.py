#!/usr/bin/env python3
"""PyTorch training steps by bps against DistributedDataParallel with gloo: 4 workers, 4 servers, each on a host of its own
(network namespaces of netlab, so it needs root) with links of the same rate.

    compare_ddp.py [--build build] [--link 500mbit] [--turns 6] ...

All three ways train the same transformer in the same processes, a turn of a few steps each, so that they see the same machine;
who is first changes each time. It prints steps a second, and their ratio to gloo's: the median of the paired turns with its
95 % confidence interval. The model is wide and the batch small, so that communication dominates.
"""
import argparse
import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "compare"))

from lab import Lab  # noqa: E402
from process import Program  # noqa: E402
from row import Median, NotMeasured  # noqa: E402

WORKERS = SERVERS = 4
LIMIT = 110  # seconds for all


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=HERE.parents[1] / "build", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--link", default="500mbit")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="of each way in a turn (2)")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=4)
    return parser.parse_args()


def address_in(ports, program):
    deadline = time.monotonic() + 120
    while not ports.exists():
        if program.process.poll() is not None or time.monotonic() > deadline:
            raise NotMeasured(f"{program.name} does not listen")
        threading.Event().wait(0.01)
    return ports.read_text().split()[1]


class Cluster:
    """The scheduler on the host whose link is not shaped, workers on h1 to h4, servers on the hosts after them."""

    def __init__(self, lab, options, folder):
        self.lab, self.options, self.folder = lab, options, pathlib.Path(folder)
        self.programs = []

    def __enter__(self):
        self.scheduler = self.daemon(0, "bps-scheduler")
        for server in range(SERVERS):
            self.daemon(1 + WORKERS + server, "bps-server", "--scheduler", self.scheduler, "--bandwidth", self.options.link)
        return self

    def __exit__(self, *failure):
        for program in reversed(self.programs):
            program.__exit__(*failure)

    def daemon(self, host, name, *flags):
        ports = self.folder / f"ports{host}"
        program = self.start(host, [f"BPS_HOST=h{host}", str(self.options.build / "bin" / name), "--insecure", "--listen",
                                    f"{self.lab.address(host)}:0", "--ports-file", str(ports), *flags])
        return address_in(ports, program)

    def start(self, host, words):
        program = Program(self.lab.on(host, ["env", *words]), LIMIT, name=f"h{host}")
        self.programs.append(program)
        return program

    def worker(self, rank):
        host = rank + 1
        settings = {"BPS_LIBRARY": self.options.build / "lib/libbpsclient.so.0", "BPS_SCHEDULER": self.scheduler,
                    "BPS_HOST": f"h{host}", "BPS_BANDWIDTH": self.options.link, "BPS_RANK": rank, "BPS_WORLD_SIZE": WORKERS,
                    "BPS_LOCAL_RANK": 0, "BPS_LOCAL_SIZE": 1, "MASTER_ADDR": self.lab.address(1), "GLOO_SOCKET_IFNAME": "eth0",
                    "OMP_NUM_THREADS": 1}
        flags = [f"--{name}={getattr(self.options, name)}" for name in ("width", "layers", "batch", "context", "turns", "steps")]
        return self.start(host, [*(f"{name}={value}" for name, value in settings.items()), "/usr/bin/python3",
                                 str(HERE / "worker.py"), *flags])


def measure(options):
    """Seconds a step of each way, for each turn."""
    with Lab(HERE.parent / "netlab", WORKERS + SERVERS, options.link) as lab, tempfile.TemporaryDirectory() as folder:
        with Cluster(lab, options, folder) as cluster:
            workers = [cluster.worker(rank) for rank in range(WORKERS)]
            outputs = [worker.output() for worker in workers]
    return [json.loads(line) for line in outputs[0].splitlines() if line.startswith("{")]


def report(options, turns):
    print(f"{WORKERS} workers, {SERVERS} servers, {options.link} links, {turns[0]['parameter_bytes'] / 1e6:.1f} MB of f32 "
          f"parameters, {len(turns)} turns of {options.steps} steps")
    for kind in ("gloo", "hook", "layers"):
        seconds = Median.of([turn[kind] for turn in turns])
        line = f"{kind:7} {1 / seconds.value:.3f} steps/s ({seconds.value:.3f} s a step)"
        if kind != "gloo":
            ratio = Median.of([turn["gloo"] / turn[kind] for turn in turns])
            line += f", {ratio.value:.3f} ({ratio.low:.3f} - {ratio.high:.3f}) of gloo's"
        print(line)


def main():
    options = arguments()
    if os.geteuid() != 0:
        print("compare_ddp: needs root, to make hosts out of network namespaces", file=sys.stderr)
        return 77
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))  # so that what was started ends too
    try:
        report(options, measure(options))
    except NotMeasured as problem:
        print(f"compare_ddp: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
