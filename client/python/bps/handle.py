"""One operation that is under way.

Memory: an operation's buffers belong to the library until it is done. A Handle keeps them alive; when it is dropped
before that, its client keeps them until it sees that the operation has ended. So nothing that a program does with
handles, not even an exception in the middle of a step, frees memory that the library may still write.

Threads: everything may be called from any thread. A wait holds no interpreter lock, uses no processor time, and in the
main thread Ctrl-C ends it at once. Callbacks run on a thread of the library and must not wait.
"""
import ctypes
import itertools
import math
import select
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from . import _abi, _library
from ._abi import DType
from ._interrupt import call_interruptibly, in_main_thread
from ._memory import Memory
from .errors import Code, Error, invalid

if TYPE_CHECKING:
    from .client import Client

Callback = Callable[[Optional[Error]], None]

# A wait that may be as long as _LONG_S first looks for an end within _UNSEEN_MS, then within _SOON_S.
_LONG_S = 30.0
_SOON_S = 1.0
_UNSEEN_MS = 10


# Longer than any wait may be.
_FOREVER_MS = 1 << 62


def milliseconds_of(timeout_s: Optional[float]) -> int:
    """-1, the client's default, for None. Code.INVALID_ARGUMENT: it is no number."""
    if timeout_s is None:
        return -1
    try:
        milliseconds = timeout_s * 1000.0
    except TypeError:
        milliseconds = math.nan
    if math.isnan(milliseconds):
        raise invalid(f"a timeout of {timeout_s!r} is not a number of seconds")
    return int(max(0.0, min(milliseconds, _FOREVER_MS)))


class Tensor(NamedTuple):
    """A declared tensor; valid for the client that declared it, until Client.drop."""

    number: int
    name: str
    dtype: DType
    count: int
    part: Optional[int] = None  # elements of this rank's part, if it has parts


# Of operations on GPUs that have not come to rest: what they may still write stays until the process ends.
_touched: List[Sequence[Memory]] = []


def keep_if_touched(memory: Sequence[Memory], status: int) -> None:
    """An operation on it has ended so. See bps_buffer in bps.h; also of GPUs that have failed otherwise."""
    if status == Code.OS and any(one.is_cuda for one in memory):
        _touched.append(memory)


# ---- callbacks ----

_calls: Dict[int, "_Call"] = {}  # by number: what to run when an operation ends
_call_numbers = itertools.count(1)
_callback_thread = threading.local()


class _Call(NamedTuple):
    function: Callback
    handle: "Handle"  # alive until it has run


def _run_call(error: Any, number: Optional[int]) -> None:
    call = _calls.pop(number or 0)
    _callback_thread.here = True
    try:
        call.handle._let_go(error.contents.status if error else 0)
        call.function(_library.told(error.contents) if error else None)
    except BaseException:  # noqa: there is nobody above who could catch it
        sys.excepthook(*sys.exc_info())


def on_callback_thread() -> bool:
    return getattr(_callback_thread, "here", False)


# One for all: ctypes would free a function object of its own while the library still calls it.
_run_call_c = _abi.CCallback(_run_call)


# ---- operations ----


class Handle:
    """One operation, or the drop of a tensor, which has no memory."""

    def __init__(self, client: "Client", tensor: Tensor, memory: Sequence[Memory]) -> None:
        # Before the operation is started: a signal handler that raises just after that must find it here.
        self._raw = ctypes.c_void_p()
        self._client = client
        self._memory: Sequence[Memory] = memory
        self.tensor = tensor

    def poll(self) -> bool:
        """Has it ended, well or not, and have its callbacks run? Inside a callback: has it ended?"""
        done = ctypes.c_int()
        _library.check(_library.get().bps_poll(self._raw, ctypes.byref(done)))
        return bool(done.value)

    def wait(self, timeout_s: Optional[float] = None) -> None:
        """Returns when it has ended well and its callbacks have run; raises its error if it has not ended well. None: the
        client's operation_timeout.

        An expired wait (Code.DEADLINE) ends nothing, names whom it waited for, and may be tried again.
        """
        milliseconds_of(timeout_s)  # raises before anything else happens
        started = time.monotonic()
        error = _library.new_error()
        rest_s = timeout_s
        whole_s = self._client._operation_timeout_s if timeout_s is None else timeout_s
        if in_main_thread() and whole_s >= _LONG_S and not self._ends_soon():
            rest_s = whole_s - (time.monotonic() - started)
        if self.poll():
            status = self._wait(0, error)
        else:
            status = call_interruptibly(lambda: self._wait(milliseconds_of(rest_s), error))
        self._client._waited_s += time.monotonic() - started
        if self.poll():
            self._let_go(status if status != Code.DEADLINE else self._wait(0, _library.new_error()))
        _library.check(status, error)

    def wait_stream(self, stream: int = 0) -> None:
        """Lets `stream` wait for the output of an operation on CUDA memory.

        `stream` is a cudaStream_t or CUstream as a number; 0 is the default stream. The call blocks until the last copy to
        the GPU is queued, for at most operation_timeout. Ctrl-C takes effect after that. The call does not check the
        operation's result: call wait() before you use what the stream has computed. See bps_handle_wait_stream in bps.h.
        """
        # On no other thread: the default stream and that of each thread are what they are here.
        error = _library.new_error()
        _library.check(_library.get().bps_handle_wait_stream(self._raw, stream, ctypes.byref(error)), error)

    def then(self, function: Callback) -> None:
        """Runs `function(error)` once when it has ended, on the callback thread; error is None when all went well.

        What it raises goes to sys.excepthook. Error: CLOSED, then it will not run.
        """
        number = next(_call_numbers)
        _calls[number] = _Call(function, self)
        error = _library.new_error()
        status = _library.get().bps_then(self._raw, _run_call_c, number, ctypes.byref(error))
        if status != 0:
            _calls.pop(number, None)
        _library.check(status, error)

    def fileno(self) -> int:
        """A file descriptor that becomes readable when it has ended and its callbacks have run; closed with the handle."""
        descriptor = ctypes.c_int()
        error = _library.new_error()
        _library.check(_library.get().bps_handle_fd(self._raw, ctypes.byref(descriptor), ctypes.byref(error)), error)
        return descriptor.value

    @property
    def ranks(self) -> int:
        """How many ranks were really summed; 0 until it has ended well, and of a drop."""
        return int(_library.get().bps_handle_ranks(self._raw))

    @property
    def last_joined(self) -> int:
        """Of a join that is done: the rank that has joined last. Else -1."""
        return int(_library.get().bps_handle_last_joined(self._raw))

    def parts(self) -> List[memoryview]:
        """Of an all_gather or all_to_all without `out` that has ended well: the bytes of each rank's part, in the order of the
        group. They lie in memory of the library, which is freed with the last of these views and the handle."""
        views: List[memoryview] = []
        view = _abi.CView(struct_size=ctypes.sizeof(_abi.CView))
        while not views or len(views) < view.pieces:
            error = _library.new_error()
            _library.check(_library.get().bps_handle_view(self._raw, len(views), ctypes.byref(view), ctypes.byref(error)), error)
            memory = (ctypes.c_ubyte * view.bytes).from_address(view.pointer or 0) if view.bytes else (ctypes.c_ubyte * 0)()
            memory.handle = self  # type: ignore[attr-defined]  # alive as long as the memory
            views.append(memoryview(memory).cast("B"))
        return views

    def _let_go(self, status: int) -> None:
        keep_if_touched(self._memory, status)
        self._memory = ()

    def _wait(self, milliseconds: int, error: _abi.CError) -> int:
        return int(_library.get().bps_wait(self._raw, milliseconds, ctypes.byref(error)))

    def _ends_soon(self) -> bool:
        """Most waits are short: then a file descriptor, which signals interrupt, is cheaper than another thread; and of a very
        short one nobody sees that signals do not interrupt it."""
        if self.poll() or _library.get().bps_wait(self._raw, _UNSEEN_MS, None) != Code.DEADLINE:
            return True
        waiter = select.poll()
        waiter.register(self.fileno(), select.POLLIN)
        return bool(waiter.poll(_SOON_S * 1000))

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        raw = getattr(self, "_raw", None)
        if raw is None or not raw.value or finalizing():  # then modules are gone, and clients were closed
            return
        if self._memory:
            self._client._orphans.append(Orphan(raw.value, self._memory))
        else:
            _library.get().bps_handle_free(raw)
        self._raw = ctypes.c_void_p()


class Orphan(NamedTuple):
    """An operation whose handle was dropped; its memory stays until it has ended."""

    pointer: int
    memory: Sequence[Memory]
