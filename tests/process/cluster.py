"""What the process tests share: a private folder, fake daemons, and bps-run as a child."""
import os
import pathlib
import select
import signal
import subprocess
import tempfile
import time
import unittest

LIMIT = 120  # seconds after which anything is considered to hang

# Listens nowhere, but says so; ends by SIGTERM with status 0. SIGTERM comes to its group: a shell that sees its mv or tail
# killed first writes "Terminated" to its stderr.
FAKE_DAEMON = """#!/bin/sh
while [ $# -gt 0 ]; do case $1 in --ports-file) ports=$2 ;; esac; shift; done
trap 'exit 0' TERM
exec 2>/dev/null
echo "${0##*/} $$"
echo "listen 127.0.0.1:4999" >"$ports.new" && mv "$ports.new" "$ports"
tail -f /dev/null & wait
"""


def heirs_of(temporary):
    """Processes, not counting dead ones, that have inherited this TMPDIR: those of a test that has one of its own."""
    mark = f"TMPDIR={temporary}".encode()
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            pass
    return found


class Run:
    """A bps-run that is under way."""

    def __init__(self, command, environment, **arguments):
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, **arguments)
        self.seen = b""

    def wait_for(self, text, times=1):
        """Reads stdout until `text` has come so often."""
        deadline = time.monotonic() + LIMIT
        while self.seen.count(text.encode()) < times:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                raise AssertionError(f"no {text!r} in {self.seen!r}; stderr: {self.process.stderr.read()!r}")
            self.seen += chunk
        return self.seen.decode()

    def end(self):
        """The exit status and all output; the pipes must close, so no descendant may hold them."""
        out, err = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, (self.seen + out).decode(), err.decode()


class ClusterTest(unittest.TestCase):
    bps_run = None  # path of the program under test

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for daemon in ("bps-scheduler", "bps-server"):
            self.write(f"bin/{daemon}", FAKE_DAEMON)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("BPS_")}
        self.environment["TMPDIR"] = str(self.temporary)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def start(self, *arguments, **popen):
        run = Run([self.bps_run, "--bin-dir", str(self.bin), *arguments], self.environment, **popen)
        self.addCleanup(self.abandon, run)
        return run

    def run_to_end(self, *arguments):
        return self.start(*arguments).end()

    def shell(self, script, *flags, workers=1, servers=1):
        """Arguments of a run whose workers are a shell script."""
        return ("-n", str(workers), "-s", str(servers), *flags, "--", "sh", "-c", script)

    def abandon(self, run):
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
        run.process.communicate()

    def assert_nothing_left(self):
        # What is killed last is gone from /proc at most a moment after its pipes closed.
        deadline = time.monotonic() + LIMIT
        while (left := heirs_of(self.temporary)) and time.monotonic() < deadline:
            os.sched_yield()
        self.assertEqual(left, [])
        self.assertEqual(list(self.temporary.iterdir()), [])
