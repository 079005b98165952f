"""Horovod's horovod.torch.elastic: its names, which say that it is not there when they are called."""
from typing import Any, NoReturn

from ..errors import Code, Error

_NAMES = ("ElasticSampler", "ObjectState", "State", "TorchState", "run", "run_fn")


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"bps.torch.elastic has no {name}")

    def is_not_there(*_: Any, **__: Any) -> NoReturn:
        raise Error(Code.CONFIGURATION, f"bps.torch.elastic.{name} is not there: a job has the ranks that it was started with",
                    "start all ranks again from the last checkpoint, as deploy/operations.md describes")

    return is_not_there
