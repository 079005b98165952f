"""What Horovod's programs ask about the job and about the library, answered for bps."""
import array
from typing import Any, List

import torch

from .._abi import Op
from ..errors import Code, Error
from .stream import reduce_bytes
from .world import world


def ask_for_hosts() -> None:
    """Local rank and number of ranks of the host, of each rank. On all ranks, when they join: later a rank may ask alone."""
    place = world()
    if place.hosts:
        return
    client = place.client
    if client.local_size == client.world_size:
        place.hosts = [(rank, client.world_size) for rank in range(client.world_size)]
        return
    numbers = array.array("i", [0] * (2 * client.world_size))
    numbers[2 * client.rank], numbers[2 * client.rank + 1] = client.local_rank, client.local_size
    buffer = bytearray(numbers.tobytes())
    reduce_bytes(place, buffer, Op.SUM, "ranks of each host")
    numbers = array.array("i", bytes(buffer))
    place.hosts = list(zip(numbers[::2], numbers[1::2]))


def cross_rank() -> int:
    """The place of this host among those that have a rank with this local rank."""
    return _peers().index(world().client.rank)


def cross_size() -> int:
    """How many hosts have a rank with this local rank."""
    return len(_peers())


def is_homogeneous() -> bool:
    """Do all hosts have equally many ranks?"""
    return len({ranks for _, ranks in world().hosts}) == 1


def _peers() -> List[int]:
    place = world()
    mine, _ = place.hosts[place.client.rank]
    return [rank for rank, (local, _) in enumerate(place.hosts) if local == mine]


def _is_not_used() -> bool:
    """bps has its own servers and transports."""
    return False


mpi_built = mpi_enabled = gloo_built = gloo_enabled = ddl_built = ccl_built = rocm_built = _is_not_used
mpi_threads_supported = _is_not_used


def nccl_built() -> int:
    """Horovod's: the version of NCCL that its operations use, 0 for none. Operations of bps use none."""
    return 0


def cuda_built() -> bool:
    """Does it take tensors of a CUDA GPU? Then this PyTorch has them."""
    return torch.version.cuda is not None


def _no_timeline(*_: Any, **__: Any) -> None:
    raise Error(Code.CONFIGURATION, "there is no timeline", "use torch.profiler, or bpsctl status")


start_timeline = _no_timeline
stop_timeline = _no_timeline
