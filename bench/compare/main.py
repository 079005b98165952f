#!/usr/bin/env python3
"""Measures the numbers P1 to P15 beside the peers and the floors. Started by bench/compare.sh; see there."""
import argparse
import json
import os
import pathlib
import platform
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from context import Context
from row import summary, table
from rows import arithmetic, cost, latency, links, loopback, lost, many, placement, priority, replayed, shared_memory

MODULES = (links, placement, cost, loopback, shared_memory, arithmetic, latency, priority, replayed, many, lost)
IDS = [f"P{number}" for number in range(1, 16)]


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(64, f"{self.prog}: {message}; --help shows all\n")


def parse_arguments():
    parser = Parser(prog="compare.sh", description="The table of numbers P1 to P15 of the design.")
    parser.add_argument("--only", metavar="P1,P9", default="", help="only these numbers")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes, in less than 5 minutes")
    parser.add_argument("--build-dir", default="build", help="where bps is built (build)")
    parser.add_argument("--json", metavar="FILE", help="where the rows go (BUILD-DIR/compare.json)")
    parser.add_argument("--check", action="store_true", help="only say whether these arguments are right")
    arguments = parser.parse_args()
    arguments.only = [id.strip().upper() for id in arguments.only.split(",") if id.strip()]
    for id in arguments.only:
        if id not in IDS:
            parser.error(f"there is no number {id}; there are P1 to P15")
    return arguments


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = int(next(line.split()[1] for line in open("/proc/meminfo") if line.startswith("MemTotal"))) / 2**20
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, Linux {platform.release()}"


def main():
    arguments = parse_arguments()
    if arguments.check:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that hosts are removed
    source = pathlib.Path(__file__).resolve().parents[2]
    build = pathlib.Path(arguments.build_dir).resolve()
    context = Context(str(source), str(build), arguments.quick, arguments.only)
    rows, start = [], time.monotonic()
    for module in MODULES:
        if context.wants(*module.IDS):
            begin = time.monotonic()
            context.begin()
            rows += module.measure(context)
            context.say(f"{', '.join(module.IDS)} took {time.monotonic() - begin:.0f} s")
    rows.sort(key=lambda row: IDS.index(row.id))
    report = pathlib.Path(arguments.json) if arguments.json else build / "compare.json"
    print(f"{machine()}; {'a quick' if arguments.quick else 'the full'} run of {time.monotonic() - start:.0f} s. "
          f"{context.seen_controls()}\n")
    print(table(rows))
    print(summary(rows), flush=True)
    try:
        report.write_text(json.dumps([row.as_json() for row in rows], indent=1) + "\n")
    except OSError as error:
        print(f"compare: cannot write the rows: {error}", file=sys.stderr)
        return 71
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("compare: interrupted; nothing is left running", file=sys.stderr)
        sys.exit(130)
