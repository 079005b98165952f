"""Arguments that C would not see as they were given: it has numbers of 32 and 64 bits, and strings that end at a NUL."""
import ctypes
import operator
from typing import Any, List, Sequence

from .errors import invalid


def whole(what: str, value: Any, least: int, most: int, meaning: str = "a whole number") -> int:
    """From `least` to `most`, which C can take."""
    try:
        number = operator.index(value)
    except TypeError:
        raise invalid(f"{what} is {value!r}, and is to be {meaning}") from None
    if not least <= number <= most:
        raise invalid(f"{what} is {number}, and is to be {meaning} from {least} to {most}")
    return number


def number(what: str, value: Any) -> float:
    """NaN and infinity pass: the library refuses them, with the same error on all ranks."""
    try:
        return ctypes.c_double(value).value
    except (TypeError, OverflowError):
        raise invalid(f"{what} is {value!r}, and is to be a number") from None


def text(what: str, value: Any) -> bytes:
    try:
        if isinstance(value, str) and "\0" not in value:
            return value.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        raise invalid(f"{what} is {value!r}, and is to be a string of whole characters") from None
    raise invalid(f"{what} is {value!r}, and is to be a string without NUL")


def sequence(what: str, value: Any, meaning: str) -> Sequence[Any]:
    """Something with a length that can be gone through."""
    if isinstance(value, (set, frozenset)):
        raise invalid(f"{what} are a set, and their order matters", "give a list")
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        raise invalid(f"{what} are {value!r}, and are to be a list of {meaning}")
    try:
        return list(value)
    except TypeError:
        raise invalid(f"{what} are {value!r}, and are to be a list of {meaning}") from None


def lengths(what: str, value: Any) -> List[int]:
    return [whole(f"number {place} of {what}", one, 0, (1 << 64) - 1) for place, one in enumerate(sequence(what, value, "lengths"))]
