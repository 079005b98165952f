"""Operations that are under way, as the functions of bps.torch return them.

Horovod has numbers for them, and programs give them to poll() and synchronize() only. All kinds here do that; what more a
kind can do, its class says.
"""
import threading
import time
from typing import Any, Callable, List, Optional, Sequence

import torch

from .. import handle as bps_handle
from ..errors import Code, Error, invalid
from .tensors import is_on_gpu, will_be_used_here
from .world import World

_LONGEST_PAUSE_S = 0.002  # of a wait that has to ask: so late it may see the end


class Handle:
    """Something that is under way; give it to synchronize()."""

    def poll(self) -> bool:
        """Has it ended, well or not? Then synchronize() does not wait."""
        raise NotImplementedError

    def synchronize(self) -> Any:
        """Waits, and returns the result; again: the same. Error: that of the operation; Code.DEADLINE, and it may be called
        again."""
        raise NotImplementedError

    def wait_stream(self) -> torch.Tensor:
        """See TensorHandle.wait_stream. Error: INVALID_ARGUMENT, because the result comes by way of the host."""
        raise invalid("a stream is to wait for a tensor that is not on a GPU, or for a call of a group", "call synchronize()")


class Derived(Handle):
    """What `function` makes of the results of others, of none: at once."""

    def __init__(self, handles: Sequence[Handle], function: Callable[[List[Any]], Any]) -> None:
        self._handles = handles
        self._function = function
        self._result: Any = None
        self._is_over = False

    def poll(self) -> bool:
        return all(handle.poll() for handle in self._handles)

    def synchronize(self) -> Any:
        if not self._is_over:
            self._result = self._function(_all_of(self._handles))
            self._is_over = True
            self._handles = ()
        return self._result

    __call__ = synchronize  # what Horovod returns of a sparse tensor is called, not given to synchronize()


def _all_of(handles: Sequence[Handle]) -> List[Any]:
    """The results of all. All are waited for, also if one has failed: later calls meet those of the other ranks."""
    results: List[Any] = []
    first: Optional[Error] = None
    for handle in handles:
        try:
            results.append(handle.synchronize())
        except Error as error:
            first = first or error
            if error.code == Code.DEADLINE:
                break
    if first is not None:
        raise first
    return results


class TensorHandle(Handle):
    """A push_pull of a declared tensor. `tensor`: where its result goes. again: makes it once more, as a call of a group, which
    goes without ranks that have joined, or tells what ranks have called instead."""

    def __init__(self, tensor: torch.Tensor, operation: Optional[bps_handle.Handle], staging: Optional[torch.Tensor],
                 unnamed: Optional[str], place: World, again: Optional[Callable[[], Handle]], name: Optional[str] = None) -> None:
        self.tensor = tensor
        self.name = name
        self._operation = operation  # None: it could not even start, because ranks differ
        self._again = again
        self._repeated: Optional[Handle] = None
        self._staging = staging
        self._copied: Any = None  # the torch.cuda.Event after the copy out of `staging`
        self._changing = threading.Lock()
        self._unnamed = unnamed
        self._world = place
        if again is not None:
            place.under_way.add(self)

    def poll(self) -> bool:
        if self._repeated is not None:
            return self._repeated.poll()
        return self._operation is None or self._operation.poll()

    def then(self, function: bps_handle.Callback) -> None:
        """See bps.Handle.then. Only tensors that need no copy are complete inside the function. What a group makes again has not
        been checked: see CallHandle.then."""
        if self._operation is None and self._repeated is None:
            self._repeat()
        ending: Any = self._operation or self._repeated
        ending.then(function)

    def wait_stream(self) -> torch.Tensor:
        """Lets PyTorch's current stream wait for the result; for tensors on a GPU. The call blocks until the last copy is
        queued. It does not check the result: call synchronize() before you use what was computed from it. See
        bps.Handle.wait_stream."""
        if not is_on_gpu(self.tensor):
            raise invalid("a stream is to wait for a tensor that is not on a GPU", "call synchronize()")
        assert self._operation is not None
        self._operation.wait_stream(torch.cuda.current_stream(self.tensor.device).cuda_stream)
        self.place_here()
        will_be_used_here(self.tensor)
        return self.tensor

    def place_here(self) -> None:
        """Of an operation that has ended, or that the current stream waits for: what is queued from now on on that stream
        finds the result in `tensor`."""
        self._unstage()
        if self._copied is not None:
            torch.cuda.current_stream(self.tensor.device).wait_event(self._copied)

    def synchronize(self) -> torch.Tensor:
        """Waits, also of a tensor on a GPU on the host; afterwards the name may be used again. After ranks have called
        different things under the name, it is dropped, and the next call declares it anew."""
        if self._repeated is None and not self._ends_well():
            self._repeat()
        self._world.under_way.discard(self)
        if self._repeated is not None:
            self._repeated.synchronize()
        self._unstage()
        self._wait_for_copy()
        if self._unnamed is not None:
            self._world.release_unnamed(self._unnamed)
            self._unnamed = None
        return self.tensor

    def advance(self) -> bool:
        """Without waiting: makes it again if it is to be. False: it is still open whether it is."""
        if self._repeated is None:
            if self._operation is not None and not self._operation.poll():
                return False
            try:
                if not self._ends_well():
                    self._repeat()
            except Error:  # for synchronize()
                pass
        return True

    def _repeat(self) -> None:
        with self._changing:  # another thread that waits may advance it
            if self._again is not None:
                self._staging = None
                self._repeated, self._again = self._again(), None

    def _ends_well(self) -> bool:
        """False: ranks differ, or some have joined, and it is to be made again."""
        if self._operation is None:
            return False
        try:
            self._world.wait(self._operation, self)
        except Error as error:
            if error.code != Code.CONFIGURATION:
                raise
            self._world.drop_failed(self._operation.tensor)
            if self._again is None and self._repeated is None:
                raise
            return False
        return True

    def _wait_for_copy(self) -> None:
        """What the program has queued on the stream before may take any time, and PyTorch waits for an event without a
        deadline: so the event is asked, ever less often. Ctrl-C ends it."""
        if self._copied is None:
            return
        timeout_s, pause_s = self._world.operation_timeout_s, 20e-6
        deadline = time.monotonic() + timeout_s
        while not self._copied.query():  # raises what has gone wrong with the GPU
            if time.monotonic() >= deadline:
                name = "the tensor" if self._operation is None else self._operation.tensor.name
                raise Error(Code.DEADLINE, f"waited {timeout_s:.3g} s for the copy of {name} to its place: the stream that "
                            "copies has not done what was queued on it before",
                            "the operation has ended well: look at what the program computes there, and call synchronize() "
                            "again")
            threading.Event().wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _unstage(self) -> None:
        """Of a tensor on a GPU the copy is queued on the current stream, and whoever else uses the result waits for it. DDP's
        hook comes here in two threads."""
        with self._changing:
            if self._staging is None:
                return
            with torch.no_grad():
                self.tensor.copy_(self._staging)
            if is_on_gpu(self.tensor):
                will_be_used_here(self._staging)
                self._copied = torch.cuda.Event()
                self._copied.record(torch.cuda.current_stream(self.tensor.device))
            self._staging = None
