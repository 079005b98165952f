"""Finds libbpsclient, loads it once, and says plainly what is wrong if that does not work.

Looked for in this order: the file that BPS_LIBRARY names, the library that lies in this package (a wheel that
bundles it), the system's (ld.so.conf, LD_LIBRARY_PATH). Nothing is loaded before it is needed.
"""
import ctypes
import functools
import os
import pathlib
from typing import Optional

from . import _abi
from .errors import Code, Error

NAME = f"libbpsclient.so.{_abi.VERSION_MAJOR}"
ADVICE = ("install it with `cmake --install`, or set BPS_LIBRARY to the file, "
          "e.g. BPS_LIBRARY=$HOME/bps/lib/" + NAME)


def _unusable(message: str, advice: str) -> Error:
    return Error(Code.CONFIGURATION, message, advice)


def find() -> str:
    """What to load: a path, or a bare name that the system's loader looks up."""
    chosen = os.environ.get("BPS_LIBRARY")
    if chosen:
        if not os.path.isfile(chosen):
            raise _unusable(f"BPS_LIBRARY={chosen}: there is no such file", "set it to " + NAME + " itself, or unset it")
        return chosen
    bundled = pathlib.Path(__file__).parent / "lib" / NAME
    return str(bundled) if bundled.is_file() else NAME


def load(where: str) -> ctypes.CDLL:
    """Loads and checks one library. Error.code CONFIGURATION: not there, not a bps library, another version."""
    try:
        library = ctypes.CDLL(where)
    except OSError as problem:
        raise _unusable(f"the library of bps cannot be loaded: {problem}", ADVICE) from None
    try:
        library.bps_version.restype = ctypes.c_char_p
        version = library.bps_version().decode()
    except AttributeError:
        raise _unusable(f"{where} is no library of bps: it has no bps_version", ADVICE) from None
    # Before 1.0 a minor version may change the API.
    if version.split(".")[:2] != [str(_abi.VERSION_MAJOR), str(_abi.VERSION_MINOR)]:
        raise _unusable(f"{where} is version {version}, and this package is for "
                        f"{_abi.VERSION_MAJOR}.{_abi.VERSION_MINOR}", "install both from the same source")
    try:
        _abi.set_prototypes(library)
    except AttributeError as problem:
        raise _unusable(f"{where} says version {version} but is older than this package: {problem}",
                        "install both from the same source") from None
    return library


@functools.lru_cache(maxsize=None)
def get() -> ctypes.CDLL:
    """The library of this process."""
    return load(find())


def check(status: int, error: Optional[_abi.CError] = None) -> None:
    """Raises the library's error, unless the status is OK."""
    if status == 0:
        return
    if status == Code.CLOSED and (error is None or not error.message):
        raise Error(Code.CLOSED, "the client is closed, or belongs to the parent of this process", "open a new one")
    if error is None or not error.message:
        raise Error(Code(status), get().bps_status_string(status).decode())
    raise told(error)


def told(error: _abi.CError) -> Error:
    """The exception for a bps_error; copies everything out of it."""
    return Error(Code(error.status), error.message.decode(errors="replace"), error.advice.decode(errors="replace"),
                 error.exit_code)


def new_error() -> _abi.CError:
    return _abi.CError(struct_size=ctypes.sizeof(_abi.CError))
