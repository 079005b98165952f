"""The process group that DistributedDataParallel wants even if its buckets go another way."""
import os
import socket
from typing import Any

import torch.distributed

from .._ending import come_to_front
from .broadcast import broadcast_object
from .world import local_size, rank, size


def init_process_group(backend: str = "gloo", **options: Any) -> None:
    """torch.distributed.init_process_group for the ranks of this job, on a free port that rank 0 sends the others through
    bps: for programs without a launcher that sets MASTER_ADDR and MASTER_PORT, as under bps-run.

    On several hosts the others reach rank 0 by its host name, or by MASTER_ADDR if rank 0 has it. Options go on to torch.
    """
    host = "127.0.0.1" if local_size() == size() else os.environ.get("MASTER_ADDR", socket.gethostname())
    if rank() == 0:
        store = torch.distributed.TCPStore(host, 0, size(), True, wait_for_workers=False)
        broadcast_object((host, store.port))
    else:
        host, port = broadcast_object(None)
        store = torch.distributed.TCPStore(host, port, size(), False)
    torch.distributed.init_process_group(backend, store=store, rank=rank(), world_size=size(), **options)
    come_to_front()
