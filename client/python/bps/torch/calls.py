"""Calls of the ranks of a process set, without declared tensors.

A group of bps compares the calls of its ranks: kind, operation, type and length of what is reduced, length of what is copied.
Horovod compares more: names, shapes, the types of what is copied. And after ranks have called different things, a program of
Horovod goes on, where a group is of no use any more. Both are made good here.
"""
import hashlib
import zlib
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

import torch

from .. import handle as bps_handle
from .._abi import Op
from ..errors import Code, Error, invalid
from ..group import Group
from .handles import Handle
from .tensors import memory_of_tensor
from .world import Series, World

Begin = Callable[[Group], Sequence[bps_handle.Handle]]

_DIFFER = "ranks make the same calls, in the same order, with the same arguments; the next call may go on"
_CODE_BITS = 24
_OUT_OF_STEP = "call join() on all ranks, or remove and add their process set, and go on"
_MOST_BYTES = 384  # of a group's name


def check_name(name: Optional[str]) -> None:
    """Of a tensor; None: it has none."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"the name of a tensor is a string, not {name!r}")
    if name == "":
        raise invalid("the name of a tensor is empty", "give it another one, or none")


class RollCall:
    """Do all ranks make the same call, and the same number of calls before it? A sum of numbers, beside the call itself: how many
    ranks there are, then what they call and which call it is, each as a number and as its square. A rank that has joined counts
    as none. Numbers are equal if, and only if, the square of their sum is their count times the sum of their squares."""

    def __init__(self, group: Group, text: str, count: int) -> None:
        code = zlib.crc32(text.encode()) >> (32 - _CODE_BITS)
        count &= (1 << _CODE_BITS) - 1
        self._sums = torch.tensor([1, code, code * code, count, count * count])
        self.operation = group.push_pull(memory_of_tensor(self._sums), op=Op.SUM)

    @property
    def ranks(self) -> int:
        return int(self._sums[0])

    @property
    def is_one_call(self) -> bool:
        return self._are_equal(1)

    @property
    def is_one_count(self) -> bool:
        return self._are_equal(3)

    def _are_equal(self, place: int) -> bool:
        total, squares = int(self._sums[place]), int(self._sums[place + 1])
        return total * total == self.ranks * squares


class CallHandle(Handle):
    """A call of a process set."""

    def __init__(self, calls: "CallGroup", group: Group, text: str, operations: Sequence[bps_handle.Handle], roll: RollCall,
                 finish: Callable[[], Any], needs_all: bool) -> None:
        self._calls = calls
        self._group = group
        self._text = text
        self._operations = operations
        self._roll = roll
        self._finish: Optional[Callable[[], Any]] = finish
        self._needs_all = needs_all
        self._error: Optional[Error] = None
        self._result: Any = None

    def poll(self) -> bool:
        return self._roll.operation.poll() and all(operation.poll() for operation in self._operations)

    def then(self, function: bps_handle.Callback) -> None:
        """See bps.Handle.then. What synchronize() checks has not been checked, and copies have not been made."""
        (*self._operations, self._roll.operation)[0].then(function)

    def synchronize(self) -> Any:
        if self._finish is not None:
            self._wait()
        if self._error is not None:
            raise self._error
        return self._result

    def _wait(self) -> None:
        first: Optional[Error] = None
        for operation in (*self._operations, self._roll.operation):
            try:
                self._calls.wait(operation)
            except Error as error:
                if error.code == Code.DEADLINE:
                    raise
                first = first or error
        finish, self._finish = self._finish, None
        assert finish is not None
        self._error = self._checked(first)
        if self._error is None:
            self._result = finish()
        self._operations = ()

    def _checked(self, error: Optional[Error]) -> Optional[Error]:
        if error is not None:
            if error.code != Code.CONFIGURATION:
                return error
            self._calls.renew(self._group)
            return Error(error.code, f"{self._text}: {error.message}", error.advice if "has left" in error.message else _DIFFER)
        if not self._roll.is_one_count:
            return Error(Code.CONFIGURATION, f"{self._text}: ranks have not made as many calls before it, because calls were under "
                         "way when one was refused", _OUT_OF_STEP)
        if not self._roll.is_one_call:
            return Error(Code.CONFIGURATION, f"{self._text}: another rank calls something else", _DIFFER)
        joined = self._roll.operation.ranks - self._roll.ranks  # the library gives zeros for them; who is lost gives nothing
        if joined and self._needs_all:
            return Error(Code.CONFIGURATION, f"{self._text}: {joined} of {self._calls.size} ranks have joined, and only sums and "
                         "averages do without them", "call join() on this rank, too")
        return None


class CallGroup:
    """The ranks of a process set, or those that share a name, as a group, which is made at its first call, and again after ranks
    have called different things. All ranks get that error with the call itself, so they make the next group alike.

    Owner: World, for the time of a job. Calls come from the thread of the program, and from those of autograd.
    """

    def __init__(self, place: World, name: str, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self._place = place
        self.name = name
        self._group: Optional[Group] = None
        self._count = 0  # of calls since all ranks were at the same place without doubt
        self.renewals = 0  # since then
        self._under_way: Set[str] = set()  # what has a name
        self._series = Series()

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def rank(self) -> int:
        return self.ranks.index(self._place.client.rank)

    def check_member(self) -> None:
        if self._place.client.rank not in self.ranks:
            raise invalid(f"rank {self._place.client.rank} is not in the process set of ranks {self.ranks}, and calls on it",
                          "only its ranks make calls on a process set")
        if not self._place.calls_without_names:
            raise invalid("the ranks of a host sum first (local-group), and there are no such calls then",
                          "use allreduce and broadcast of all ranks, or BPS_LOCAL_GROUP=off")

    def job_rank(self, root: Any) -> int:
        """Horovod's roots are ranks of the job, also of process sets."""
        if root not in self.ranks:
            raise invalid(f"root_rank is {root!r}, which is no rank of the process set: its ranks are {self.ranks}")
        return int(root)

    def start(self, kind: str, name: Optional[str], meaning: str, begin: Begin, finish: Callable[[], Any],
              needs_all: bool = True) -> CallHandle:
        """begin: starts the operations, in memory that has been checked. meaning: what must be alike on all ranks. finish: makes
        the result when all has gone well. needs_all: a rank that has joined is an error."""
        self.check_member()
        self._series.check()
        self._check_name(kind, name)
        text = f"{kind}{'' if name is None else f' {name!r}'} of {meaning}"
        group, operations, roll = self._begin(begin, text)
        self._count += 1
        if name is not None:
            self._hold(f"{kind} {name}", operations[0] if operations else roll.operation)
        return CallHandle(self, group, text, operations, roll, finish, needs_all)

    def make(self, kind: str, meaning: str, begin: Begin) -> None:
        """Starts and waits. It is one of several, see Series."""
        with self._series.exchange(f"{kind} of {meaning}"):
            self.start(kind, None, meaning, begin, lambda: None).synchronize()

    def wait(self, operation: bps_handle.Handle) -> None:
        self._place.wait(operation)

    def begin_join(self) -> bps_handle.Handle:
        return self._made().join()

    def gather(self, mine: bytes, timeout_s: float) -> Dict[int, bytes]:
        """The bytes of each rank, none of which is zero, without ranks that are lost. Made of sums, which go on when a rank is
        lost. When nothing else is under way."""
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(mine)
        self._made().push_pull(memory_of_tensor(lengths), op=Op.SUM).wait(timeout_s)
        whole = torch.zeros(int(lengths.sum()), dtype=torch.uint8)
        parts = whole.split(lengths.tolist())
        parts[self.rank].copy_(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        self._made().push_pull(memory_of_tensor(whole), op=Op.SUM).wait(timeout_s)
        return {rank: bytes(part.tolist()) for rank, part in zip(self.ranks, parts) if part.any()}

    def has_joined(self) -> None:
        """All ranks have: they count anew."""
        self._count = self.renewals = 0

    def renew(self, group: Group) -> None:
        """That one is of no use any more."""
        if self._group is group:
            self.renewals += 1
            self._group = None
            group.drop()

    def leave(self) -> None:
        """Makes no calls any more."""
        if self._group is not None:
            self.renew(self._group)

    def _made(self) -> Group:
        if self._group is None:
            self._group = self._place.client.group(self.name, self.ranks)
        return self._group

    def _begin(self, begin: Begin, text: str) -> Any:
        """An error that a call gets at once is that of an earlier call, for which nobody has waited."""
        for is_again in (False, True):
            group = self._made()
            try:
                operations = list(begin(group))
                return group, operations, RollCall(group, text, self._count)
            except Error as error:
                if error.code != Code.CONFIGURATION or is_again:
                    raise
                self.renew(group)

    def _check_name(self, kind: str, name: Optional[str]) -> None:
        check_name(name)
        if name is not None and f"{kind} {name}" in self._under_way:
            raise invalid(f"{kind} of {name!r} is under way",
                          "call synchronize() of its handle first, or give this one another name")

    def _hold(self, key: str, operation: bps_handle.Handle) -> None:
        self._under_way.add(key)
        operation.then(lambda _: self._under_way.discard(key))


def described(tensor: torch.Tensor, shape: Optional[Sequence[int]] = None) -> str:
    """Type and shape. shape: what of it must be alike on all ranks."""
    return f"{str(tensor.dtype).replace('torch.', '')} {list(tensor.shape) if shape is None else ['*', *shape]}"


def calls_of_name(place: World, name: str) -> CallGroup:
    """The group that stands for a declared tensor, or for a name without one: its ranks make calls under this name in the same
    order, and those of different names in any order."""
    if name not in place.name_groups:
        ranks = place.names[name].ranks if name in place.names else None
        place.name_groups[name] = CallGroup(place, _name_of_group(name), range(place.client.world_size) if ranks is None else ranks)
    group: CallGroup = place.name_groups[name]
    return group


def _name_of_group(name: str) -> str:
    """Names of groups are shorter than those of tensors may be."""
    short = f"torch.name/{name}"
    return short if len(short.encode()) <= _MOST_BYTES else f"torch.name/{hashlib.sha256(name.encode()).hexdigest()}"


def groups_of(place: World) -> Dict[Any, CallGroup]:
    """By the numbers of process sets, and by the ranks of optimizers."""
    groups: Dict[Any, CallGroup] = place.call_groups
    return groups


def calls_of_ranks(place: World, ranks: Sequence[int]) -> CallGroup:
    """Of optimizers over these ranks, for what they compare."""
    key = tuple(ranks)
    return _of(place, key, f"optimizer.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}", ranks)


def calls_of_all(place: World) -> CallGroup:
    return _of(place, 0, "torch.world", range(place.client.world_size))


def _of(place: World, key: Any, name: str, ranks: Sequence[int]) -> CallGroup:
    groups = groups_of(place)
    if key not in groups:
        groups[key] = CallGroup(place, name, ranks)
    return groups[key]
