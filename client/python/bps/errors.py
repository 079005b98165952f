"""The one exception of this package: what went wrong, what to do about it, and how a program should end."""
import enum
from typing import Callable, List, Optional


class Code(enum.IntEnum):
    """What kind of failure it was; the numbers are those of `bps_status` in bps.h."""

    INVALID_ARGUMENT = 1  # the caller's mistake; nothing has changed
    UNREACHABLE = 2  # the scheduler does not answer
    OS = 3  # the operating system refused something
    DEADLINE = 4  # the wait expired; the operation goes on and may be waited for again
    PEER_LOST = 5  # a worker or server died; the job run has failed, start it again
    PROTOCOL = 6  # a peer broke the protocol or has another version
    UNAUTHORISED = 7
    CONFIGURATION = 8  # ranks disagree, duplicate rank, tensor mismatch, bad setting
    OUT_OF_MEMORY = 9
    CANCELLED = 10  # ended by close
    CLOSED = 11  # use after close, or in a forked child
    INTERNAL = 12  # a bug in bps; please report it


# As of the C API, for errors that are found here.
_EXIT_CODES = {Code.INVALID_ARGUMENT: 64, Code.UNREACHABLE: 69, Code.OS: 71, Code.DEADLINE: 75, Code.PEER_LOST: 75,
               Code.PROTOCOL: 76, Code.UNAUTHORISED: 77, Code.CONFIGURATION: 78, Code.OUT_OF_MEMORY: 71,
               Code.CANCELLED: 64, Code.CLOSED: 64, Code.INTERNAL: 70}


_when_made: List[Callable[[], None]] = []


def call_when_made(function: Callable[[], None]) -> Callable[[], None]:
    """From now on, for each Error that is made."""
    _when_made.append(function)
    return function


class Error(RuntimeError):
    """A failure, told by the library.

    code: what kind it is. message: the exact cause, one line. advice: what to do next, may be empty. exit_code: what a
    program that ends because of it should return, so that orchestrators know whether to start it again (75) or not.

    With Code.INVALID_ARGUMENT it is also a ValueError.
    """

    def __new__(cls, code: Code, *_: object, **__: object) -> "Error":
        return super().__new__(InvalidArgument if cls is Error and code == Code.INVALID_ARGUMENT else cls)

    def __init__(self, code: Code, message: str, advice: str = "", exit_code: Optional[int] = None) -> None:
        super().__init__(f"{message} ({advice})" if advice else message)
        for function in _when_made:
            function()
        self.code = code
        self.message = message
        self.advice = advice
        self.exit_code: int = _EXIT_CODES[code] if exit_code is None else exit_code


class InvalidArgument(Error, ValueError):
    pass


def invalid(message: str, advice: str = "") -> Error:
    """The caller's mistake, found before the library was asked."""
    return Error(Code.INVALID_ARGUMENT, message, advice)
