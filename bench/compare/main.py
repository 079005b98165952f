#!/usr/bin/env python3
"""Measures the numbers P1 to P16 and P24 beside the peers and the floors. Started by bench/compare.sh; see there."""
import argparse
import json
import os
import pathlib
import platform
import select
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from context import Context
from row import summary, table
from rows import (arithmetic, cost, exchanges, latency, links, loopback, lost, many, placement, priority, replayed,
                  shared_memory)

MODULES = (links, placement, cost, loopback, shared_memory, arithmetic, latency, priority, replayed, many, lost,
           exchanges)
MOST_BUSY = 0.1  # with less, others hardly matter
RETIRED = "P14"  # bench/RESULTS.md says what it was
IDS = [id for id in (f"P{number}" for number in range(1, 17)) if id != RETIRED] + ["P24"]


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(64, f"{self.prog}: {message}; --help shows all\n")


def may_write(path):
    return os.access(path if path.exists() else path.resolve().parent, os.W_OK) and not path.is_dir()


def parse_arguments():
    parser = Parser(prog="compare.sh", description="The table of numbers P1 to P16 and P24 of the design.")
    parser.add_argument("--only", metavar="P1,P9", default="", help="only these numbers")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes, in less than 5 minutes")
    parser.add_argument("--build-dir", default="build", help="where bps is built (build)")
    parser.add_argument("--json", metavar="FILE", help="where the rows go (BUILD-DIR/compare.json)")
    parser.add_argument("--check", action="store_true", help="only say whether these arguments are right")
    arguments = parser.parse_args()
    arguments.only = [id.strip().upper() for id in arguments.only.split(",") if id.strip()]
    for id in arguments.only:
        if id not in IDS:
            parser.error(f"there is no number {id}; there are P1 to P16 and P24 without {RETIRED}, which is retired")
    if arguments.json and not may_write(pathlib.Path(arguments.json)):
        parser.exit(71, f"{parser.prog}: cannot write to {arguments.json}\n")
    return arguments


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = int(next(line.split()[1] for line in open("/proc/meminfo") if line.startswith("MemTotal"))) / 2**20
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, Linux {platform.release()}"


def busy():
    """How much of the CPUs' time is used just now, by others than us."""
    def look():
        times = [int(word) for word in open("/proc/stat").readline().split()[1:9]]
        return sum(times), times[3] + times[4]  # all; idle and waiting for disks
    total, idle = look()
    select.select([], [], [], 1)  # there is no event: it is this second that is measured
    total_after, idle_after = look()
    return 1 - (idle_after - idle) / max(total_after - total, 1)


def main():
    arguments = parse_arguments()
    if arguments.check:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that hosts are removed
    source = pathlib.Path(__file__).resolve().parents[2]
    build = pathlib.Path(arguments.build_dir).resolve()
    context = Context(str(source), str(build), arguments.quick, arguments.only)
    used_before = busy()
    if used_before > MOST_BUSY:
        context.say(f"something else uses {used_before:.0%} of the CPUs: rows may miss their floor for that alone")
    rows, start = [], time.monotonic()
    for module in MODULES:
        if context.wants(*module.IDS):
            begin = time.monotonic()
            context.begin()
            rows += module.measure(context)
            context.say(f"{', '.join(filter(context.wants, module.IDS))} took {time.monotonic() - begin:.0f} s")
    rows.sort(key=lambda row: IDS.index(row.id))
    report = pathlib.Path(arguments.json) if arguments.json else build / "compare.json"
    print(f"{machine()}; {'a quick' if arguments.quick else 'the full'} run of {time.monotonic() - start:.0f} s; others "
          f"used {used_before:.0%} of the CPUs before. "
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
