"""`torch.distributed.init_process_group("bps")`: how a process group comes to its ranks, its client and its job."""
import os
import threading
import time
import uuid
from typing import Any, Callable, List, Optional, Tuple

import torch.distributed as dist

from ...client import Client
from ...errors import Error
from .call import told
from . import cluster
from .members import Members
from .routes import backend_class, process_group_class

_BACKEND_SINCE = (2, 14)
_PAUSE_S = 0.005
_pause = threading.Event()


class _Job:
    """Of the default group of this process, which groups of its ranks share."""

    client: Optional[Client] = None
    pid = 0


# torch drops the Python half of some groups while it still uses them (TORCH_DISTRIBUTED_DEBUG=DETAIL).
_alive: List[Any] = []


_makes: Any = None


def register(version: Tuple[int, ...]) -> None:
    """version: of torch, 2.6 or later."""
    global _makes
    _makes = backend_class() if version >= _BACKEND_SINCE else process_group_class()
    dist.Backend.register_backend("bps", create, extended_api=True, devices=["cpu", "cuda"])


def create(options: Any, backend_options: Any = None) -> Any:
    """For torch, once for each process group of this rank."""
    timeout_s = options.timeout.total_seconds()
    ranks = list(options.global_ranks_in_group)
    shared = _Job.client if _Job.pid == os.getpid() else None
    if ranks and shared is not None and not shared._closed:
        group = shared.group(f"torch.{options.group_id}", ranks)
        members = Members(shared, group, ranks, timeout_s)
    else:
        try:
            client, own_cluster = _join(options, timeout_s)
        except Error as error:
            raise told(error, "bps: init_process_group") from error
        if not ranks:
            _Job.client, _Job.pid = client, os.getpid()
        members = Members(client, client.world, range(client.world_size), timeout_s,
                          _ending(client, own_cluster))
    made = _makes(members)
    _alive.append(made)
    return made


def _ending(client: Client, own_cluster: Optional[cluster.Cluster]) -> Callable[[bool], None]:
    def end(by_abandoning: bool) -> None:
        try:
            client.abandon() if by_abandoning else client.close()
        finally:
            if own_cluster is not None:
                own_cluster.let_go()

    return end


def _join(options: Any, timeout_s: float) -> Tuple[Client, Optional[cluster.Cluster]]:
    rank, size = options.group_rank, options.group_size
    # The store may still have the keys of the time before destroy and init.
    generation = options.store.add(f"bps/generation/{rank}", 1)
    job = _job_name(options.store, generation, rank, timeout_s)
    if size > 1 and not any(os.environ.get(name) for name in ("BPS_SCHEDULER", "BPS_CONFIG")):
        return cluster.join(options.store, generation, rank, size, job, timeout_s)
    return Client(rank=rank, world_size=size, job=job, join_timeout_ms=int(timeout_s * 1000)), None


def _job_name(store: Any, generation: int, rank: int, timeout_s: float) -> str:
    """The same on all ranks."""
    key = f"bps/job/{generation}"
    if rank == 0:
        name = os.environ.get("BPS_JOB") or f"torch-{uuid.uuid4().hex[:12]}"
        store.set(key, name)
        return name
    deadline = time.monotonic() + timeout_s
    while not store.check([key]):  # a blocking wait stops other users of the store
        if time.monotonic() > deadline:
            rank_0 = store.add("bps/generation/0", 0)
            raise dist.DistBackendError(f"bps: rank 0 has not joined within {timeout_s:g} s: rank {rank} calls init_process_group "
                                        f"for the {_ordinal(generation)} time, rank 0 has called it {rank_0} times")
        _pause.wait(_PAUSE_S)  # no other way to look at a store without stopping its other users
    return str(store.get(key).decode())


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
