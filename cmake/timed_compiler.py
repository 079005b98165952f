#!/usr/bin/env python3
"""timed_compiler.py LOG COMMAND...: runs one compiler and appends what it took to LOG, one line each:

    CPU-SECONDS PEAK-KIB OBJECT

Set as the compiler launcher by -DBPS_COMPILE_LOG=LOG; tests/compile_report.py reads it.
"""
import os
import resource
import subprocess
import sys

log, command = sys.argv[1], sys.argv[2:]
status = subprocess.run(command).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
out = command[command.index("-o") + 1] if "-o" in command[:-1] else command[-1]
line = f"{used.ru_utime + used.ru_stime:.2f} {used.ru_maxrss} {out}\n"
with open(log, "ab", buffering=0) as file:  # one write, so that compilers beside each other do not mix lines
    file.write(line.encode())
sys.exit(status if status >= 0 else 128 - status)
