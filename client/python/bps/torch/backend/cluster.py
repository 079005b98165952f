"""A cluster for programs that know only each other: those of torchrun, or of torch.multiprocessing.spawn.

Rank 0 starts a scheduler, and the first rank of each host a server, as processes of their own (bps/_keeper.py). The ranks
exchange the scheduler's address and the key of the cluster through torch's store. Whoever reads the store has the key. A daemon
ends 10 s after the last rank of its host has ended.
"""
import atexit
import errno
import ipaddress
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
import weakref
from typing import Any, List, Optional, Tuple

import torch.distributed as dist

from ... import _library
from ...client import Client
from ...errors import Code, Error
from .meeting import Meeting

_KEEPER = pathlib.Path(__file__).resolve().parents[2] / "_keeper.py"
_log = logging.getLogger("bps")


class Cluster:
    """What this rank holds of it: the daemons of its host live as long as this."""

    def __init__(self) -> None:
        self._held: List[int] = []
        _clusters.add(self)

    def hold(self, folder: str, meeting: Meeting, keeper: "Optional[subprocess.Popen[bytes]]" = None) -> None:
        """Error.code OS: the daemon has ended."""
        def opens() -> bool:
            _check(folder, keeper)
            return self._opens(folder)

        meeting.until(opens, "the process that keeps a daemon does not start")

    def _opens(self, folder: str) -> bool:
        try:
            descriptor = os.open(os.path.join(folder, "alive"), os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ENXIO:  # it has not come to that yet
                return False
            raise Error(Code.OS, f"a daemon of this host has ended: {_last_log_line(folder)}") from error
        self._held.append(descriptor)
        os.write(descriptor, b".")
        return True

    def let_go(self) -> None:
        self.close()
        _remove_what_is_left()

    def close(self) -> None:
        held, self._held = self._held, []
        for descriptor in held:
            os.close(descriptor)


_clusters: "weakref.WeakSet[Cluster]" = weakref.WeakSet()
# Keepers that this process has started, with their folders, until they end by themselves, which may be after this process.
_keepers: "List[Tuple[subprocess.Popen[bytes], str]]" = []


def _remove_what_is_left() -> None:
    """Of keepers that have ended: the log, which nobody has read, or all, if one was killed."""
    for keeper, folder in list(_keepers):
        if keeper.poll() is not None:
            shutil.rmtree(folder, ignore_errors=True)
            _keepers.remove((keeper, folder))


atexit.register(_remove_what_is_left)  # of one that was about to end when its job did


def _forget() -> None:
    """A child of fork is no rank: daemons do not wait for it."""
    _keepers.clear()
    for cluster in list(_clusters):
        cluster.close()


os.register_at_fork(after_in_child=_forget)


def _check(folder: str, keeper: "Optional[subprocess.Popen[bytes]]") -> None:
    if keeper is not None and keeper.poll() is not None:
        line = _last_log_line(folder)
        shutil.rmtree(folder, ignore_errors=True)
        raise Error(Code.OS, f"a daemon has ended: {line}")


def _last_log_line(folder: str) -> str:
    log = pathlib.Path(folder) / "log"
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return lines[-1] if lines else "its log is empty"


class _KeyFile:
    """In memory, so that nothing of it stays however this process ends; processes that it is passed on to open the same path."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("bps-key")
        os.fchmod(self.descriptor, 0o600)
        self.path = f"/proc/self/fd/{self.descriptor}"

    def write(self, digits: str) -> None:
        os.write(self.descriptor, digits.encode() + b"\n")

    def __enter__(self) -> "_KeyFile":
        return self

    def __exit__(self, *_: Any) -> None:
        os.close(self.descriptor)


def join(meeting: Meeting, job: str) -> Tuple[Client, Cluster]:
    """The client of this rank, in a job of a cluster of its own."""
    cluster = Cluster()
    try:
        with _KeyFile() as key:
            return _join(meeting, job, cluster, key), cluster
    except OSError as error:
        cluster.let_go()
        failure = Error(Code.OS, f"no cluster can be started: {error}")
        meeting.fail(failure)
        raise failure from error
    except BaseException as error:
        cluster.let_go()
        if isinstance(error, Error):
            meeting.fail(error)
        raise


def _join(meeting: Meeting, job: str, cluster: Cluster, key: _KeyFile) -> Client:
    host = _host_identity()
    is_first = meeting.add("host/" + host) == 1
    if is_first:
        meeting.add("hosts")
    meeting.arrive()
    if meeting.rank == 0:
        digits = secrets.token_hex(32)
        key.write(digits)
        folder, address = _start("bps-scheduler", key, ["--listen", f"{_own_address(meeting.store)}:0", "--server-wait", "2s"],
                                 cluster, meeting)
        meeting.set("at", json.dumps({"scheduler": address, "key": digits, "host": host, "folder": folder}))
    at = json.loads(meeting.get("at", "rank 0 has started no scheduler"))
    if meeting.rank != 0:
        key.write(at["key"])
        _check_reach(at["scheduler"], host == at["host"])
        if host == at["host"]:
            cluster.hold(at["folder"], meeting)
    if is_first:
        folder, _ = _start("bps-server", key, ["--scheduler", at["scheduler"], "--listen",
                                               f"{_address_towards(at['scheduler'])}:0"], cluster, meeting)
        meeting.set("server/" + host, folder)
        meeting.add("registered")
    else:
        cluster.hold(meeting.get("server/" + host, "the first rank of this host has started no server"), meeting)
    meeting.wait_for_all()
    hosts = meeting.add("hosts", 0)
    meeting.until(lambda: meeting.add("registered", 0) == hosts, "some hosts have no server")
    if meeting.rank == 0:
        _log.info("bps: a cluster of this job's own, with %d server%s, whose key is in torch's store; set BPS_SCHEDULER to use "
                  "another one", hosts, "" if hosts == 1 else "s")
    return Client(rank=meeting.rank, world_size=meeting.size, job=job, scheduler=at["scheduler"], key_file=key.path,
                  join_timeout_ms=meeting.join_timeout_ms())


def _check_reach(scheduler: str, is_same_host: bool) -> None:
    host = scheduler.rpartition(":")[0].strip("[]")
    if not is_same_host and ipaddress.ip_address(host).is_loopback:
        raise Error(Code.CONFIGURATION, f"rank 0 is on another host, and its address for others is {host}",
                    "set MASTER_ADDR to an address of rank 0's host that other hosts reach, or BPS_SCHEDULER to a cluster")


def program(name: str) -> str:
    """Where a daemon is: beside the library, where pip has put it, on the path. Error.code CONFIGURATION: nowhere."""
    library = pathlib.Path(_library.find())
    is_path = library.is_absolute() or len(library.parts) > 1
    folders = [library.resolve().parent.parent / "bin"] if is_path else []
    for folder in (*folders, pathlib.Path(sysconfig.get_path("scripts"))):
        path = folder / name
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which(name)
    if found is None:
        raise Error(Code.CONFIGURATION, f"{name} is neither in this environment, nor beside the library, nor on the path",
                    "install the wheel with its programs, or set BPS_SCHEDULER to a cluster that runs")
    return found


def _start(name: str, key: _KeyFile, arguments: List[str], cluster: Cluster, meeting: Meeting) -> Tuple[str, str]:
    """Its private folder, and where it listens."""
    file = program(name)
    folder = tempfile.mkdtemp(prefix="bps-")
    ports = pathlib.Path(folder) / "ports"
    try:
        os.mkfifo(os.path.join(folder, "alive"), 0o600)
        command = [sys.executable, "-I", str(_KEEPER), str(os.getpid()), folder, file, *arguments, "--key-file", key.path,
                   "--ports-file", str(ports), "--log-level", "warn"]
        # What is meant for the ranks is not for daemons.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BPS_")}
        with open(os.path.join(folder, "log"), "wb") as log:  # who reads our output does not wait for the daemon's end
            keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                      env=environment, pass_fds=(key.descriptor,))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _remove_what_is_left()
    _keepers.append((keeper, folder))
    cluster.hold(folder, meeting, keeper)

    def is_there() -> bool:
        _check(folder, keeper)
        return ports.is_file()

    meeting.until(is_there, f"{name} does not listen")
    return folder, ports.read_text().split()[1]


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
