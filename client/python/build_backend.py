"""Builds the wheel (PEP 517): the package, and libbpsclient and the programs if there are some to bundle.

Our own because it is a zip file with four small texts in it, and because nothing has to be downloaded for it: `pip install
./client/python` works without a network and without a compiler. The library is that of BPS_LIBRARY, or of
`--config-settings library=FILE`, or the one that pkg-config knows, as after `cmake --install`. The programs are those of
`../bin` beside it. With a library the wheel is for this platform; without, for all, and the library is looked for when it is used.
"""
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sysconfig
import tarfile
import tempfile
import zipfile
from typing import Any, Dict, List, Optional, Tuple

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = "libbpsclient.so.0"
PROGRAMS = ("bps-scheduler", "bps-server", "bps-run", "bpsctl")
# torch 2.14 and later call it when a program asks for the backend "bps".
ENTRY_POINTS = "[torch.distributed.backends]\nbps = bps.torch.backend:register\n"
_Settings = Optional[Dict[str, Any]]
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal sources give equal wheels


def _version() -> str:
    found = re.search(r'^__version__ = "(.*)"$', (HERE / "bps/__init__.py").read_text(), re.M)
    assert found
    return found.group(1)


def _library(settings: _Settings) -> Optional[pathlib.Path]:
    chosen = (settings or {}).get("library") or os.environ.get("BPS_LIBRARY")
    if chosen:
        if not os.path.isfile(chosen):
            raise SystemExit(f"bps: there is no library {chosen}")
        return pathlib.Path(chosen)
    try:
        asked = subprocess.run(["pkg-config", "--variable=libdir", "bpsclient"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None
    path = pathlib.Path(asked.stdout.strip()) / LIBRARY
    return path if asked.returncode == 0 and path.is_file() else None


def _metadata() -> str:
    readme = (HERE / "README.md").read_text()
    return (f"Metadata-Version: 2.1\nName: libbps\nVersion: {_version()}\n"
            "Summary: Workers of bps, the gradient server, in Python and PyTorch\nLicense: Apache-2.0\n"
            f"Requires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n{readme}")


def _wheel_text(tag: str) -> str:
    pure = "true" if tag.endswith("any") else "false"
    return f"Wheel-Version: 1.0\nGenerator: bps\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"


def _tag(library: Optional[pathlib.Path]) -> str:
    if library is None:
        return "py3-none-any"
    return "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())


def _information() -> str:
    return f"libbps-{_version()}.dist-info"


def _scripts() -> str:
    """What lies here in the wheel comes into the environment's bin."""
    return f"libbps-{_version()}.data/scripts/"


def _programs(library: pathlib.Path) -> List[pathlib.Path]:
    folder = library.resolve().parent.parent / "bin"
    return [folder / name for name in PROGRAMS if (folder / name).is_file()]


def _stripped(path: pathlib.Path) -> bytes:
    """Without what only a debugger reads, where the system can take it off."""
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / path.name
        try:
            subprocess.run(["strip", "--strip-debug", "-o", target, path.resolve()], check=True, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError):
            return path.read_bytes()
        return target.read_bytes()


def _sources() -> List[pathlib.Path]:
    return sorted(path for path in (HERE / "bps").rglob("*") if path.suffix in (".py", ".typed"))


def build_wheel(wheel_directory: str, config_settings: _Settings = None, metadata_directory: Optional[str] = None) -> str:
    library = _library(config_settings)
    tag = _tag(library)
    files: List[Tuple[str, bytes]] = [(str(path.relative_to(HERE)), path.read_bytes()) for path in _sources()]
    if library is not None:
        files.append((f"bps/lib/{LIBRARY}", _stripped(library)))
        files += [(f"{_scripts()}{path.name}", _stripped(path)) for path in _programs(library)]
    files.append((f"{_information()}/entry_points.txt", ENTRY_POINTS.encode()))
    files.append((f"{_information()}/METADATA", _metadata().encode()))
    files.append((f"{_information()}/WHEEL", _wheel_text(tag).encode()))
    record = ""
    for name, content in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    record += f"{_information()}/RECORD,,\n"
    files.append((f"{_information()}/RECORD", record.encode()))

    wheel = f"libbps-{_version()}-{tag}.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = (0o100755 if name.startswith(_scripts()) else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return wheel


def build_sdist(sdist_directory: str, config_settings: _Settings = None) -> str:
    """Without the library, which is looked for again when a wheel is made of it."""
    top = f"libbps-{_version()}"
    with tarfile.open(pathlib.Path(sdist_directory) / f"{top}.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for path in _sources() + [HERE / name for name in ("pyproject.toml", "build_backend.py", "README.md")]:
            archive.add(path, f"{top}/{path.relative_to(HERE)}")
    return f"{top}.tar.gz"
