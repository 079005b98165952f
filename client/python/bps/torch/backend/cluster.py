"""A cluster for programs that know only each other: those of torchrun, or of torch.multiprocessing.spawn.

Rank 0 starts a scheduler, and the first rank of each host a server, as processes of their own (bps/_keeper.py). All else goes
through the store that torch has: where the scheduler is, the key of the cluster, who has come. So the key is as public as the
store. A daemon ends 10 s after the last rank of its host has gone.
"""
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
from typing import Any, List, NamedTuple, Optional, Tuple

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

    def hold(self, folder: str, meeting: Meeting) -> None:
        meeting.until(lambda: self._opens(folder), "the process that keeps a daemon does not start")

    def _opens(self, folder: str) -> bool:
        try:
            descriptor = os.open(os.path.join(folder, "alive"), os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ENXIO:  # it has not come to that yet
                return False
            raise Error(Code.OS, f"a daemon of this host has ended: {last_log_line(folder)}") from error
        self._held.append(descriptor)
        os.write(descriptor, b".")
        return True

    def let_go(self) -> None:
        held, self._held = self._held, []
        for descriptor in held:
            os.close(descriptor)


class _Daemon(NamedTuple):
    keeper: "subprocess.Popen[bytes]"
    name: str
    folder: str

    def check(self) -> None:
        """Error.code OS: it has ended."""
        if self.keeper.poll() is not None:
            line = last_log_line(self.folder)
            shutil.rmtree(self.folder, ignore_errors=True)
            raise Error(Code.OS, f"{self.name} has ended: {line}")


# Until they end by themselves, which may be after this process.
_keepers: "List[subprocess.Popen[bytes]]" = []


def last_log_line(folder: str) -> str:
    log = pathlib.Path(folder) / "log"
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return lines[-1] if lines else "its log is empty"


def join(meeting: Meeting, job: str) -> Tuple[Client, Cluster]:
    """The client of this rank, in a job of a cluster of its own."""
    cluster = Cluster()
    try:
        with tempfile.TemporaryDirectory(prefix="bps-") as folder:
            return _join(meeting, job, cluster, os.path.join(folder, "key")), cluster
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


def _join(meeting: Meeting, job: str, cluster: Cluster, key_file: str) -> Client:
    host = _host_identity()
    is_first = meeting.add("host/" + host) == 1
    if is_first:
        meeting.add("hosts")
    meeting.add("ranks")
    if meeting.rank == 0:
        key = secrets.token_hex(32)
        _write_private(key_file, key)
        scheduler = _start("bps-scheduler", key_file, ["--listen", f"{_own_address(meeting.store)}:0", "--server-wait", "2s"])
        address = _address_of(scheduler, cluster, meeting)
        meeting.set("at", json.dumps({"scheduler": address, "key": key, "host": host, "folder": scheduler.folder}))
    at = json.loads(meeting.get("at", "rank 0 has started no scheduler"))
    if meeting.rank != 0:
        _write_private(key_file, at["key"])
        _check_reach(at["scheduler"], host == at["host"])
        if host == at["host"]:
            cluster.hold(at["folder"], meeting)
    if is_first:
        server = _start("bps-server", key_file, ["--scheduler", at["scheduler"], "--listen",
                                                 f"{_address_towards(at['scheduler'])}:0"])
        _address_of(server, cluster, meeting)
        meeting.set("server/" + host, server.folder)
        meeting.add("registered")
    else:
        cluster.hold(meeting.get("server/" + host, "the first rank of this host has started no server"), meeting)
    meeting.until(lambda: meeting.add("ranks", 0) == meeting.size, "some ranks have not come")
    hosts = meeting.add("hosts", 0)
    meeting.until(lambda: meeting.add("registered", 0) == hosts, "some hosts have no server")
    if meeting.rank == 0:
        _log.info("bps: a cluster of this job's own, with %d server%s; set BPS_SCHEDULER to use another one", hosts,
                  "" if hosts == 1 else "s")
    return Client(rank=meeting.rank, world_size=meeting.size, job=job, scheduler=at["scheduler"], key_file=key_file,
                  join_timeout_ms=int(meeting.timeout_s * 1000))


def _check_reach(scheduler: str, is_same_host: bool) -> None:
    host = scheduler.rpartition(":")[0].strip("[]")
    if not is_same_host and ipaddress.ip_address(host).is_loopback:
        raise Error(Code.CONFIGURATION, f"rank 0 is on another host, and its address for others is {host}",
                    "set MASTER_ADDR to an address of rank 0's host that other hosts reach, or BPS_SCHEDULER to a cluster")


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
    try:
        os.mkfifo(os.path.join(folder, "alive"), 0o600)
        shutil.copy(key_file, os.path.join(folder, "key"))  # with its mode
        command = [sys.executable, "-I", str(_KEEPER), folder, file, *arguments, "--key-file", os.path.join(folder, "key"),
                   "--ports-file", os.path.join(folder, "ports"), "--log-level", "warn"]
        # What is meant for the ranks is not for daemons.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BPS_")}
        with open(os.path.join(folder, "log"), "wb") as log:  # who reads our output does not wait for the daemon's end
            keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                      env=environment)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _keepers[:] = [one for one in _keepers if one.poll() is None] + [keeper]
    return _Daemon(keeper, name, folder)


def _address_of(daemon: _Daemon, cluster: Cluster, meeting: Meeting) -> str:
    """When it has one."""
    ports = pathlib.Path(daemon.folder) / "ports"

    def is_there() -> bool:
        daemon.check()
        return ports.is_file()

    def is_held() -> bool:
        daemon.check()
        return cluster._opens(daemon.folder)

    meeting.until(is_held, f"the process that keeps {daemon.name} does not start")
    meeting.until(is_there, f"{daemon.name} does not listen")
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
