"""Parameters that the servers hold, for training without waiting for each other."""
import collections
from typing import Any, Deque, Dict, List, Optional, Tuple

import torch

from .._abi import Op
from ..client import TensorSpec
from ..errors import invalid
from .agreement import check_agreement
from .gradients import Named, own, refuse_owned
from .handles import Handle
from .operations import start
from .stream import reduce_bytes
from .tensors import dtype_of, is_plain, memory_of_tensor
from .world import world


class SharedParameters:
    """Each rank adds its changes to the servers' values, and takes what these have become, at its own pace.

    Owned by one DistributedOptimizer; lives on the thread that trains. It keeps a copy of each parameter: the value that
    this rank has taken last. The values begin as rank 0's parameters. Frozen parameters are not shared until they are
    thawed.
    """

    def __init__(self, named: Named, staleness: Optional[int]) -> None:
        self._place = world()
        self._staleness = staleness
        self._prefix: Optional[str] = None  # of the tensors' names
        self.names: Dict[torch.nn.Parameter, str] = {}
        self._taken: Dict[torch.nn.Parameter, torch.Tensor] = {}
        self._versions: Dict[torch.nn.Parameter, int] = {}
        self._started: Deque[Tuple[torch.nn.Parameter, Handle]] = collections.deque()  # of an exchange that is not over
        self.add(named, "the model that is optimized")
        own(self)

    def add(self, named: Named, what: str) -> None:
        """On all ranks. Code.CONFIGURATION: `what` differs between them."""
        refuse_owned(named)
        check_agreement(self._place, named, what)
        if self._prefix is None:
            self._prefix = f"shared{self._place.next_optimizer()}"
        added = {parameter: name for name, parameter in named}
        for parameter, name in added.items():
            dtype_of(parameter if parameter.requires_grad else torch.empty(0), name)
        self.names.update(added)
        self._place.drop_with(self, [self._wire_name(parameter) for parameter in added])
        self._share_thawed()

    def exchange(self) -> None:
        """Adds what this rank has changed since the last time, and takes the values. Error: of the operations, e.g.
        Code.DEADLINE, while a slower rank holds this one up."""
        self._share_thawed()
        for parameter, taken in self._taken.items():
            torch.sub(parameter.detach(), taken, out=taken)
            self._started.append((parameter, start(taken, parameter, self._wire_name(parameter), Op.SUM)))
        self._finish()

    def _finish(self) -> None:
        while self._started:
            parameter, handle = self._started[0]
            handle.synchronize()
            self._took(parameter)
            self._started.popleft()

    def check_untouched(self) -> None:
        """Code.INVALID_ARGUMENT: the program has changed a parameter since the last exchange, and all ranks may have made
        the same change, which the servers would then add up. Waits before for an exchange whose wait has timed out."""
        self._finish()
        for parameter, taken in self._taken.items():
            if parameter._version == self._versions[parameter]:
                continue
            if not torch.equal(parameter.detach(), taken):
                raise invalid(f"{self.names[parameter]} was changed outside of step()",
                              "load a model before DistributedOptimizer, or make a new one after it is loaded")
            self._versions[parameter] = parameter._version

    def _share_thawed(self) -> None:
        new = [parameter for parameter in self.names if parameter.requires_grad and parameter not in self._taken]
        self._place.declare([TensorSpec(self._wire_name(parameter), dtype_of(parameter, self.names[parameter]), parameter.numel(),
                                        mode="async", staleness=self._staleness) for parameter in new])
        begun: List[Tuple[torch.nn.Parameter, torch.Tensor, Any]] = []
        for parameter in new:
            value = parameter.detach()
            value = value if is_plain(value) else value.clone(memory_format=torch.contiguous_format)
            tensor = self._place.client._declared[self._wire_name(parameter)]
            begun.append((parameter, value, self._place.client.broadcast(tensor, memory_of_tensor(value), root=0)))
        for parameter, value, handle in begun:
            handle.wait()
            with torch.no_grad():
                if value.data_ptr() != parameter.data_ptr():
                    parameter.copy_(value)
            self._taken[parameter] = torch.empty_like(value)
            self._took(parameter)
        if new:  # nobody's changes come before all have begun
            reduce_bytes(self._place, bytearray(1), Op.MAX, "the begin of shared parameters")

    def _took(self, parameter: torch.nn.Parameter) -> None:
        self._taken[parameter].copy_(parameter.detach())
        self._versions[parameter] = parameter._version

    def _wire_name(self, parameter: torch.nn.Parameter) -> str:
        return f"{self._prefix}.{self.names[parameter]}"
