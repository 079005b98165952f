"""Process sets: ranks of the job that make calls of their own, as Horovod has them."""
import operator
from typing import Any, List, Optional, Sequence, Union

from ..errors import Code, Error, invalid
from . import world as job
from .about import ask_for_hosts
from .calls import CallGroup, calls_of_all, groups_of
from .world import World, world


class ProcessSet:
    """Ranks of the job. It can be used after init(process_sets=...) or add_process_set()."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.process_set_id: Optional[int] = None
        self.ranks: Optional[List[int]] = _sorted(ranks)

    def size(self) -> Optional[int]:
        """None: it is not in use."""
        return None if self.process_set_id is None else len(_ranks_of(self))

    def rank(self) -> Optional[int]:
        """The place of this rank in the set. None: the set is not in use, or this rank is not in it."""
        if self.process_set_id is None or not self.included():
            return None
        return _ranks_of(self).index(job.rank())

    def included(self) -> bool:
        return job.rank() in _ranks_of(self)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _AllRanks(ProcessSet):
    """Of whatever job there is."""

    def __init__(self) -> None:
        self.process_set_id = 0

    @property
    def ranks(self) -> Optional[List[int]]:  # type: ignore[override]
        return list(range(job.size())) if job.is_initialized() else None


global_process_set: ProcessSet = _AllRanks()


def _sorted(ranks: Any) -> List[int]:
    try:
        return sorted({operator.index(rank) for rank in ranks})
    except TypeError:
        raise invalid(f"a process set of {ranks!r}", "give it a list of ranks; MPI communicators are not used here") from None


def _ranks_of(process_set: ProcessSet) -> List[int]:
    ranks = process_set.ranks
    if ranks is None:
        raise Error(Code.CLOSED, "bps.torch is not in a job", "call bps.torch.init() first")
    return ranks


def is_all(process_set: Optional[ProcessSet]) -> bool:
    return process_set is None or process_set.process_set_id == 0


def calls_of(process_set: Optional[ProcessSet] = None) -> CallGroup:
    """Where its ranks call. Error: INVALID_ARGUMENT if it is not in use."""
    number = 0 if process_set is None else process_set.process_set_id
    if number is None:
        raise invalid(f"{process_set} is not in use", "give it to add_process_set(), or to init(process_sets=[...])")
    if number == 0:
        return calls_of_all(world())
    groups = groups_of(world())
    if number not in groups:
        raise invalid(f"{process_set} is of an earlier job", "give it to add_process_set()")
    return groups[number]


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """On all ranks of the job, in the same order. Nothing is sent: ranks that differ get an error with their first call on the
    set. Error: INVALID_ARGUMENT if there is one of these ranks, or one of them is no rank of the job."""
    place = world()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if added.process_set_id is not None:
        raise invalid(f"{added} is in use already")
    ranks = _ranks_of(added)
    strange = [rank for rank in ranks if not 0 <= rank < place.client.world_size]
    if strange or not ranks:
        raise invalid(f"a process set of ranks {ranks}: ranks are 0 to {place.client.world_size - 1}, at least one of them")
    for other in (global_process_set, *place.process_sets):
        if other.ranks == ranks:
            raise invalid(f"there is a process set of ranks {ranks}: {other}", "use that one, or remove_process_set() it before")
    added.process_set_id = place.next_process_set()
    place.process_sets.append(added)
    groups_of(place)[added.process_set_id] = CallGroup(place, f"torch.set{added.process_set_id}", ranks)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """On all ranks of the job. False, and nothing has changed: it is not in use, or the set of all ranks."""
    if process_set.process_set_id in (None, 0):
        return False
    place = world()
    group = groups_of(place).pop(process_set.process_set_id or 0, None)
    process_set.process_set_id = None
    if process_set not in place.process_sets or group is None:
        return False
    place.process_sets.remove(process_set)
    group.leave()
    return True


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank has called it as often as this one."""
    if is_all(process_set):
        world().client.barrier()
    else:
        calls_of(process_set).start("barrier", None, "all ranks", lambda group: [], lambda: None).synchronize()


def init(comm: Any = None, process_sets: Any = None, **options: Any) -> None:
    """Joins the job and waits for all its workers. Options: see bps.Client; most programs need none, because rank, size and
    scheduler come from the environment (bps-run, torchrun, Slurm, OpenMPI, Kubernetes); with nothing there this is rank 0 of
    1. Again: nothing happens.

    process_sets: a list of ProcessSet, or of lists of ranks, to be added. "dynamic": Horovod's, not needed, because sets can
    always be added. comm: Horovod's; the list of all ranks is all it may be.
    """
    job.init(**options)
    ask_for_hosts()
    if comm is not None and (isinstance(comm, str) or not hasattr(comm, "__iter__") or _sorted(comm) != global_process_set.ranks):
        raise invalid(f"comm={comm!r}: the job is what the launcher has started", "leave it out; for some ranks use a ProcessSet")
    if process_sets is None or process_sets == "dynamic":
        return
    for one in process_sets:
        if not (isinstance(one, ProcessSet) and one.process_set_id is not None):
            add_process_set(one)


def shutdown() -> None:
    """Leaves the job. Nothing happens if there is none. A program that ends does it by itself."""
    if job.is_initialized():
        _forget(world())
    job.shutdown()


def _forget(place: World) -> None:
    for process_set in place.process_sets:
        process_set.process_set_id = None
    place.process_sets.clear()
