"""Horovod's horovod.torch.elastic, which is not there: a job has the ranks that it was started with."""
from typing import Any

from ..errors import Code, Error


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise Error(Code.CONFIGURATION, f"bps.torch.elastic.{name} is not there: a job has the ranks that it was started with",
                "start all ranks again from the last checkpoint, as deploy/operations.md describes")
