"""Lets an example run from the source tree, before anything is installed: `import in_tree` before `import bps`."""
import importlib.util
import os
import pathlib
import sys

_SOURCE = pathlib.Path(__file__).resolve().parents[3]
_BUILT = _SOURCE / "build" / "lib" / "libbpsclient.so.0"

if importlib.util.find_spec("bps") is None:
    sys.path.insert(0, str(_SOURCE / "client" / "python"))
    if _BUILT.exists():
        os.environ.setdefault("BPS_LIBRARY", str(_BUILT))
