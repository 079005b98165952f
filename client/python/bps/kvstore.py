"""The unified data-parallel interface of deep-learning front ends (apache/mxnet RFC 16795) on a bps job.

Keys are strings or numbers; values are contiguous arrays, as Client.push_pull takes them. A key has
one type and length, the same on all workers. Calls return when their outputs are there.
"""
from typing import Any, List, Optional, Sequence, Tuple, Union

from ._abi import Op
from ._memory import Memory, memory_of
from .client import Client
from .errors import invalid
from .handle import Handle, Tensor

Key = Union[str, int]


class KVStore:
    """Sums and copies of keyed arrays over all workers of a job.

    client: an open one, which stays open; without one the store opens its own with `options` (see Client) and closes it.
    """

    type = "bps"

    def __init__(self, client: Optional[Client] = None, **options: Any) -> None:
        if client is not None and options:
            raise invalid("options are for a client that the store opens itself, and one was given")
        self._owns_client = client is None
        self._client = Client(**options) if client is None else client

    @property
    def rank(self) -> int:
        return self._client.rank

    @property
    def num_workers(self) -> int:
        return self._client.world_size

    @staticmethod
    def is_capable(capability: str) -> bool:
        """capability: "optimizer": no, optimizers stay in the workers. Error: INVALID_ARGUMENT, an unknown one."""
        if capability.lower() == "optimizer":
            return False
        raise invalid(f"{capability!r} is no capability", "ask for 'optimizer'")

    def broadcast(self, key: Union[Key, Sequence[Key]], value: Any, out: Any, priority: int = 0) -> None:
        """`out` of every worker becomes rank 0's `value`; the values of others are not looked at, only their types.

        One key with one array each, or equally many keys, values and outs. Higher priorities go first.
        """
        started: List[Handle] = []
        for name, given, output in self._matched(key, value, out):
            source = memory_of(given, f"value of {name}")
            target = memory_of(output, f"out of {name}", writable=True)
            if (source.dtype, source.count) != (target.dtype, target.count):
                raise _unlike(name, source, target)
            if source.pointer != target.pointer and (source.is_cuda or target.is_cuda):
                raise invalid(f"value and out of {name} are two pieces of memory, one of them a GPU's, which only its own "
                              "library copies", "copy the value into out, and give that as both")
            tensor = self._tensor(name, target, priority)
            if self.rank == 0 and source.pointer != target.pointer:
                target.copy_from(source)
            started.append(self._client.broadcast(tensor, target, root=0))
        _wait(started)

    def pushpull(self, key: Union[Key, Sequence[Key]], value: Any, out: Any = None, priority: int = 0) -> None:
        """`out` of every worker becomes the sum of all workers' `value`; without `out` the values do."""
        started: List[Handle] = []
        for name, given, output in self._matched(key, value, value if out is None else out):
            target = memory_of(output, f"out of {name}", writable=True)
            source = target if output is given else memory_of(given, f"value of {name}")
            if (source.dtype, source.count) != (target.dtype, target.count):
                raise _unlike(name, source, target)
            started.append(self._client.push_pull(self._tensor(name, target, priority), source, target, Op.SUM))
        _wait(started)

    def close(self) -> None:
        """Closes the client if it is the store's own."""
        if self._owns_client:
            self._client.close()

    def __enter__(self) -> "KVStore":
        return self

    def __exit__(self, *failure: Any) -> None:
        if self._owns_client:
            self._client.__exit__(*failure)

    @staticmethod
    def _matched(key: Any, value: Any, out: Any) -> List[Tuple[str, Any, Any]]:
        if isinstance(key, (str, int)):
            key, value, out = [key], [value], [out]
        if not len(key) == len(value) == len(out):
            raise invalid(f"{len(key)} keys, {len(value)} values and {len(out)} outs", "give equally many")
        return [(str(k), v, o) for k, v, o in zip(key, value, out)]

    def _tensor(self, name: str, memory: Memory, priority: int) -> Tensor:
        return self._client._tensor(f"kvstore.{name}", memory.dtype, memory.count, priority)


def _unlike(name: str, source: Memory, target: Memory) -> Exception:
    return invalid(f"value of {name} has {source.count} elements of {source.dtype.name.lower()}, its out "
                   f"{target.count} of {target.dtype.name.lower()}")


def _wait(handles: Sequence[Handle]) -> None:
    for handle in handles:
        handle.wait()
