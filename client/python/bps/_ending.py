"""How a program ends that nobody saved from an error: with the status that the error suggests, so that whoever started it
knows whether to start it again.

An uncaught exception ends Python with status 1, whatever it was. Here sys.excepthook prints it as it would have been
printed, and then ends the program with the status of the bps.Error that is the exception, or its cause. Installed when the
first client or the first bps.Error is made, in front of the hook that it finds, and in front of those that come later,
because ours does not return to one that has called it: torch.distributed's would not show what it has collected. It ends
nothing but a main thread of a program: no other thread, no interactive session.

sys.exit(n) has failed, too, if n is not 0, and to the other workers such a program must not look as one that has done its
work and left. Python tells nobody with which status it ends, but it reads `code` of the exception that ends it: sys.exit, exit
and quit of the main thread therefore raise a SystemExit that notices. `raise SystemExit(n)` goes unnoticed.

An error that has gone through other hands than Python's, as those of DistributedDataParallel, comes out as a RuntimeError
with its text. Who hands an error over so calls `handed_over`. And where something else connects the workers, too, it may
notice a lost one first, and say so in words of its own: a witness (`call_witness`) is then asked what the job says.
"""
import _sitebuiltins
import builtins
import collections
import os
import sys
import threading
import types
from typing import Any, Callable, Deque, List, NoReturn, Optional

from .errors import Error, call_when_made

Witness = Callable[[Exception], Optional[Error]]
Ended = Callable[[], Any]

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_handed_over: Deque[Error] = collections.deque(maxlen=16)
_witnesses: List[Witness] = []
_ended: Optional[Ended] = None
_hook: Optional[Callable[[Any, Any, Any], Any]] = None  # ours that is in front


def call_witness(witness: Witness) -> None:
    """From now on. It gets exceptions that end the program and are not ours, and may take a while."""
    if witness not in _witnesses:
        _witnesses.append(witness)


def handed_over(error: Error) -> None:
    _handed_over.append(error)


def error_behind(exception: Optional[BaseException]) -> Optional[Error]:
    """The bps.Error that an exception is, or was raised because of; None: nothing of ours ended the program."""
    seen = set()
    while isinstance(exception, Exception) and id(exception) not in seen:
        if isinstance(exception, Error):
            return exception
        text = str(exception)
        for error in _handed_over:
            if error.message in text:
                return error
        seen.add(id(exception))
        exception = exception.__cause__ or (None if exception.__suppress_context__ else exception.__context__)
    return None


def _outside(trace: Optional[types.TracebackType]) -> Optional[types.TracebackType]:
    """A traceback that ends where the program called this package."""
    if trace is None or trace.tb_frame.f_code.co_filename.startswith(_OURS):
        return None
    return types.TracebackType(_outside(trace.tb_next), trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def in_program() -> bool:
    """Is this the main thread of a program?"""
    interactive = sys.flags.interactive or hasattr(sys, "ps1")
    return threading.current_thread() is threading.main_thread() and not interactive


def install(ended: Ended) -> None:
    """`ended`, the first time: is called when the program is about to end because it has failed; it raises nothing."""
    global _ended
    if _ended is None:
        _ended = ended
        _see_exits(ended)
    come_to_front()


def in_front() -> bool:
    """Will our hook see what the program dies of?"""
    return _hook is not None and sys.excepthook is _hook


@call_when_made  # an error may end the program, also where there has been no client
def come_to_front() -> None:
    """To be called where a program may have got another hook."""
    global _hook
    if in_front():
        return
    before = sys.excepthook

    def hook(kind: Any, exception: Any, trace: Any) -> None:
        if _hook is not hook:  # another of ours has called it
            before(kind, exception, trace)
            return
        if isinstance(exception, KeyboardInterrupt):  # where in here it waited says nothing to anybody
            trace = _outside(trace)
            exception = exception.with_traceback(trace)
        before(kind, exception, trace)
        if not in_program():
            return
        error = error_behind(exception)
        for witness in _witnesses if isinstance(exception, Exception) else []:
            error = error or witness(exception)
        if _ended is not None:
            _ended()
        if error is not None:
            # Raised in here it ends the interpreter as it would anywhere else: exit functions run.
            raise SystemExit(error.exit_code)

    _hook = sys.excepthook = hook


def _means_failure(code: Any) -> bool:
    """As the operating system sees it: numbers lose all but eight bits; what is no number is printed and counts as 1."""
    return code is not None and (not isinstance(code, int) or code & 0xFF != 0)


def _below_all_frames() -> bool:
    """Was the caller called by the interpreter itself, which ends, and not by Python code?"""
    try:
        sys._getframe(2)
    except ValueError:
        return True
    return False


def _see_exits(ended: Ended) -> None:
    before = sys.exit

    class Exit(SystemExit):
        @property
        def code(self) -> Any:  # type: ignore[override]
            status = SystemExit.code.__get__(self)  # type: ignore[attr-defined]
            if _below_all_frames() and _means_failure(status):
                ended()
            return status

        @code.setter
        def code(self, status: Any) -> None:
            SystemExit.code.__set__(self, status)  # type: ignore[attr-defined]

        def __reduce__(self) -> Any:
            return SystemExit, self.args

    def leave(way: Callable[[Any], Any], status: Any) -> NoReturn:
        try:
            way(status)
        except SystemExit as problem:
            # Other threads end silently by a SystemExit itself, not by another class.
            if type(problem) is not SystemExit or not in_program():
                raise
            code = problem.code
        raise Exit(code) from None

    def exit_program(status: Any = None, /) -> NoReturn:
        leave(before, status)

    class Quitter:
        """The `exit` and `quit` of interactive sessions, which programs call, too."""

        def __init__(self, way: Any) -> None:
            self._way = way

        def __repr__(self) -> str:
            return repr(self._way)

        def __call__(self, code: Any = None) -> NoReturn:
            leave(self._way, code)

    exit_program.__name__, exit_program.__doc__ = "exit", before.__doc__
    sys.exit = exit_program
    for name in ("exit", "quit"):
        way = getattr(builtins, name, None)
        if isinstance(way, _sitebuiltins.Quitter):  # not where another shell has put its own, or without `site`
            setattr(builtins, name, Quitter(way))
