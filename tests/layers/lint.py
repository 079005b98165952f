#!/usr/bin/env python3
"""What clang-format and clang-tidy say of this tree.

    lint.py format ROOT           every source file is as clang-format writes it (.clang-format)
    lint.py tidy ROOT [--all]     clang-tidy (.clang-tidy) on what changed: files that differ from HEAD, and those of its
                                  last commit, at most 16; with --all every file, which takes half an hour

tidy reads each file alone, by a compile database without unity builds, in ROOT/build/lint.
Exit status: 0 nothing found, 1 findings, 77 the tool is not here.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCES = (".cc", ".h", ".hpp")
MOST_FILES = 16


def git(root, *words):
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, text=True).stdout.split("\n")


def tracked(root):
    return [path for path in git(root, "ls-files") if path.endswith(SOURCES) and (root / path).exists()]


def tool(name):
    found = shutil.which(name)
    if not found:
        print(f"{name}: not run: it is not installed (cmake/setup.sh)")
        sys.exit(77)
    return found


def check_format(root):
    files = tracked(root)
    found = subprocess.run([tool("clang-format"), "--dry-run", "-Werror", *files], cwd=root).returncode != 0
    print(f"{len(files)} files checked" + ("; mend them with `clang-format -i`" if found else ""))
    return found


def changed(root):
    names = set(git(root, "diff", "--name-only", "HEAD"))
    if subprocess.run(["git", "-C", root, "rev-parse", "-q", "--verify", "HEAD~1"], stdout=subprocess.DEVNULL).returncode == 0:
        names |= set(git(root, "diff", "--name-only", "HEAD~1", "HEAD"))
    return names


def check_tidy(root, everything):
    tidy = tool("clang-tidy")
    build = root / "build" / "lint"
    subprocess.run(["cmake", "-S", root, "-B", build, "-G", "Ninja", "-DCMAKE_UNITY_BUILD=OFF", "-DBPS_COMPILE_LOG=",
                    "-DCMAKE_CXX_COMPILER=clang++", "-DCMAKE_C_COMPILER=clang"], check=True, stdout=subprocess.DEVNULL)
    targets = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], check=True, capture_output=True, text=True).stdout
    generated = {line.split(":")[0] for line in targets.splitlines() if line.split(":")[0].endswith("_generated.h")}
    subprocess.run(["ninja", "-C", build, *generated], check=True, stdout=subprocess.DEVNULL)
    known = {entry["file"] for entry in json.loads((build / "compile_commands.json").read_text())}
    wanted = tracked(root) if everything else sorted(changed(root))
    files = [path for path in wanted if str(root / path) in known]
    if not everything and len(files) > MOST_FILES:
        print(f"{len(files)} files have changed; these are read: the first {MOST_FILES} by name")
        files = files[:MOST_FILES]

    # Of headers, those that have changed: what is wrong in the others is not this change's doing. bps.h and calls.h have C's names.
    headers = [path for path in wanted if path.endswith((".h", ".hpp")) and not path.endswith(("/bps.h", "/calls.h"))]
    headers = ".*" if everything else "|".join(f"/{re.escape(path)}$" for path in headers) or "^$"

    def read(path):
        return subprocess.run([tidy, "-p", build, "--quiet", "--warnings-as-errors=*", f"--header-filter={headers}", path],
                              cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    found = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for result in pool.map(read, files):
            if result.returncode != 0:
                found = True
                print(result.stdout)
    print(f"{len(files)} files read")
    return found


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("format", "tidy"):
        print(__doc__, file=sys.stderr)
        return 64
    root = pathlib.Path(sys.argv[2]).resolve()
    return int(check_format(root) if sys.argv[1] == "format" else check_tidy(root, "--all" in sys.argv[3:]))


sys.exit(main())
