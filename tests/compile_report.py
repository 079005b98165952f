#!/usr/bin/env python3
"""compile_report.py BUILD...: what the compilers of these builds took since the last report, and the ten slowest runs.

Exits 1 when that is more than 1.5 times the figure below, which is that of a whole `tests/run.sh` without a compiler
cache: whoever makes compiling slower has to say so here. A cache only makes it less.
"""
import pathlib
import sys

COMMITTED_SECONDS = 2400  # CPU seconds on two cores, g++ 12 and clang++ 14
LIMIT = 1.5 * COMMITTED_SECONDS


def main() -> int:
    runs = []
    for build in sys.argv[1:]:
        log = pathlib.Path(build, "compile.log")
        if not log.exists():
            continue
        for line in log.read_text().splitlines():
            seconds, peak, output = line.split(" ", 2)
            runs.append((float(seconds), int(peak), f"{build}/{output}"))
        log.unlink()
    total = sum(run[0] for run in runs)
    print(f"compiling: {len(runs)} compiler runs, {total:.0f} CPU seconds (committed: {COMMITTED_SECONDS}, "
          f"limit {LIMIT:.0f})")
    for seconds, peak, output in sorted(runs, reverse=True)[:10]:
        print(f"  {seconds:6.1f} s  {peak / 1024:5.0f} MiB  {output}")
    if total > LIMIT:
        print("compiling: slower than the limit; find out why, or write the new figure into tests/compile_report.py")
        return 1
    return 0


sys.exit(main())
