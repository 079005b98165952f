"""The job of a process group that has joined one, and how it ends."""
import os
from typing import Optional

from ...client import Client
from .cluster import Cluster
from .meeting import Meeting


class Job:
    """Owner: the Members that have joined it; those of groups of its ranks share it."""

    def __init__(self, client: Client, cluster: Optional[Cluster], meeting: Meeting) -> None:
        self.client = client
        self.has_timed_out = False
        self.is_over = False
        self._cluster = cluster
        self._timeout_s = meeting.timeout_s
        # Others may be at the next init_process_group already, and look for it where rank 0 has it.
        self._store = meeting.store
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Open, and not that of a process which has forked this one."""
        return not self.is_over and self._pid == os.getpid()

    def end(self, by_abandoning: bool) -> None:
        """A call that has timed out may never end, so such a job is given up."""
        self.is_over = True
        try:
            if by_abandoning or self.has_timed_out:
                self.client.abandon()
            else:
                self.client.close(self._timeout_s)
        finally:
            if self._cluster is not None:
                self._cluster.let_go()
