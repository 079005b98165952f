"""`torch.distributed.init_process_group("bps")`: how a process group comes to its ranks, its client and its job."""
import os
import uuid
from typing import Any, List, Optional, Tuple

import torch.distributed as dist

from ...client import Client
from . import cluster
from .call import torch_errors
from .job import Job
from .meeting import Meeting
from .members import Members
from .routes import backend_class, process_group_class

_BACKEND_SINCE = (2, 14)


class _Registry:
    """Makes the process groups of this process, and owns them until they are destroyed: torch drops the Python half of some
    while it still uses them (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""

    def __init__(self, version: Tuple[int, ...]) -> None:
        self._made = backend_class(self._own) if version >= _BACKEND_SINCE else process_group_class()
        self._alive: List[Any] = []
        self._default: Optional[Job] = None

    def create(self, options: Any, backend_options: Any = None) -> Any:
        """For torch, once for each process group of this rank."""
        with torch_errors("bps: init_process_group", is_of_call=False):
            members = self._members(options)
        return self._own(self._made(members))

    def _own(self, made: Any) -> Any:
        self._alive = [one for one in self._alive if not one.members.has_ended] + [made]
        return made

    def _members(self, options: Any) -> Members:
        timeout_s = options.timeout.total_seconds()
        ranks = list(options.global_ranks_in_group)
        if ranks and self._default is not None and self._default.is_here:
            group = self._default.client.group(f"torch.{options.group_id}", ranks)
            return Members(self._default, group, ranks, timeout_s, owns_job=False)
        job = _join(options, timeout_s)
        if not ranks:
            self._default = job
        return Members(job, job.client.world, range(job.client.world_size), timeout_s, owns_job=True)


def register(version: Tuple[int, ...]) -> None:
    """version: of torch, 2.6 or later."""
    dist.Backend.register_backend("bps", _Registry(version).create, extended_api=True, devices=["cpu", "cuda"])


def _join(options: Any, timeout_s: float) -> Job:
    meeting = Meeting(options.store, options.group_rank, options.group_size, timeout_s)
    if meeting.rank == 0:
        meeting.set("job", _job_name(options))
    job = meeting.get("job", meeting.rank_0_is_late)
    has_cluster = any(os.environ.get(name) for name in ("BPS_SCHEDULER", "BPS_CONFIG"))
    if meeting.size > 1 and not has_cluster:
        return Job(*cluster.join(meeting, job), meeting)
    client = Client(rank=meeting.rank, world_size=meeting.size, job=job, join_timeout_ms=meeting.join_timeout_ms(),
                    scheduler=None if has_cluster else "embedded:")
    return Job(client, None, meeting)


def _job_name(options: Any) -> str:
    """Not that of bps.torch.init(), which the same program may call. Of a group in a world of another backend, too: its ranks are
    a job of their own."""
    named = os.environ.get("BPS_JOB")
    if not named:
        return f"torch-{uuid.uuid4().hex[:12]}"
    return f"{named}-{options.group_id if options.global_ranks_in_group else 'torch'}"
