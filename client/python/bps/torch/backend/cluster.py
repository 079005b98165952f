"""A cluster for programs that know only each other: those of torchrun, or of torch.multiprocessing.spawn.

Rank 0 starts a scheduler, and the first rank of each host a server, as processes of their own (bps/_keeper.py). All else goes
through the store that torch has: where the scheduler is, the key of the cluster, who has come. So the key is as public as the
store. A daemon ends 10 s after the last rank of its host has gone.
"""
import errno
import json
import logging
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from typing import Any, Callable, List, NamedTuple, Optional

import torch.distributed as dist

from ... import _library
from ...client import Client
from ...errors import Code, Error

_PAUSE_S = 0.01
_pause = threading.Event()
_KEEPER = pathlib.Path(__file__).resolve().parents[2] / "_keeper.py"
_log = logging.getLogger("bps")


class Cluster:
    """What this rank holds of it: the daemons of its host live as long as this."""

    def __init__(self) -> None:
        self._held: List[int] = []

    def hold(self, fifo: str, meeting: "_Meeting") -> None:
        meeting.until(lambda: self._opens(fifo), "the process that keeps a daemon does not start")

    def _opens(self, fifo: str) -> bool:
        try:
            descriptor = os.open(fifo, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # it has not come to that yet
                raise Error(Code.OS, f"a daemon of this host has ended: {error}") from error
            return False
        self._held.append(descriptor)
        os.write(descriptor, b".")
        return True

    def let_go(self) -> None:
        held, self._held = self._held, []
        for descriptor in held:
            os.close(descriptor)


class _Daemon(NamedTuple):
    process: "subprocess.Popen[bytes]"
    folder: str

    @property
    def fifo(self) -> str:
        return os.path.join(self.folder, "alive")

    def last_words(self) -> str:
        log = pathlib.Path(self.folder) / "log"
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        return lines[-1] if lines else "it has said nothing"


class _Meeting:
    """The ranks of one init_process_group in the store."""

    def __init__(self, store: Any, generation: int, rank: int, size: int, timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._prefix = f"bps/cluster/{generation}/"
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s

    def add(self, key: str, number: int = 1) -> int:
        return int(self._store.add(self._prefix + key, number))

    def set(self, key: str, text: str) -> None:
        self._store.set(self._prefix + key, text)

    def fail(self, error: Error) -> None:
        """All others hear of it."""
        self.set("failed", f"rank {self.rank} on {socket.gethostname()}: {error.message}")

    def get(self, key: str, what: str) -> str:
        # A blocking wait would stop the other users of this store.
        self.until(lambda: self._store.check([self._prefix + key]), what)
        return str(self._store.get(self._prefix + key).decode())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        while not condition():
            if self._store.check([self._prefix + "failed"]):
                raise Error(Code.UNREACHABLE, "no cluster was started: " + self._store.get(self._prefix + "failed").decode())
            if time.monotonic() > self._deadline:
                raise Error(Code.DEADLINE, f"no cluster was started within {self._timeout_s:g} s: {what}",
                            "start the missing ranks, or give a longer timeout to init_process_group")
            _pause.wait(_PAUSE_S)  # no other way to look at a store without stopping its other users


def join(store: Any, generation: int, rank: int, size: int, job: str, timeout_s: float) -> "tuple[Client, Cluster]":
    """The client of this rank, in a job of a cluster of its own."""
    meeting = _Meeting(store, generation, rank, size, timeout_s)
    try:
        return _join(meeting, store, job, timeout_s)
    except Error as error:
        if error.code != Code.UNREACHABLE:  # then another one has told it
            meeting.fail(error)
        raise


def _join(meeting: _Meeting, store: Any, job: str, timeout_s: float) -> "tuple[Client, Cluster]":
    cluster = Cluster()
    host = _host_identity()
    is_first = meeting.add("host/" + host) == 1
    if is_first:
        meeting.add("hosts")
    meeting.add("ranks")
    with tempfile.TemporaryDirectory(prefix="bps-") as folder:
        key_file = os.path.join(folder, "key")
        if meeting.rank == 0:
            key = secrets.token_hex(32)
            _write_private(key_file, key)
            scheduler = _start("bps-scheduler", key_file, ["--listen", f"{_own_address(store)}:0", "--server-wait", "2s"])
            cluster.hold(scheduler.fifo, meeting)
            address = _address_of(scheduler, "bps-scheduler", meeting)
            meeting.set("at", json.dumps({"scheduler": address, "key": key, "host": host, "fifo": scheduler.fifo}))
        at = json.loads(meeting.get("at", "rank 0 has started no scheduler"))
        if meeting.rank != 0:
            _write_private(key_file, at["key"])
        if meeting.rank != 0 and at["host"] == host:
            cluster.hold(at["fifo"], meeting)
        if is_first:
            server = _start("bps-server", key_file, ["--scheduler", at["scheduler"], "--listen",
                                                     f"{_address_towards(at['scheduler'])}:0"])
            cluster.hold(server.fifo, meeting)
            _address_of(server, "bps-server", meeting)
            meeting.set("server/" + host, server.fifo)
            meeting.add("registered")
        else:
            cluster.hold(meeting.get("server/" + host, "the first rank of this host has started no server"), meeting)
        meeting.until(lambda: meeting.add("ranks", 0) == meeting.size, "some ranks have not come")
        hosts = meeting.add("hosts", 0)
        meeting.until(lambda: meeting.add("registered", 0) == hosts, "some hosts have no server")
        if meeting.rank == 0:
            _log.info("bps: a cluster of this job's own, with %d server%s; set BPS_SCHEDULER to use another one", hosts,
                      "" if hosts == 1 else "s")
        client = Client(rank=meeting.rank, world_size=meeting.size, job=job, scheduler=at["scheduler"], key_file=key_file,
                        join_timeout_ms=int(timeout_s * 1000))
    return client, cluster


def _write_private(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")


def program(name: str) -> str:
    """Where a daemon is: where pip has put it, beside the library, on the path. Error.code CONFIGURATION: nowhere."""
    library = pathlib.Path(_library.find())
    beside = [pathlib.Path(sysconfig.get_path("scripts")) / name]
    if library.is_absolute() or len(library.parts) > 1:
        beside.append(library.resolve().parent.parent / "bin" / name)
    for path in beside:
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which(name)
    if found is None:
        raise Error(Code.CONFIGURATION, f"{name} is neither in this environment, nor beside the library, nor on the path",
                    "install the wheel with its programs, or set BPS_SCHEDULER to a cluster that runs")
    return found


def _start(name: str, key_file: str, arguments: List[str]) -> _Daemon:
    file = program(name)
    folder = tempfile.mkdtemp(prefix="bps-")
    os.mkfifo(os.path.join(folder, "alive"), 0o600)
    shutil.copy(key_file, os.path.join(folder, "key"))
    os.chmod(os.path.join(folder, "key"), 0o600)
    command = [sys.executable, "-I", str(_KEEPER), folder, file, *arguments, "--key-file", os.path.join(folder, "key"),
               "--ports-file", os.path.join(folder, "ports"), "--log-level", "warn"]
    # What is meant for the ranks is not for daemons.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BPS_")}
    try:
        with open(os.path.join(folder, "log"), "wb") as log:  # who reads our output does not wait for the daemon's end
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                       env=environment)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise Error(Code.OS, f"cannot start {name}: {error}") from error
    return _Daemon(process, folder)


def _address_of(daemon: _Daemon, name: str, meeting: _Meeting) -> str:
    """When it has it."""
    ports = pathlib.Path(daemon.folder) / "ports"

    def is_there() -> bool:
        if daemon.process.poll() is not None:
            raise Error(Code.OS, f"{name} has ended: {daemon.last_words()}")
        return ports.is_file()

    meeting.until(is_there, f"{name} does not say where it listens")
    return ports.read_text().split()[1]


def _host_identity() -> str:
    """Equal for processes that can reach each other's FIFOs and loopback."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{os.stat('/proc/self/ns/mnt').st_ino}"


def _own_address(store: Any) -> str:
    """By which the others reach this host, as they reach that of the store."""
    base = store
    while hasattr(base, "underlying_store"):
        base = base.underlying_store
    host: Optional[str] = getattr(base, "host", None) if isinstance(base, dist.TCPStore) else None
    return "127.0.0.1" if host is None else _address_towards(f"{host}:{base.port}")


def _address_towards(endpoint: str) -> str:
    host, _, port = endpoint.rpartition(":")
    family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        own = str(probe.getsockname()[0])
    return f"[{own}]" if family == socket.AF_INET6 else own
