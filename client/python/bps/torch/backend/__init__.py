"""The backend "bps" of torch.distributed. See client/python/backend.md."""
from typing import Any

import torch
import torch.distributed as dist

_OLDEST = (2, 6)


def register() -> None:
    """Makes "bps" a backend of torch.distributed. torch 2.14 and later call it when a program asks for that backend; for
    earlier ones `import bps.torch` does it."""
    if not dist.is_available() or hasattr(dist.Backend, "BPS"):
        return
    version = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdigit())
    if version < _OLDEST:
        dist.Backend.register_backend("bps", _refuse)
        return
    from . import registration

    registration.register(version)


def _refuse(*_: Any) -> None:
    raise RuntimeError(f"torch {torch.__version__} is too old for the backend bps, which needs 2.6; with this one, use the hook of "
                       "DistributedDataParallel or the optimizer of bps.torch")


__all__ = ["register"]
