#!/usr/bin/env python3
"""Compiles each header alone: whoever includes one needs nothing before it.

    headers.py ROOT C++-COMPILER C-COMPILER [FLAG...]

client/include/bps/*.h is compiled as C11 and C++17, *.hpp as C++17; everything as C++20.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys


def jobs_for(root, cxx, cc, flags):
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wno-pragma-once-outside-header", "-Werror",
                "-fsyntax-only", "-Wno-missing-field-initializers"]
    if "clang" not in cxx:
        warnings.remove("-Wno-pragma-once-outside-header")
    for folder in ("proto", "server", "scheduler", "client", "deploy", "bench", "tests"):
        for file in sorted((root / folder).rglob("*.h*")):
            path = file.relative_to(root).as_posix()
            if file.suffix not in (".h", ".hpp") or path.endswith("-inl.h"):
                continue
            dialects = [(cxx, "c++", "c++20")]
            if path.startswith("client/include/"):
                dialects.append((cxx, "c++", "c++17"))
                if file.suffix == ".h":
                    dialects.append((cc, "c", "c11"))
            for compiler, language, standard in dialects:
                command = [compiler, *warnings, f"-std={standard}", *flags, "-I", str(root),
                           "-I", str(root / "client/include"), "-x", language, "-"]
                yield path, standard, command


def compile_alone(job):
    path, standard, command = job
    # Through a file that includes it, as users do; twice, because of the guard.
    source = f'#include "{path}"\n#include "{path}"\n'
    if standard == "c11":
        source += "int main(void) { return 0; }\n"
    result = subprocess.run(command, input=source, capture_output=True, text=True)
    return path, standard, result.returncode, result.stderr


def main():
    if len(sys.argv) < 4:
        print(__doc__, file=sys.stderr)
        return 64
    root = pathlib.Path(sys.argv[1])
    jobs = list(jobs_for(root, sys.argv[2], sys.argv[3], sys.argv[4:]))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, standard, code, errors in pool.map(compile_alone, jobs):
            if code != 0:
                failed += 1
                print(f"{path} does not compile alone as {standard}:\n{errors}")
    print(f"{len(jobs)} compilations of one header each, {failed} failed")
    return 1 if failed or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
