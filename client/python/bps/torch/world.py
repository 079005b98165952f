"""The client that the functions of bps.torch share, as Horovod's do: one per process, between init() and shutdown()."""
import itertools
import sys
from typing import Any, Optional, Sequence, Set

from .._abi import DType
from .._ending import call_witness, come_to_front
from ..client import Client, TensorSpec
from ..errors import Code, Error, invalid
from ..handle import Tensor


class World:
    """An open client. Ranks that call alike get equal numbers and names."""

    def __init__(self, client: Client) -> None:
        self.client = client
        info = client.info()
        self.sums_on_gpus = info.local_group == "nccl"  # then the job takes no memory of the host
        self.operation_timeout_s = info.operation_timeout_s
        self._unnamed: Set[str] = set()
        self._optimizers = itertools.count()
        self._hooks = itertools.count()

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """All at once, which is faster than one by one."""
        self.client.declare(specs)

    def tensor(self, name: str, dtype: DType, count: int, priority: int = 0) -> Tensor:
        """Declared now if it is new. Code.CONFIGURATION: this name has another type or length, here or elsewhere."""
        return self.client._tensor(name, dtype, count, priority)

    def take_unnamed(self, kind: str) -> str:
        """A name for a tensor without one: the first of its kind that is not in use between start and synchronize, so
        equal on ranks that call alike."""
        name = next(n for n in (f"unnamed.{kind}.{i}" for i in itertools.count()) if n not in self._unnamed)
        self._unnamed.add(name)
        return name

    def release_unnamed(self, name: str) -> None:
        self._unnamed.discard(name)

    def next_optimizer(self) -> int:
        return next(self._optimizers)

    def next_hook(self) -> int:
        return next(self._hooks)


_world: Optional[World] = None


# The scheduler takes a worker for dead 0.3 s after its connection has gone.
_LOSS_IS_KNOWN_S = 2.0


def _lost_meanwhile(exception: Exception) -> Optional[Error]:
    """A process group notices a lost worker at once, in words of its own. Then the job knows it soon; a barrier hears it.
    Not after other errors: this barrier counts, and the others may be waiting in theirs for a rank that never came."""
    group = sys.modules.get("torch.distributed")
    if _world is None or not isinstance(exception, RuntimeError) or group is None or not group.is_initialized():
        return None
    if not any(name in str(exception).lower() for name in ("gloo", "nccl")):
        return None
    try:
        _world.client.barrier(_LOSS_IS_KNOWN_S)
    except Error as error:
        return error if error.code == Code.PEER_LOST else None
    return None


def init(**options: Any) -> None:
    """Joins the job and waits for all its workers. Options: see bps.Client; most programs need none, because rank, size
    and scheduler come from the environment (bps-run, torchrun, Slurm, OpenMPI, Kubernetes); with nothing there this is rank 0
    of 1. Again: nothing happens."""
    global _world
    if _world is None:
        _world = World(Client(**options))
        call_witness(_lost_meanwhile)
    elif options:
        raise invalid("bps.torch.init() has been called before, so these options come too late: " + ", ".join(options))


def shutdown() -> None:
    """Leaves the job. Nothing happens if there is none. A program that ends does it by itself."""
    global _world
    if _world is not None:
        world, _world = _world, None
        world.client.close()


def world() -> World:
    if _world is None:
        raise Error(Code.CLOSED, "bps.torch is not in a job", "call bps.torch.init() first")
    come_to_front()  # of what torch.distributed has installed meanwhile
    return _world


def is_initialized() -> bool:
    return _world is not None


def client() -> Client:
    """For what has no function here: stats, waits so far, other operations."""
    return world().client


def rank() -> int:
    return world().client.rank


def size() -> int:
    return world().client.world_size


def local_rank() -> int:
    return world().client.local_rank


def local_size() -> int:
    return world().client.local_size


def barrier() -> None:
    """Returns when every worker has called it as often as this one."""
    world().client.barrier()
