#!/usr/bin/env python3
"""PyTorch training steps by bps against DistributedDataParallel with gloo: 4 workers, 4 servers, each on a host of its own
(network namespaces of netlab, so it needs root) with links of the same rate.

    compare_ddp.py [--build build] [--link 500mbit] [--turns 6] ...

All ways train the same transformer in the same processes, a turn of a few steps each, so that they see the same machine;
who is first changes each time. It prints steps a second, and their ratio to gloo's: the median of the paired turns with its
95 % confidence interval. The model is wide and the batch small, so that communication dominates.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "compare"))

from lab import Lab  # noqa: E402
from daemons import DaemonTest  # noqa: E402
from process import Program  # noqa: E402
from row import Median, NotMeasured  # noqa: E402

WORKERS = SERVERS = 4
LIMIT = 110  # seconds for all


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=HERE.parents[1] / "build", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--link", default="500mbit")
    parser.add_argument("--python", default="/usr/bin/python3", help="with torch 2.14 or later, the backend and FSDP2 run, too")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="of each way in a turn (2)")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=4)
    return parser.parse_args()


def worker(lab, scheduler, rank, options):
    """Rank i is on host i + 1."""
    host = rank + 1
    settings = {"BPS_LIBRARY": options.build / "lib/libbpsclient.so.0", "BPS_SCHEDULER": scheduler.address,
                "BPS_HOST": f"h{host}", "BPS_BANDWIDTH": options.link, "BPS_RANK": rank, "BPS_WORLD_SIZE": WORKERS,
                "BPS_LOCAL_RANK": 0, "BPS_LOCAL_SIZE": 1, "MASTER_ADDR": lab.address(1), "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": 1}
    flags = [f"--{name}={getattr(options, name)}" for name in ("width", "layers", "batch", "context", "turns", "steps")]
    return Program(lab.on(host, ["env", *(f"{name}={value}" for name, value in settings.items()), options.python,
                                 str(HERE / "worker.py"), *flags]), LIMIT, name=f"rank {rank}")


def measure(options):
    """Seconds a step of each way, for each turn."""
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(WORKERS + SERVERS, options.link))
        cluster = stack.enter_context(DaemonTest.outside_of_tests(options.build / "bin"))
        # The scheduler on the host whose link is not shaped, servers on the hosts after those of the workers.
        cluster.netlab = lab
        scheduler = cluster.scheduler()
        for cluster.host in range(1 + WORKERS, 1 + WORKERS + SERVERS):
            cluster.server(scheduler, "--host", f"h{cluster.host}", "--bandwidth", options.link)
        workers = [stack.enter_context(worker(lab, scheduler, rank, options)) for rank in range(WORKERS)]
        outputs = [each.output() for each in workers]
    return [json.loads(line) for line in outputs[0].splitlines() if line.startswith("{")]


def report(options, turns):
    print(f"{WORKERS} workers, {SERVERS} servers, {options.link} links, {turns[0]['parameter_bytes'] / 1e6:.1f} MB of f32 "
          f"parameters, {len(turns)} turns of {options.steps} steps")
    for kind in turns[0]["kinds"]:
        seconds = Median.of([turn[kind] for turn in turns])
        line = f"{kind:12} {1 / seconds.value:.3f} steps/s ({seconds.value:.3f} s a step)"
        peer = "fsdp by gloo" if kind == "fsdp" else "gloo"
        if peer in turns[0] and kind != peer:
            ratio = Median.of([turn[peer] / turn[kind] for turn in turns])
            line += f", {ratio.value:.3f} ({ratio.low:.3f} - {ratio.high:.3f}) of {peer}'s"
        print(line)


def main():
    options = arguments()
    if os.geteuid() != 0:
        print("compare_ddp: needs root, to make hosts out of network namespaces", file=sys.stderr)
        return 77
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))  # so that what was started ends too
    try:
        report(options, measure(options))
    except (NotMeasured, AssertionError) as problem:
        print(f"compare_ddp: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
