"""How a program ends that nobody saved from an error: with the status that the error suggests, so that whoever started it
knows whether to start it again.

An uncaught exception ends Python with status 1, whatever it was. Here sys.excepthook prints it as it would have been
printed, and then ends the program with the status of the bps.Error that is the exception, or its cause. Installed when the
first client is made, in front of the hook that it finds. It ends nothing but a main thread of a program: no other
thread, no interactive session.

An error that has gone through other hands than Python's, as those of DistributedDataParallel, comes out as a RuntimeError
with its text. Who hands an error over so calls `handed_over`. And where something else connects the workers, too, it may
notice a lost one first, and say so in words of its own: a witness (`call_witness`) is then asked what the job says.
"""
import collections
import os
import sys
import threading
import types
from typing import Any, Callable, Deque, List, Optional

from .errors import Error

Witness = Callable[[Exception], Optional[Error]]

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_handed_over: Deque[Error] = collections.deque(maxlen=16)
_witnesses: List[Witness] = []
_installed = False


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


def install(ended: Callable[[], Any]) -> None:
    """Once. `ended` is called when the program is about to end because of an exception."""
    global _installed
    if _installed:
        return
    _installed = True
    before = sys.excepthook

    def hook(kind: Any, exception: Any, trace: Any) -> None:
        if isinstance(exception, KeyboardInterrupt):  # where in here it waited says nothing to anybody
            trace = _outside(trace)
            exception = exception.with_traceback(trace)
        before(kind, exception, trace)
        if threading.current_thread() is not threading.main_thread() or sys.flags.interactive or hasattr(sys, "ps1"):
            return
        error = error_behind(exception)
        for witness in _witnesses if isinstance(exception, Exception) else []:
            error = error or witness(exception)
        ended()
        if error is not None:
            # Raised in here it ends the interpreter as it would anywhere else: exit functions run.
            raise SystemExit(error.exit_code)

    sys.excepthook = hook
