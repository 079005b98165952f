"""A worker of a job."""
import atexit
import collections
import contextlib
import ctypes
import math
import operator
import sys
import threading
import weakref
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence

from . import _abi, _checks, _ending, _library
from ._abi import DType, Op
from ._interrupt import call_interruptibly
from ._memory import Memory, memory_of
from .errors import Code, Error, invalid
from .group import Group
from .handle import Handle, Orphan, Tensor, keep_if_touched, milliseconds_of, on_callback_thread

_FIELDS = {name: kind for name, kind in _abi.COptions._fields_ if name not in ("struct_size", "log", "log_user", "settings")}
# How long an operation that nobody waits for may hold up a program that ends.
_EXIT_TIMEOUT_MS = 10_000


class TensorSpec(NamedTuple):
    """What Client.declare needs to know. priority: higher goes first; the first declaration of a name decides. parts, for
    reduce_scatter and all_gather: the elements of each rank's part, in the order of the ranks, together `count`; or one
    number for all. ranks: a group, the ranks of the job that share the tensor, in the order of their sums; None: all.
    mode: "sync", or "async": the server holds a value, which the first broadcast sets; push_pull with Op.SUM adds a change
    to it, and brings what it has become. staleness, of asynchronous ones: how many push_pulls this rank may be ahead of the
    slowest; math.inf: any number. None: what the job's settings say."""

    name: str
    dtype: DType
    count: int
    priority: int = 0
    parts: Optional[Sequence[int]] = None
    ranks: Optional[Sequence[int]] = None
    mode: Optional[str] = None
    staleness: Optional[float] = None


class Scale(NamedTuple):
    """How an input counts in a sum or an average of floats; see bps_scale in bps.h. weight: of averages, which divide by
    the sum of all weights; 0 or more. prescale: what the input is multiplied with. postscale: what the result is
    multiplied with, the same on all ranks."""

    weight: float = 1.0
    prescale: float = 1.0
    postscale: float = 1.0


class Stats(NamedTuple):
    """Counters since the client was opened; see bps_stats in bps.h."""

    pushed_bytes: int
    pulled_bytes: int
    rounds: int
    resent: int
    lanes: int
    shm_lanes: int
    workers: int
    rdma_lanes: int
    rdma_registrations: int
    rdma_sends: int
    rdma_signalled_sends: int
    rdma_reads: int
    rdma_read_bytes: int
    rdma_failed_requests: int
    rdma_unanswered_requests: int
    rdma_unready_receivers: int


class Info(NamedTuple):
    """What a client works with, whoever has said it; see bps_client_info in bps.h."""

    local_group: str  # "off", "host" or "nccl"
    cuda_device: Optional[int]  # None: none yet
    operation_timeout_s: float


def _options(values: Dict[str, Any]) -> _abi.COptions:
    library = _library.get()
    options = _abi.COptions()
    library.bps_options_init(ctypes.byref(options), ctypes.sizeof(options))
    for name, value in values.items():
        if value is None:
            if name not in _FIELDS:
                _check_name(name)
            continue
        if name in _FIELDS:
            setattr(options, name, _checks.text(name, str(value)) if _FIELDS[name] is ctypes.c_char_p else _whole(name, value))
            continue
        text = _checks.text(name, str(value).lower() if isinstance(value, bool) else str(value))
        error = _library.new_error()
        setting = _checks.text("the name of a setting", name.replace("_", "-"))
        _library.check(library.bps_options_set(ctypes.byref(options), setting, text, ctypes.byref(error)), error)
    return options


def _check_name(name: str) -> None:
    """Raises if there is no such setting, as when it is given a value."""
    library = _library.get()
    scratch = _abi.COptions()
    library.bps_options_init(ctypes.byref(scratch), ctypes.sizeof(scratch))
    error = _library.new_error()
    status = library.bps_options_set(ctypes.byref(scratch), name.replace("_", "-").encode(), b"", ctypes.byref(error))
    if status == Code.INVALID_ARGUMENT:
        _library.check(status, error)


def _whole(name: str, value: Any) -> Any:
    """A field of bps_options; also a string of digits or a float without a fraction."""
    kind = _FIELDS[name]
    try:
        number = int(value)
        is_whole = isinstance(value, str) or number == value
    except (TypeError, ValueError, OverflowError):
        is_whole = False
    if not is_whole:
        raise invalid(f"{name}={value!r} is not a whole number")
    if kind(number).value != number:
        raise invalid(f"{name}={value!r} does not fit into {8 * ctypes.sizeof(kind)} bits")
    return number


_open_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


class Client:
    """A worker of a job. Opening waits until all workers of the job are there, at most join_timeout_ms.

    Options are the fields of bps_options in bps.h and all settings of client/README.md, with `_` for `-`, e.g.
    `Client(job="resnet50", rank=0, world_size=4, rdma_tclass=104, retain=False, scheduler_grace="30s")`. What is not given
    comes from BPS_* variables, then the launcher's (torchrun, Slurm, OpenMPI, Kubernetes), then the defaults. Where nothing
    of that speaks of a cluster, the worker is rank 0 of 1 and has a cluster of its own in this process.
    Code.INVALID_ARGUMENT: there is no such setting. Code.CONFIGURATION: a value that it cannot have.
    Use it as a context manager, or close() it; a program that ends closes what is open.
    """

    def __init__(self, **options: Any) -> None:
        self._pointer: Optional[int] = None
        self._orphans: Deque[Orphan] = collections.deque()  # without a lock, which the collector would wait for
        self._declared: Dict[str, Tensor] = {}  # the last of each name, as long as it has not been dropped
        self._tensors: Dict[int, Tensor] = {}  # the same by number
        self._waited_s = 0.0
        self._closed = False
        _ending.install(_abandon_all)
        library = _library.get()
        c_options = _options(options)

        def open_it() -> int:
            pointer = ctypes.c_void_p()
            error = _library.new_error()
            _library.check(library.bps_open(ctypes.byref(c_options), ctypes.byref(pointer), ctypes.byref(error)), error)
            assert pointer.value is not None
            return pointer.value

        self._pointer = call_interruptibly(open_it, too_late=library.bps_free)
        self.rank: int = library.bps_rank(self._pointer)
        self.world_size: int = library.bps_world_size(self._pointer)
        self.local_rank: int = library.bps_local_rank(self._pointer)
        self.local_size: int = library.bps_local_size(self._pointer)
        self._operation_timeout_s = self.info().operation_timeout_s
        _open_clients.add(self)

    # -- tensors --

    def declare(self, specs: Sequence[TensorSpec], timeout_s: Optional[float] = None) -> List[Tensor]:
        """Declares tensors, alike on all ranks that share them, in any order. Code.CONFIGURATION: another rank declared
        one of them with another dtype, count, parts or ranks; the message names both."""
        if isinstance(specs, TensorSpec):
            raise invalid("declare() is given one TensorSpec", "give a list of them: `t, = client.declare([TensorSpec(...)])`")
        if not hasattr(specs, "__iter__"):
            raise invalid(f"declare() is given {specs!r}, and is to be given a list of TensorSpecs")
        specs = [self._checked_spec(spec) for spec in specs]
        if not specs:
            return []
        raw = (_abi.CTensorSpec * len(specs))()
        for target, spec in zip(raw, specs):
            target.struct_size = ctypes.sizeof(_abi.CTensorSpec)
            target.name = _checks.text("the name of a tensor", spec.name)
            target.dtype = int(spec.dtype)
            target.count = spec.count
            target.priority = self._checked_priority(spec.name, spec.priority)
            target.mode = _abi.MODES[spec.mode]
            target.staleness = self._checked_staleness(spec)
            if spec.parts is not None:
                target.parts = (ctypes.c_uint64 * len(spec.parts))(*self._checked_parts(spec))
                target.part_count = len(spec.parts)
            if spec.ranks is not None:
                ranks = self._checked_ranks(spec.name, spec.ranks)
                target.ranks, target.rank_count = (ctypes.c_int32 * len(ranks))(*ranks), len(ranks)
        numbers = (ctypes.c_uint32 * len(specs))()

        def declare_them() -> None:
            error = _library.new_error()
            _library.check(_library.get().bps_declare(self._pointer, raw, len(specs), numbers, milliseconds_of(timeout_s),
                                                      ctypes.byref(error)), error)

        call_interruptibly(declare_them)
        tensors = [Tensor(number, spec.name, DType(spec.dtype), spec.count, self._part_of(spec))
                   for number, spec in zip(numbers, specs)]
        self._declared.update((tensor.name, tensor) for tensor in tensors)
        self._tensors.update((tensor.number, tensor) for tensor in tensors)
        return tensors

    def drop(self, tensor: Tensor) -> Handle:
        """Ends the tensor for this rank, which makes no later calls on it; returns at once. The name may then be declared
        again, with any dtype and count, and is another tensor: the n-th of a name is the same on all ranks.

        The handle is done when all ranks have dropped the tensor, have left or are lost, and the servers have freed its
        memory. Nobody need wait for it. Code.INVALID_ARGUMENT, and nothing has changed: an operation on the tensor is under
        way, or it has been dropped before. See bps_drop in bps.h.
        """
        self._check_tensor(tensor)
        handle = Handle(self, tensor, ())
        error = _library.new_error()
        is_refused = False
        try:
            _library.check(_library.get().bps_drop(self._pointer, tensor.number, ctypes.byref(handle._raw),
                                                   ctypes.byref(error)), error)
        except Error as why:
            is_refused = why.code == Code.INVALID_ARGUMENT
            raise
        finally:  # what was not refused is only looked up once more
            if not is_refused and self._declared.get(tensor.name) == tensor:
                self._declared.pop(tensor.name, None)
            if not is_refused:
                self._tensors.pop(tensor.number, None)
        return handle

    # -- groups --

    @property
    def world(self) -> Group:
        """All ranks of the job, in rank order."""
        return Group(self, 0, "world")

    def group(self, name: str, ranks: Optional[Sequence[int]] = None, priority: int = 0) -> Group:
        """Makes a group of ranks of the job, in the order of their sums; None: all. Returns at once: only its ranks make it,
        each before its first call, and with the same name. Groups without a common rank may have the same name."""
        spec = _abi.CGroupSpec(struct_size=ctypes.sizeof(_abi.CGroupSpec), name=_checks.text("the name of a group", name),
                               priority=self._checked_priority(f"group {name!r}", priority))
        if ranks is not None:
            checked = self._checked_ranks(f"group {name!r}", ranks)
            spec.ranks, spec.rank_count = (ctypes.c_int32 * len(checked))(*checked), len(checked)
        number = ctypes.c_uint32()
        error = _library.new_error()
        _library.check(_library.get().bps_declare_group(self._pointer, ctypes.byref(spec), ctypes.byref(number),
                                                        ctypes.byref(error)), error)
        return Group(self, number.value, name)

    # -- operations --

    def push_pull(self, tensor: Tensor, source: Any, out: Any = None, op: Op = Op.AVERAGE,
                  scale: Optional[Scale] = None) -> Handle:
        """Starts to reduce `source` of all workers into `out` of all workers (None: in place); returns at once.

        Both are contiguous arrays of the tensor's dtype and count, on the host or both on the GPU, untouched until the
        handle says done. On the host they may have fewer elements, equally many on all ranks: then the call is of the
        first ones of the tensor. scale: how `source` counts, in a sum or an average of floats.
        """
        self._check_op(op)
        output = self._checked(tensor, source if out is None else out, "out", writable=True, may_be_shorter=True)
        given = output if out is None else self._checked(tensor, source, "source", writable=False, may_be_shorter=True)
        return self._start(tensor, (given, output), _library.get().bps_push_pull, self._scaled(given, scale),
                           ctypes.byref(output.c_buffer()), int(op))

    def broadcast(self, tensor: Tensor, array: Any, root: int = 0) -> Handle:
        """Starts to copy the root's `array` into those of all others; returns at once. They are arrays as those of push_pull,
        and of a tensor of u8 arrays of any type without pointers, whose bytes are copied."""
        root = self._checked_rank(root)
        memory = self._checked(tensor, array, "array", writable=self.rank != root, may_be_shorter=True, is_copied=True)
        return self._start(tensor, (memory,), _library.get().bps_broadcast, ctypes.byref(memory.c_buffer()), root)

    def reduce(self, tensor: Tensor, source: Any, out: Any = None, root: int = 0, op: Op = Op.AVERAGE,
               scale: Optional[Scale] = None) -> Handle:
        """Starts to reduce `source` of all workers into `out` of the root (None: in place there); returns at once. `out` is
        ignored elsewhere, and `source` is only read there.

        Both are arrays as those of push_pull, on the host. The handle is done when the root has the result.
        """
        self._check_op(op)
        root = self._checked_rank(root)
        takes = self.rank == root
        is_in_place = takes and out is None
        given = self._checked(tensor, source, "source", writable=is_in_place, may_be_shorter=True)
        output = None
        if takes:
            output = given if is_in_place else self._checked(tensor, out, "out", writable=True, may_be_shorter=True)
        return self._start(tensor, (given,) if output is None else (given, output), _library.get().bps_reduce,
                           self._scaled(given, scale), None if output is None else ctypes.byref(output.c_buffer()),
                           int(op), root)

    def reduce_scatter(self, tensor: Tensor, source: Any, out: Any, op: Op = Op.AVERAGE,
                       exact_order: bool = False, scale: Optional[Scale] = None) -> Handle:
        """Starts to reduce `source` of all workers, of which each takes its part (TensorSpec.parts) into `out`; returns at
        once. `out` has as many elements as the part: memory of its own, or the place in `source` where the part is.

        Both are contiguous arrays of the tensor's dtype, on the host. The handle is done when this rank has its part and no other
        needs its `source`. exact_order: with the bits of push_pull also where floats depend on the order, and with more
        traffic; see bps_reduce_scatter in bps.h.
        """
        self._check_op(op)
        given = self._checked(tensor, source, "source", writable=False)
        output = self._checked(tensor, out, "out", writable=True, is_part=True)
        return self._start(tensor, (given, output), _library.get().bps_reduce_scatter, self._scaled(given, scale),
                           ctypes.byref(output.c_buffer()), int(op), int(bool(exact_order)))

    def all_gather(self, tensor: Tensor, source: Any, out: Any) -> Handle:
        """Starts to copy the parts of all workers (TensorSpec.parts), each in its `source`, into `out` of all workers;
        returns at once. `source` has as many elements as the part: memory of its own, or the place in `out` where the part
        is.

        Both are contiguous arrays of the tensor's dtype, on the host. The handle is done when `out` is whole and nobody needs
        `source` any more. Of a tensor of u8, both may be arrays of any type without pointers, whose bytes are copied.
        """
        given = self._checked(tensor, source, "source", writable=False, is_part=True, is_copied=True)
        output = self._checked(tensor, out, "out", writable=True, is_copied=True)
        return self._start(tensor, (given, output), _library.get().bps_all_gather, ctypes.byref(given.c_buffer()),
                           ctypes.byref(output.c_buffer()))

    def barrier(self, timeout_s: Optional[float] = None) -> None:
        """Returns when every worker has called it as often as this one."""

        def arrive() -> None:
            error = _library.new_error()
            _library.check(_library.get().bps_barrier(self._pointer, milliseconds_of(timeout_s), ctypes.byref(error)), error)

        call_interruptibly(arrive)

    def stats(self) -> Stats:
        raw = _abi.CStats(struct_size=ctypes.sizeof(_abi.CStats))
        _library.check(_library.get().bps_get_stats(self._pointer, ctypes.byref(raw)))
        return Stats(*(getattr(raw, name) for name in Stats._fields))

    def info(self) -> Info:
        raw = _abi.CClientInfo(struct_size=ctypes.sizeof(_abi.CClientInfo))
        _library.check(_library.get().bps_get_client_info(self._pointer, ctypes.byref(raw)))
        device = raw.cuda_device if raw.cuda_device >= 0 else None
        return Info(raw.local_group.decode(), device, raw.operation_timeout_ms / 1000)

    @property
    def waited_s(self) -> float:
        """Seconds that threads of this program have spent in Handle.wait so far."""
        return self._waited_s

    # -- end --

    def close(self, timeout_s: Optional[float] = None) -> None:
        """Says "no later rounds from me" and ends everything, operations under way first; see bps_close in bps.h.
        Afterwards no memory is touched any more; Code.OS: but by a GPU that does not come to rest, of whose tensors none is
        let go. A second close does nothing."""
        self._close(milliseconds_of(timeout_s))

    def abandon(self) -> None:
        """Gives the job up: to the other workers this one is lost. Ends everything at once, but a GPU may take up to 10 s to
        come to rest; otherwise as close(). Leaving a `with` by an exception does it, and a program that ends by one."""

        def abandon_it() -> None:
            error = _library.new_error()
            _library.check(_library.get().bps_abandon(self._pointer, ctypes.byref(error)), error)

        self._end(abandon_it)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Any, exception: Any, trace: Any) -> None:
        # Who leaves by an exception is lost: a close between two rounds would tell the others that it had meant to leave.
        if kind is None or (isinstance(exception, SystemExit) and not exception.code):
            self.close()
        else:
            with contextlib.suppress(Error):  # the exception is what the program has to get
                self.abandon()

    def _close(self, milliseconds: int, interruptibly: bool = True) -> None:
        def close_it() -> None:
            error = _library.new_error()
            _library.check(_library.get().bps_close(self._pointer, milliseconds, ctypes.byref(error)), error)

        self._end((lambda: call_interruptibly(close_it)) if interruptibly else close_it)

    def _end(self, ending: Callable[[], None]) -> None:
        if self._closed or self._pointer is None:
            return
        self._closed = True
        try:
            ending()
        finally:
            _open_clients.discard(self)
            self._sweep()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        pointer = getattr(self, "_pointer", None)
        if pointer is None or finalizing():
            return
        self._pointer = None
        orphans = self._orphans
        library = _library.get()

        def free() -> None:
            library.bps_free(pointer)
            for orphan in orphans:
                keep_if_touched(orphan.memory, library.bps_wait(orphan.pointer, 0, None))
                library.bps_handle_free(orphan.pointer)

        # The collector may run anywhere, also on the callback thread, which bps_free waits for.
        if on_callback_thread():
            threading.Thread(target=free, name="bps-free").start()
        else:
            free()

    # -- inside --

    def _tensor(self, name: str, dtype: DType, count: int, priority: int) -> Tensor:
        """Declared now if this client has no such tensor. Code.CONFIGURATION: this name has another type or length, here or
        elsewhere."""
        known = self._declared.get(name)
        if known is None or (known.dtype, known.count) != (dtype, count):
            known, = self.declare([TensorSpec(name, dtype, count, priority)])
        return known

    def _check_tensor(self, tensor: Any) -> None:
        if isinstance(tensor, list):
            raise invalid("a list of tensors, as declare() returns it, is no tensor", "take one out of it: `t, = declare(...)`")
        if not isinstance(tensor, Tensor):
            raise invalid(f"{tensor!r} is no tensor: pass one that declare() has returned")
        if self._tensors.get(tensor.number, tensor) != tensor:
            raise invalid(f"{tensor.name} is a tensor of another client", "declare it with this one")

    def _start(self, tensor: Tensor, memories: Sequence[Memory], call: Callable[..., int], *arguments: Any) -> Handle:
        """An operation of the C API; its handle keeps the memories alive."""
        self._sweep()
        handle = Handle(self, tensor, tuple(memories))
        error = _library.new_error()
        _library.check(call(self._pointer, tensor.number, *arguments, ctypes.byref(handle._raw), ctypes.byref(error)), error)
        return handle

    @staticmethod
    def _scaled_buffer(given: Memory, scale: Optional[Scale]) -> _abi.CBuffer:
        buffer = given.c_buffer()
        if scale is not None and not isinstance(scale, Scale):
            raise invalid(f"scale is {scale!r}, and is to be a bps.Scale")
        if scale is not None:
            factors = [_checks.number(f"the {name} of a scale", factor) for name, factor in zip(Scale._fields, scale)]
            buffer.scale = ctypes.pointer(_abi.CScale(ctypes.sizeof(_abi.CScale), *factors))
        return buffer

    @classmethod
    def _scaled(cls, given: Memory, scale: Optional[Scale]) -> Any:
        return ctypes.byref(cls._scaled_buffer(given, scale))

    @staticmethod
    def _check_op(op: Any) -> None:
        if not isinstance(op, Op):
            raise invalid(f"op is {op!r}, and is to be a bps.Op")

    @staticmethod
    def _checked_priority(whose: str, priority: Any) -> int:
        return _checks.whole(f"the priority of {whose}", priority, -(1 << 31), (1 << 31) - 1)

    def _checked_ranks(self, whose: str, ranks: Any) -> List[int]:
        return [self._checked_rank(rank, "rank") for rank in _checks.sequence(f"the ranks of {whose}", ranks, "ranks")]

    def _checked_rank(self, rank: Any, what: str = "root") -> int:
        """The C API's ranks are smaller than Python's integers."""
        try:
            number = operator.index(rank)
        except TypeError:
            raise invalid(f"{what} is {rank!r}, and is to be a rank") from None
        if not 0 <= number < self.world_size:
            raise invalid(f"{what} {number} is no rank of this job: ranks are 0 to {self.world_size - 1}")
        return number

    def _checked(self, tensor: Tensor, thing: Any, what: str, writable: bool, is_part: bool = False,
                 may_be_shorter: bool = False, is_copied: bool = False) -> Memory:
        self._check_tensor(tensor)
        count = tensor.part if is_part else tensor.count
        if count is None:
            raise invalid(f"{tensor.name} has no parts", "declare it with parts on all ranks")
        memory = memory_of(thing, f"{what} of {tensor.name}", writable, as_bytes=is_copied and tensor.dtype == DType.U8)
        is_shorter = may_be_shorter and memory.count < count
        if memory.dtype != tensor.dtype or not (memory.count == count or is_shorter):
            declared = "the part of this rank has" if is_part else "declared were"
            raise invalid(f"{what} of {tensor.name} has {memory.count} elements of {memory.dtype.name.lower()}, and "
                          f"{declared} {count} of {tensor.dtype.name.lower()}")
        return memory

    @staticmethod
    def _checked_spec(spec: Any) -> TensorSpec:
        """What C cannot check, because it would not get there."""
        if not isinstance(spec, TensorSpec):
            raise invalid(f"{spec!r} is no TensorSpec")
        if not isinstance(spec.dtype, DType):
            raise invalid(f"the dtype of {spec.name} is {spec.dtype!r}, and is to be a bps.DType")
        _checks.whole(f"the count of {spec.name}", spec.count, 0, (1 << 64) - 1, "a number of elements")
        if spec.mode not in _abi.MODES:
            raise invalid(f"the mode of {spec.name} is {spec.mode!r}, and is to be 'sync' or 'async'")
        if spec.parts is None:
            return spec
        return spec._replace(parts=_checks.sequence(f"the parts of {spec.name}", spec.parts, "numbers of elements"))

    @staticmethod
    def _checked_staleness(spec: TensorSpec) -> int:
        if spec.staleness is None:
            return _abi.STALENESS_DEFAULT
        if spec.staleness == math.inf:
            return _abi.STALENESS_UNBOUNDED
        return _checks.whole(f"the staleness of {spec.name}", spec.staleness, 0, (1 << 32) - 2, "a number of push_pulls")

    @staticmethod
    def _checked_parts(spec: TensorSpec) -> List[int]:
        """The library checks how many they are, and their sum."""
        for rank, part in enumerate(spec.parts or ()):
            if not hasattr(part, "__index__"):
                raise invalid(f"the part of rank {rank} of {spec.name} is {part!r}, and is to be a number of elements")
            if not 0 <= operator.index(part) <= spec.count:
                raise invalid(f"the part of rank {rank} of {spec.name} has {part} elements, and {spec.name} has {spec.count}",
                              "give one part for each rank, or one number for all; together they are the tensor")
        return [operator.index(part) for part in spec.parts or ()]

    def _part_of(self, spec: TensorSpec) -> Optional[int]:
        parts = spec.parts
        if parts is None or len(parts) == 1:
            return None if parts is None else parts[0]
        return parts[self.rank if spec.ranks is None else list(spec.ranks).index(self.rank)]

    def _sweep(self) -> None:
        """Lets go of the orphans that have ended."""
        library = _library.get()
        for _ in range(len(self._orphans)):
            try:
                orphan = self._orphans.popleft()
            except IndexError:  # another thread sweeps too
                return
            done = ctypes.c_int()
            library.bps_poll(orphan.pointer, ctypes.byref(done))
            # A callback cannot ask how it has ended.
            if done.value and not (on_callback_thread() and any(one.is_cuda for one in orphan.memory)):
                keep_if_touched(orphan.memory, library.bps_wait(orphan.pointer, 0, None))
                library.bps_handle_free(orphan.pointer)
            else:
                self._orphans.append(orphan)


def _abandon_all() -> None:
    """Of a program that ends because it has failed, which may take it a while: the other workers get to know it now."""
    for client in list(_open_clients):
        try:
            client.abandon()
        except Error:
            pass  # it is on its way out already


@atexit.register
def _close_all() -> None:
    """Before the interpreter goes, because a callback that came later would find none."""
    # It dies of an exception, and our hook has not seen it. With that in front, a shell or debugger may have left one.
    if hasattr(sys, "last_type") and not _ending.in_front():
        return _abandon_all()
    for client in list(_open_clients):
        try:
            # No thread may be started any more.
            client._close(_EXIT_TIMEOUT_MS, interruptibly=False)
        except Error:
            pass  # the program has ended, and the library has said what there is to say
