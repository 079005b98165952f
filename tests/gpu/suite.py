#!/usr/bin/env python3
"""What needs a real GPU: runs each of it, and prints what became of it and what was measured, as Markdown for
bench/RESULTS.md. Without a GPU it says so, and the names of what was not run; that is no failure.

    suite.py BUILD-FOLDER [--no-figures]

Several ranks on one GPU are NCCL's only if they say that they are on different hosts (NCCL_HOSTID), and talk through
sockets then; that shows that sums are right, and nothing about time.
"""
import ctypes
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LIMIT = 600  # seconds for one test
SHAPES = ("--sizes", "100000,1,300001,17", "--rounds", "10", "--broadcast")
# Of other jobs, and of what a test sets itself.
FOREIGN = ("BPS_", "OMPI_", "PMIX_", "SLURM_", "NCCL_HOSTID", "NCCL_SOCKET_IFNAME")


class Failed(Exception):
    """What a test saw instead."""


class NotHere(Exception):
    """What this machine lacks."""


def run(*command, env=None, limit=LIMIT):
    """Its output. Ended with all that it has started, whatever happens."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    child = subprocess.Popen([str(word) for word in command], env={**environment, **(env or {})},
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             errors="replace", start_new_session=True)
    try:
        out, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise Failed(f"{pathlib.Path(command[0]).name} has not ended after {limit} s") from None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if child.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: status {child.returncode}:\n{out}")
    return out


def has_library(name):
    try:
        ctypes.CDLL(name)
        return True
    except OSError:
        return False


class Suite:
    def __init__(self, build, figures):
        self.build = build
        self.bin = build / "bin"
        self.worker = build / "tests/process/process_worker"
        self.train = build / "client/examples/train_gpu"
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="bps-gpu-"))
        self.figures = []  # Markdown
        self.tests = [
            ("driver", self.driver),
            ("sums of 2 ranks", lambda: self.sums(2)),
            ("sums of 2 ranks by NCCL", lambda: self.sums(2, {"BPS_LOCAL_GROUP": "nccl"})),
            ("sums of 4 ranks by NCCL", lambda: self.sums(4, {"BPS_LOCAL_GROUP": "nccl"})),
            ("training, against one process", self.training),
            ("training by NCCL", self.training_by_nccl),
            ("compute-sanitizer: driver", lambda: self.sanitized(build / "client/client_cuda_test", "[gpu]")),
            ("compute-sanitizer: sums of 2 ranks",
             lambda: self.sanitized(self.bin / "bps-run", "-n", "2", "-s", "1", "--", self.worker, "--device", "cuda",
                                    "--rounds", "3")),
            ("compute-sanitizer: training",
             lambda: self.sanitized(self.require(self.train), "--reference", "2", "--steps", "2", "--check")),
        ]
        if figures:
            self.tests += [("bps-bench gpu-floor", self.gpu_floor), ("bps-bench pushpull", self.pushpull),
                           ("bps-bench pushpull by NCCL", self.pushpull_by_nccl)]

    def why_not(self):
        """None if there is a GPU."""
        out = run(self.build / "client/client_cuda_test", "[gpu]")
        found = re.search(r"^gpu: not run: (.*)$", out, re.M)
        return found.group(1) if found else None

    def gpus(self):
        run(self.bin / "bps-bench", "gpu-floor", "--bytes", "64KiB", "--iters", "1", "--warmup", "0", "--json",
            self.scratch / "gpus")
        return [line for line in self.json_lines(self.scratch / "gpus") if line["bench"] == "gpu"]

    # ---- tests ----

    def driver(self):
        out = run(self.build / "client/client_cuda_test", "[gpu]")
        self.figures.append("```\n" + "\n".join(re.findall(r"^gpu: .*$", out, re.M)) + "\n```")

    @staticmethod
    def require(program):
        if not program.exists():
            raise NotHere("the build has no " + program.name + ": no nvcc was found")
        return program

    def ranks(self, count, env, *command):
        """Under bps-run; each rank of NCCL on a host of its own where there are fewer GPUs than ranks."""
        env = dict(env or {})
        if env.get("BPS_LOCAL_GROUP") == "nccl":
            if not has_library("libnccl.so.2"):
                raise NotHere("libnccl.so.2 is not found")
            if len(self.gpus()) < count:
                env["NCCL_SOCKET_IFNAME"] = "lo"
                command = ("bash", "-c", 'NCCL_HOSTID="gpu-test-$BPS_RANK" exec "$@"', "rank", *command)
        return run(self.bin / "bps-run", "-n", count, "-s", 2, "--timeout", f"{LIMIT - 30}s", "--", *command, env=env)

    def sums(self, count, env=None, flags=()):
        expected = re.search(r"checksum .*", run(self.worker, *SHAPES, *flags, "--reference", count)).group(0)
        out = self.ranks(count, env, self.worker, *SHAPES, *flags, "--device", "cuda")
        if out.count(expected) != count:
            raise Failed(f"not every rank says {expected}:\n{out}")

    def training(self):
        self.require(self.train)
        files = [self.scratch / name for name in ("ranks", "reference")]
        out = self.ranks(2, {}, self.train, "--steps", "50", "--check", "--save", files[0])
        if "check: 2 ranks have the same parameters" not in out:
            raise Failed(f"the ranks' parameters were not compared:\n{out}")
        run(self.train, "--reference", "2", "--steps", "50", "--check", "--save", files[1])
        if files[0].read_bytes() != files[1].read_bytes():
            raise Failed("two ranks and one process have trained other parameters")

    def training_by_nccl(self):
        out = self.ranks(2, {"BPS_LOCAL_GROUP": "nccl"}, self.require(self.train), "--steps", "50", "--check")
        if "check: 2 ranks have the same parameters" not in out:
            raise Failed(f"the ranks' parameters were not compared:\n{out}")

    def sanitized(self, *command):
        if not shutil.which("compute-sanitizer"):
            raise NotHere("compute-sanitizer is not on the PATH")
        run("compute-sanitizer", "--target-processes", "all", "--error-exitcode", "99", *command)

    # ---- figures ----

    @staticmethod
    def json_lines(path):
        return [json.loads(line) for line in path.read_text().splitlines()]

    def bench(self, *arguments):
        file = self.scratch / "figures"
        run(self.bin / "bps-bench", *arguments, "--json", file)
        lines = self.json_lines(file)
        wrong = [line for line in lines if line.get("verified") is False]
        if wrong:
            raise Failed(f"wrong results: {wrong}")
        self.figures.append("`bps-bench " + " ".join(arguments) + "`")
        kinds = {}  # lines with the same keys are one table
        for line in lines:
            kinds.setdefault(tuple(line), []).append(line)
        for keys, rows in kinds.items():
            shown = [keys, ("---",) * len(keys), *([row[key] for key in keys] for row in rows)]
            self.figures.append("\n".join("| " + " | ".join(map(str, row)) + " |" for row in shown))

    def gpu_floor(self):
        self.bench("gpu-floor")

    def pushpull(self, *flags):
        # Each rank has a GPU of its own.
        self.bench("pushpull", "--device", "cuda", "--workers", str(len(self.gpus())), "--servers", "2", "--bytes",
                   "256MiB", "--transport", "shm", *flags)

    def pushpull_by_nccl(self):
        gpus = len(self.gpus())
        if gpus < 2:
            raise NotHere("it needs two GPUs")
        self.bench("pushpull", "--device", "cuda", "--local-group", "nccl", "--workers", str(gpus), "--servers", "2",
                   "--bytes", "256MiB", "--transport", "shm")

    # ---- all of it ----

    def go(self):
        why = self.why_not()
        if why is not None:
            print(f"gpu: not run: {len(self.tests)} tests: {why}")
            for name, _ in self.tests:
                print(f"gpu: not run: {name}")
            return 0
        machine = ", ".join(sorted({gpu["name"] for gpu in self.gpus()}))
        print(f"## GPUs\n\nMachine: {machine}; {os.cpu_count()} cores ({platform.processor() or platform.machine()}), "
              f"Linux {platform.release()}.\n\n| test | result | seconds |\n| --- | --- | --- |", flush=True)
        failed, lacking = [], []
        for name, test in self.tests:
            start, result = time.monotonic(), "passed"
            try:
                test()
            except NotHere as why_not:
                result = f"not run: {why_not}"
                lacking.append(name)
            except Failed as what:
                result = "**failed**"
                failed.append(f"{name}: {what}")
            print(f"| {name} | {result} | {time.monotonic() - start:.1f} |", flush=True)
        for figure in self.figures:
            print("\n" + figure)
        for name in lacking:
            print(f"\ngpu: not run: {name}", end="")
        print(f"\n{len(self.tests) - len(failed) - len(lacking)} passed, {len(failed)} failed, {len(lacking)} not run")
        for what in failed:
            print(f"\ngpu: FAILED: {what}", file=sys.stderr)
        return 1 if failed else 0


def main():
    arguments = [word for word in sys.argv[1:] if word != "--no-figures"]
    if len(arguments) != 1 or not (pathlib.Path(arguments[0]) / "build.ninja").exists():
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 64
    suite = Suite(pathlib.Path(arguments[0]).resolve(), "--no-figures" not in sys.argv)
    try:
        return suite.go()
    finally:
        shutil.rmtree(suite.scratch)


if __name__ == "__main__":
    sys.exit(main())
