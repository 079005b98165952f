"""The client that the functions of bps.torch share, as Horovod's do: one per process, between init() and shutdown()."""
import collections
import contextlib
import functools
import gc
import itertools
import re
import sys
import time
import weakref
from typing import Any, Callable, Collection, Counter, Deque, Dict, Iterator, List, Optional, Sequence, Set, Tuple, TypeVar

from .._abi import DType
from .._ending import call_witness, come_to_front
from ..client import Client, TensorSpec
from ..errors import Code, Error, invalid
from ..handle import Handle, Tensor

_T = TypeVar("_T")

# With a declaration for which servers have no memory until all ranks have dropped what they do not use any more.
_PATIENCE_S = 30.0
_PAUSE_S = 0.2
# Of a wait, before it looks at other operations.
_TURN_S = 0.05


class Series:
    """Exchanges that are one call to the program. After a deadline in one of them the rest is not made, so what follows could meet
    those of ranks that come late: it is refused."""

    def __init__(self) -> None:
        self._failure: Optional[Error] = None

    def check(self) -> None:
        """Code.DEADLINE: an earlier one has missed its deadline."""
        if self._failure is not None:
            raise Error(self._failure.code, self._failure.message, self._failure.advice)

    @contextlib.contextmanager
    def exchange(self, what: str) -> Iterator[None]:
        self.check()
        try:
            yield
        except Error as error:
            if error.code == Code.DEADLINE:
                self._failure = Error(error.code, f"an earlier {what} did not end: {error.message}",
                                      "ranks are at different places of the program: start the job again")
            raise


class World:
    """An open client. Ranks that call alike get equal numbers and names.

    What an object declares for itself is dropped when the object is gone: at the next declaration, because the collector
    may come at any moment.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        info = client.info()
        self.sums_on_gpus = info.local_group == "nccl"  # then the job takes no memory of the host
        self.calls_without_names = info.local_group == "off"  # on host memory
        self.operation_timeout_s = info.operation_timeout_s
        self._unnamed: Set[str] = set()
        self._optimizers: Counter[str] = collections.Counter()
        self._hooks = itertools.count()
        # Names of tensors that nobody uses any more, and drops that have not ended; without a lock, which the collector
        # would wait for.
        self._unused: Deque[str] = collections.deque()
        self._dropped: Deque[Handle] = collections.deque()
        self.process_sets: List[Any] = []  # by process_sets.py
        self.call_groups: Dict[Any, Any] = {}  # by calls.py
        # Synchronous tensors that this rank has declared, also those that a join has dropped; how often it has used each; the
        # groups that stand for some of them, and operations on them, for joining.py.
        self.names: Dict[str, TensorSpec] = {}
        self.rounds: Counter[str] = collections.Counter()
        self.name_groups: Dict[str, Any] = {}
        self.under_way: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self.declared_series = Series()  # of stream.py
        self.hosts: List[Tuple[int, int]] = []  # local rank of each rank, and ranks of its host; see about.py
        self._process_sets = itertools.count(1)

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """All at once, which is faster than one by one."""
        self._with_room(functools.partial(self.client.declare, specs))
        self.names.update((spec.name, spec) for spec in specs if spec.mode != "async")

    def tensor(self, name: str, dtype: DType, count: int, priority: int = 0, may_be_longer: bool = False) -> Tensor:
        """Declared now if it is new, or has another type or length: then the old one is dropped, which all ranks do alike.
        may_be_longer: a call of its first elements will do. Code.CONFIGURATION: it is another one on other ranks.
        INVALID_ARGUMENT: it would have to be dropped, and an operation on it is under way."""
        known = self.client._declared.get(name)
        if known is not None and known.part is None and known.dtype == dtype and known.count > count and may_be_longer:
            return known
        if known is not None and (known.dtype, known.count) != (dtype, count):
            self._dropped.append(self.client.drop(known))
        elif known is not None:
            return known
        ranks = self.names[name].ranks if name in self.names else None
        spec = TensorSpec(name, dtype, count, priority, ranks=ranks)
        tensor: Tensor = self._with_room(functools.partial(self.client.declare, [spec]))[0]
        self.names[name] = spec
        return tensor

    def leave_to_group(self, name: str, dtype: DType, count: int) -> bool:
        """True: this call is longer than those before it under the name, of another type, or without elements. Perhaps it is so on
        this rank alone, and only a group compares that. What this rank has declared is dropped: so calls of other ranks that
        are still as before fail."""
        known = self.client._declared.get(name)
        if known is None:
            if count == 0:
                self.tensor(name, dtype, 0)  # then it is an error to declare it longer
            return count == 0
        mine = self.names.get(name)
        if mine is None or (mine.dtype, mine.count) != (known.dtype, known.count):
            return False  # the program has declared it
        if known.dtype == dtype and (known.count == count or known.count >= count > 0):
            return count == 0
        self._dropped.append(self.client.drop(known))
        return True

    def drop_failed(self, tensor: Optional[Tensor]) -> None:
        """After ranks have called different things with it. Its name is declared anew by its next use."""
        if tensor is not None:
            with contextlib.suppress(Error):
                self._dropped.append(self.client.drop(tensor))

    def drop(self, name: str) -> bool:
        """What this rank has declared under a name; nothing, if it has not. False: an operation on it is under way."""
        tensor = self.client._declared.get(name)
        if tensor is not None:
            try:
                self._dropped.append(self.client.drop(tensor))
            except Error as error:
                if error.code != Code.INVALID_ARGUMENT:
                    raise
                return False
        return True

    def drop_with(self, owner: object, names: Collection[str]) -> None:
        """`names`, also those that come later, are the owner's alone."""
        weakref.finalize(owner, self._unused.extend, names).atexit = False

    def _with_room(self, declare: Callable[[], _T]) -> _T:
        """Servers may have memory for it only when all ranks have dropped what they do not use any more."""
        self._drop_unused()
        try:
            return declare()
        except Error as error:
            if error.code != Code.OUT_OF_MEMORY:
                raise
        gc.collect()  # what nobody has any more may still lie there, in a cycle
        deadline = time.monotonic() + min(_PATIENCE_S, self.operation_timeout_s)
        while True:
            self._drop_unused()
            is_over = not self._dropped or time.monotonic() >= deadline
            try:
                return declare()
            except Error as error:
                if error.code != Code.OUT_OF_MEMORY or is_over:
                    raise
            self._wait_for_a_drop()

    def _drop_unused(self) -> None:
        under_way = []
        while self._unused:
            try:
                name = self._unused.popleft()
                if not self.drop(name):
                    under_way.append(name)  # its operation goes on without a handle
                else:
                    self.names.pop(name, None)
                    self.rounds.pop(name, None)
                    group = self.name_groups.pop(name, None)
                    if group is not None:
                        group.leave()
            except IndexError:  # another thread has taken it
                break
        self._unused.extend(under_way)
        with contextlib.suppress(IndexError):
            while self._dropped[0].poll():
                self._dropped.popleft()

    def _wait_for_a_drop(self) -> None:
        try:
            self._dropped[0].wait(_PAUSE_S)
        except IndexError:
            pass
        except Error as error:
            if error.code != Code.DEADLINE:
                raise

    def wait(self, operation: Handle, waiting: object = None) -> None:
        """Waits, and makes again meanwhile what a join has ended, but for `waiting`: another rank may wait for that before it does
        its part here."""
        deadline = time.monotonic() + self.operation_timeout_s
        while any(one is not waiting for one in self.under_way):
            try:
                operation.wait(_TURN_S)
                return
            except Error as error:
                if error.code != Code.DEADLINE:
                    raise
                if time.monotonic() >= deadline:
                    waited = f"waited {self.operation_timeout_s:.3g} s"
                    raise Error(error.code, re.sub(r"waited [\d.]+ s", waited, error.message), error.advice) from None
            for handle in list(self.under_way):
                if handle is not waiting:
                    handle.advance()
        operation.wait()

    @contextlib.contextmanager
    def counted_round(self, name: str) -> Iterator[int]:
        """The number of a call under this name, which counts if it begins without an error."""
        number = self.rounds[name] + 1
        yield number
        self.rounds[name] = number

    def take_unnamed(self, kind: str) -> str:
        """A name for a tensor without one: the first of its kind that is not in use between start and synchronize, so
        equal on ranks that call alike."""
        name = next(n for n in (f"unnamed.{kind}.{i}" for i in itertools.count()) if n not in self._unnamed)
        self._unnamed.add(name)
        return name

    def release_unnamed(self, name: str) -> None:
        self._unnamed.discard(name)

    def next_optimizer(self, of: str = "") -> int:
        self._optimizers[of] += 1
        return self._optimizers[of] - 1

    def next_hook(self) -> int:
        return next(self._hooks)

    def next_process_set(self) -> int:
        return next(self._process_sets)


_world: Optional[World] = None


# The scheduler takes a worker for dead 0.3 s after its connection has gone.
_LOSS_IS_KNOWN_S = 2.0


def _lost_meanwhile(exception: Exception) -> Optional[Error]:
    """A process group notices a lost worker at once, with an error of its own. Then the job knows it soon, and a barrier fails.
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
