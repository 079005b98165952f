#!/usr/bin/env python3
"""compile_report.py BUILD...: what the compilers of these builds took since the last report, and the ten slowest runs.

Machines differ, so the total is also said in units of one reference: the CPU seconds of compiling REFERENCE here. Exits
1 when it is more than 1.5 times the figure below, which is that of a whole `tests/run.sh` without a compiler cache:
whoever makes compiling slower has to write down how much. A cache only makes it less.
"""
import pathlib
import resource
import subprocess
import sys

COMMITTED = 1000  # references; 2,750 CPU seconds where one takes 2.76
LIMIT = 1.5
REFERENCE = """#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <string>
bool found(const std::string& text) { return std::regex_search(text, std::regex("a+(b|c)*")); }
std::map<std::string, std::function<int(int)>> table;
"""


def reference_seconds():
    """The least of two: the first one reads the headers from disk."""
    seconds = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(["g++", "-std=c++20", "-O2", "-c", "-xc++", "-o", "/dev/null", "-"], input=REFERENCE, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def main():
    runs = []
    for build in sys.argv[1:]:
        log = pathlib.Path(build, "compile.log")
        if not log.exists():
            continue
        for line in log.read_text().splitlines():
            seconds, peak, output = line.split(" ", 2)
            runs.append((float(seconds), int(peak), f"{build}/{output}"))
        log.unlink()
    if not runs:
        print("compiling: nothing was compiled")
        return 0
    total = sum(run[0] for run in runs)
    reference = reference_seconds()
    print(f"compiling: {len(runs)} compiler runs, {total:.0f} CPU seconds, {total / reference:.0f} references of "
          f"{reference:.2f} s (without a cache {COMMITTED}, at most {LIMIT} times that)")
    for seconds, peak, output in sorted(runs, reverse=True)[:10]:
        print(f"  {seconds:6.1f} s  {peak / 1024:5.0f} MiB  {output}")
    if total / reference > LIMIT * COMMITTED:
        print("compiling: too slow; find out why, or write the new figure into tests/compile_report.py")
        return 1
    return 0


sys.exit(main())
