"""What the tests of the real programs share: processes whose lines can be waited for, and a cluster of them."""
import contextlib
import pathlib
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

# These are for a machine that is ten times as slow as usual.
LIMIT = 120  # seconds after which anything is considered to hang
DETECTION = 30.0  # seconds within which all have noticed that a process is dead
SILENCE = 60.0  # the same for one that hangs
# How it was noticed, in the words of the scheduler: at once, or by its clock.
LOST = r"connection lost \d"
SILENT = r"no heartbeat for \d"


class Process:
    """A child whose output is read all the time, so that it never blocks on it."""

    def __init__(self, name, command, environment):
        self.name = name
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace", bufsize=1)
        self.readers = [threading.Thread(target=self._read, args=(stream,))
                        for stream in (self.process.stdout, self.process.stderr)]
        for reader in self.readers:
            reader.start()

    def _read(self, stream):
        for line in stream:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def text(self):
        with self.changed:
            return "\n".join(self.lines)

    def wait_line(self, pattern, limit=LIMIT):
        """The first line that matches; an error if the process ends without it."""
        deadline = time.monotonic() + limit
        with self.changed:
            while True:
                for line in self.lines:
                    if re.search(pattern, line):
                        return line
                over = not any(reader.is_alive() for reader in self.readers)
                left = deadline - time.monotonic()
                if over or left <= 0:
                    how = "it ended without one" if over else f"in {limit} s"
                    raise AssertionError(f"{self.name}: no line like {pattern!r}, {how}:\n" + "\n".join(self.lines))
                self.changed.wait(min(left, 0.05))

    def end(self, limit=LIMIT):
        """The exit status; all output is there."""
        try:
            status = self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end:\n{self.text()}") from None
        for reader in self.readers:
            reader.join(timeout=LIMIT)
        return status

    def say(self, line=""):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number):
        self.process.send_signal(number)

    def abandon(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join(timeout=LIMIT)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except BrokenPipeError:
                pass


class DaemonTest(unittest.TestCase):
    bin = None  # folder of bps-scheduler and bps-server
    worker_program = None
    netlab, host = None, 0  # where the next process is started, if not here: a netlab.Lab and a host of it

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.count = 0

    @classmethod
    @contextlib.contextmanager
    def outside_of_tests(cls, bin, worker_program=None):
        """For what only wants the programs: all have ended when the block is left."""
        cluster = cls()
        cluster.bin, cluster.worker_program = bin, worker_program
        cluster.setUp()
        try:
            yield cluster
        finally:
            cluster.doCleanups()

    def start(self, name, *command, environment=None):
        if self.netlab is not None:
            command = self.netlab.on(self.host, command)
        process = Process(name, [str(word) for word in command], environment or {})
        self.addCleanup(process.abandon)
        return process

    def daemon(self, name, program, *flags, listen="127.0.0.1:0", under=()):
        """Started, and listening. `under`: a command that runs the command behind it."""
        if self.netlab is not None:
            listen, flags = self.netlab.address(self.host) + ":0", (*flags, "--insecure")
        self.count += 1
        ports = self.folder / f"ports{self.count}"
        process = self.start(name, *under, self.bin / program, "--listen", listen, "--ports-file", ports, *flags)
        deadline = time.monotonic() + LIMIT
        while not ports.exists():
            if process.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{name} does not listen:\n{process.text()}")
            threading.Event().wait(0.005)
        process.address = re.search(r"^listen (\S+)$", ports.read_text(), re.M).group(1)
        return process

    def scheduler(self, *flags, listen=None):
        """Its port is free for it, too, when it is started again."""
        return self.daemon("scheduler", "bps-scheduler", *flags, listen=listen or f"127.0.0.1:{self.free_port()}")

    def server(self, scheduler, *flags, listen="127.0.0.1:0", under=()):
        return self.daemon("server", "bps-server", "--scheduler", getattr(scheduler, "address", scheduler), *flags,
                           listen=listen, under=under)

    def worker(self, scheduler, rank, size, *flags, job="job", env=None):
        environment = {"BPS_SCHEDULER": getattr(scheduler, "address", scheduler), "BPS_JOB": job, "BPS_RANK": str(rank),
                       "BPS_WORLD_SIZE": str(size), **(env or {})}
        return self.start(f"{job} rank {rank}", self.worker_program, *flags, environment=environment)

    def workers(self, scheduler, size, *flags, job="job", env=None):
        return [self.worker(scheduler, rank, size, *flags, job=job, env=env) for rank in range(size)]

    def cluster(self, servers=1, *flags):
        scheduler = self.scheduler()
        return scheduler, [self.server(scheduler, *flags) for _ in range(servers)]

    def go_on(self, workers):
        """All of them, who work until they are told, finish rounds that began after this moment."""
        seen = [len(worker.lines) for worker in workers]
        deadline = time.monotonic() + LIMIT
        for worker, count in zip(workers, seen):
            while len(worker.lines) < count + 2:
                if worker.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"{worker.name} does not go on:\n{worker.text()}")
                self.pause()

    @staticmethod
    def pause(seconds=0.002):
        threading.Event().wait(seconds)

    def assert_status(self, process, status, *patterns, limit=LIMIT):
        self.assertEqual(process.end(limit), status, f"{process.name}:\n{process.text()}")
        for pattern in patterns:
            self.assertRegex(process.text(), pattern, process.name)

    def assert_works(self, scheduler, job="check"):
        """A small job of two runs through."""
        for worker in self.workers(scheduler, 2, "--elements", "1000", "--rounds", "2", job=job):
            self.assert_status(worker, 0, "closed")

    @staticmethod
    def free_port():
        """Not one of those that the kernel gives to whoever connects or asks for any, if there are others."""
        first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        ports = range(max(1024, first // 2), max(1025, first))
        for port in [*random.sample(ports, min(100, len(ports))), 0]:
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return probe.getsockname()[1]
        raise OSError("there is no free port")

    @staticmethod
    def connect(address):
        host, port = address.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=LIMIT)


def main(test_class_modules, argv):
    """PROGRAM-FOLDER WORKER [unittest arguments]"""
    DaemonTest.bin = pathlib.Path(argv[1]).resolve()
    DaemonTest.worker_program = pathlib.Path(argv[2]).resolve()
    unittest.main(module=test_class_modules, argv=[argv[0], *argv[3:]], verbosity=2)
