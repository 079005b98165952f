"""The names of horovod.torch.elastic. Their use raises an error: bps has no elastic jobs."""
from typing import Any, NoReturn

from ..errors import Code, Error

_FUNCTIONS = ("run", "run_fn")
_CLASSES = ("ElasticSampler", "ObjectState", "State", "TorchState")


def _refuse(name: str) -> NoReturn:
    raise Error(Code.CONFIGURATION, f"bps.torch.elastic.{name} is not there: a job has the ranks that it was started with",
                "start all ranks again from the last checkpoint, as deploy/operations.md describes")


def __getattr__(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        _refuse(name)

    if name in _FUNCTIONS:
        return refuse
    if name in _CLASSES:
        return type(name, (), {"__new__": refuse, "__init_subclass__": classmethod(refuse)})
    raise AttributeError(f"bps.torch.elastic has no {name}")
