"""join(): for ranks that have run out of data before the others.

The library makes the others' calls of a group for a rank that has joined it. It does not make their operations of declared
tensors. So a rank that joins drops its tensors, and joins a group in place of each. The operations of the others fail then, on
all of them alike, in the first round that this rank lacks, and they make that round and later ones as calls of that group. A
group for each name, because ranks may use names in any order.
"""
import json
import threading
import time
from typing import Any, Dict, List, Optional

from .. import handle as bps_handle
from ..errors import Code, Error
from .calls import CallGroup, calls_of_name
from .process_sets import calls_of
from .world import World, world

_PAUSE_S = 0.05
_NOT_JOINED = "not joined"  # in place of what a rank says of a name


def join(device: int = -1) -> int:
    """This rank has no more data. Returns when all ranks have joined: the rank that came last. Until then sums and averages of
    the others count this rank as zeros; averages divide by all ranks. What cannot do without this rank is an error on the
    ranks that call it, and they may go on. device: Horovod's, not needed."""
    calls = calls_of()
    calls.check_member()
    return _Joining(world(), calls).finish()


class _Join:
    """Of one group. Others may call what cannot do without this rank: then they make another group, which it joins again."""

    def __init__(self, calls: CallGroup) -> None:
        self.calls = calls
        self.handle: bps_handle.Handle = calls.begin_join()
        self.is_done = False

    def wait(self, timeout_s: float) -> None:
        """Of a rank that has more to do than this one, which may take any time. A rank that is lost ends it."""
        try:
            self.handle.wait(timeout_s)
            self.is_done = True
        except Error as error:
            if error.code == Code.CONFIGURATION:
                self.calls.leave()
                self.handle = self.calls.begin_join()
            elif error.code != Code.DEADLINE:
                raise


class _Joining:
    """Of this rank."""

    def __init__(self, place: World, calls: CallGroup) -> None:
        self._place = place
        self._renewals = calls.renewals
        self._all = _Join(calls)
        self._left = {*place.names, *place.name_groups}  # names whose tensors are still there
        self._of_names: Dict[str, _Join] = {}

    def finish(self) -> int:
        until: Optional[float] = None
        while True:
            self._drop()
            for one in self._of_names.values():
                if not one.is_done and one.handle.poll():
                    one.wait(0)
            if not self._all.is_done:
                self._all.wait(_PAUSE_S)
                continue
            # All ranks are here. What is under way ends, but for a name that another rank has never had.
            until = until or time.monotonic() + self._place.operation_timeout_s
            if not self._left or time.monotonic() > until:
                break
            threading.Event().wait(_PAUSE_S)
        calls = self._all.calls
        mine = json.dumps([self._renewals, {name: self._declared_as(name) for name in self._of_names}]).encode()
        patience_s = 2 * self._place.operation_timeout_s  # another one may just have begun to wait for such a name
        told = {rank: json.loads(one) for rank, one in calls.gather(mine, patience_s).items()}

        def of_all(name: str) -> List[Any]:
            return [told[rank][1].get(name, _NOT_JOINED) for rank in self._of_names[name].calls.ranks if rank in told]

        everywhere = [name for name in self._of_names if _NOT_JOINED not in of_all(name)]
        self._wait_for_all(everywhere, patience_s)
        last = self._all.handle.last_joined
        if calls.renewals:
            last = _last_of({rank: renewals for rank, (renewals, _) in told.items()}, last)
        calls.has_joined()
        for group in self._place.name_groups.values():
            group.leave()
        self._place.name_groups.clear()
        self._place.rounds.clear()
        # What all have declared alike, so that a rank may join again without having used it again.
        self._place.declare([self._place.names[name] for name in everywhere if of_all(name)[0] is not None and
                             all(one == of_all(name)[0] for one in of_all(name))])
        return last

    def _declared_as(self, name: str) -> Optional[List[Any]]:
        spec = self._place.names.get(name)
        return None if spec is None else [int(spec.dtype), spec.count]

    def _wait_for_all(self, names: List[str], timeout_s: float) -> None:
        """In any order: those that have failed are joined again, and other ranks wait for that."""
        until = time.monotonic() + timeout_s
        left = [self._of_names[name] for name in names]
        while True:
            for one in left:
                if one.handle.poll():
                    one.wait(0)
            left = [one for one in left if not one.is_done]
            if not left:
                return
            if time.monotonic() > until:
                raise Error(Code.DEADLINE, f"waited {timeout_s:.3g} s for all ranks to join {left[0].calls.name}",
                            "look at the ranks that have not returned from join()")
            left[0].wait(_PAUSE_S)

    def _drop(self) -> None:
        """Names on which nothing is under way. What is under way, and fails, has begun again before."""
        busy = {handle.name for handle in list(self._place.under_way) if not handle.advance()}
        for name in [name for name in self._left if name not in busy]:
            if self._place.drop(name):
                self._left.discard(name)
                self._of_names[name] = _Join(calls_of_name(self._place, name))


def _last_of(renewals: Dict[int, int], last: int) -> int:
    """Ranks have joined again after the group was made again, in any order. The last one is one of those that came to join() after
    the most groups."""
    late = [rank for rank, count in renewals.items() if count == max(renewals.values())]
    return last if last in late else late[-1]
