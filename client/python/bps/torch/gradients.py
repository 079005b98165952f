"""The gradients of one optimizer on their way: each is averaged over all ranks as soon as backward has made it."""
import gc
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from .._abi import Op
from ..client import TensorSpec
from ..errors import Code, Error, invalid
from .agreement import check_agreement
from .calls import calls_of_name, calls_of_ranks
from .compression import is_own
from .gathering import start_sparse
from .handles import Handle
from .layers import remove_all
from .operations import start
from .sparse import as_sparse
from .stream import reduce_bytes
from .tensors import check_place, dtype_of
from .world import world

Named = List[Tuple[str, torch.nn.Parameter]]

_DENSE = 1  # a kind of gradient; 1 + n: sparse, with n indices for each entry


# What exchanges parameters or their gradients, each with the `names` of its parameters.
_living: "weakref.WeakSet[Any]" = weakref.WeakSet()


def own(owner: Any) -> None:
    _living.add(owner)


def refuse_owned(named: Named) -> None:
    """Code.INVALID_ARGUMENT: one of them has an owner."""
    owned = [name for name, parameter in named for other in _living if parameter in other.names]
    if owned and gc.collect():  # one that nobody has any more may still lie there, in a cycle
        owned = [name for name, parameter in named for other in _living if parameter in other.names]
    if owned:
        raise invalid(f"{owned[0]} has another DistributedOptimizer, and would be averaged by both",
                      "drop the other one before, after its synchronize() if it has `model=`")


class Reduction(NamedTuple):
    """How gradients of all ranks become one; the arguments of DistributedOptimizer."""

    op: Op = Op.AVERAGE
    compression: Any = None
    predivide: float = 1.0
    sparse_as_dense: bool = False


def changes_what_travels(compression: Any) -> bool:
    if not is_own(compression):
        return compression is not None
    sample = torch.zeros(1)
    return compression.compress(sample)[0] is not sample


class _Started(NamedTuple):
    """A gradient that is complete, and its reduction, as soon as that has begun."""

    gradient: torch.Tensor
    version: int
    handle: Optional[Handle] = None
    in_place: bool = True  # the result will be where the gradient is

    def is_untouched(self, parameter: torch.nn.Parameter) -> bool:
        return parameter.grad is self.gradient and self.gradient._version == self.version


def _weakly(exchange: "GradientExchange") -> Callable[[torch.nn.Parameter], None]:
    """Its hook of a parameter, which may outlive it."""
    reference = weakref.ref(exchange)

    def gradient_is_there(parameter: torch.nn.Parameter) -> None:
        alive = reference()
        if alive is not None:
            alive.gradient_is_there(parameter)

    return gradient_is_there


class GradientExchange:
    """Starts to reduce a parameter's gradient as soon as it is complete, and knows which are under way.

    Owned by one DistributedOptimizer. Gradients arrive on threads of autograd, one at a time; everything else happens on
    the thread that calls step(). When it goes, its parameters are as they were before it.

    Whether a gradient is sparse shows only when it is there, and a rank may have none. So before the first reduction of a
    parameter, in step(), the ranks agree on the kind of its gradient, and keep to it. Dense ones are declared then: servers
    have no memory for what is frozen or sparse.
    """

    def __init__(self, named: Named, backward_passes_per_step: int, how: Reduction, ranks: Optional[Sequence[int]] = None,
                 takes_part: bool = True) -> None:
        self._place = world()
        self._how = how
        refuse_owned(named)  # before it takes a number, because ranks count alike
        self._calls = None if ranks is None else calls_of_ranks(self._place, ranks)
        self._takes_part = takes_part
        self.set_passes(backward_passes_per_step)
        self._prefix: Optional[str] = None  # of its tensors' names
        self.names: Dict[torch.nn.Parameter, str] = {}
        self._kinds: Dict[torch.nn.Parameter, int] = {}
        self._seen: Dict[torch.nn.Parameter, int] = {}  # backward passes since the last step
        self._started: Dict[torch.nn.Parameter, _Started] = {}
        self._keep: List[Any] = []  # gradient accumulators, whose hooks go with them
        self._hooks: List[Any] = []
        self._watched: Set[torch.nn.Parameter] = set()
        self.averaged = False  # the gradients are what step() may use
        self.promised: Set[torch.nn.Parameter] = set()  # have an update to come; LayerwiseUpdates sees to it
        weakref.finalize(self, remove_all, self._hooks)
        self.add(named, "the model that is optimized")
        own(self)

    def add(self, named: Named, what: str) -> None:
        """On all ranks. Code.CONFIGURATION: `what` differs between them."""
        if not self._takes_part:
            return
        refuse_owned(named)
        check_agreement(self._place, named, what, self._calls)
        if self._prefix is None:  # ranks count alike: one that is refused above takes no number
            of = "" if self._calls is None else self._calls.name + "."
            self._prefix = f"{of}optimizer{self._place.next_optimizer(of)}"
        self.names.update((parameter, name) for name, parameter in named)
        self._place.drop_with(self, [self._wire_name(parameter) for _, parameter in named])
        thawed = [parameter for _, parameter in named if parameter.requires_grad]
        try:
            for parameter in thawed:
                self._spec(parameter)  # refuses what cannot be reduced
        except BaseException:
            for _, parameter in named:
                self.names.pop(parameter, None)
            raise
        for parameter in thawed:
            self._watch(parameter)

    @property
    def under_way(self) -> bool:
        return bool(self._started)

    def set_passes(self, passes: int) -> None:
        if passes < 1:
            raise invalid(f"backward_passes_per_step={passes}: it takes at least 1")
        self._passes = passes

    def forget_passes(self) -> None:
        """What they added up has been cleared."""
        self._seen.clear()

    def start_missing(self) -> None:
        """What this rank had no use for in this step: others may have. A parameter without a gradient counts as zeros."""
        self._agree_on_kinds()
        for parameter in self.names:
            if parameter.requires_grad and parameter not in self._started:
                if parameter.grad is None:
                    parameter.grad = self._zeros(parameter)
                self._hand_over(parameter)

    def wait_for(self, parameter: torch.nn.Parameter) -> None:
        """Nothing happens if nothing is under way for it. Error: INVALID_ARGUMENT if the program has changed the gradient
        meanwhile, because then nobody knows what was averaged."""
        started = self._started.get(parameter)
        if started is None or started.handle is None:
            return
        untouched = started.is_untouched(parameter)
        result = started.handle.synchronize()
        del self._started[parameter]
        self._seen.pop(parameter, None)
        if not untouched:
            raise invalid(f"the gradient of {self.names[parameter]} was changed while it was under way",
                          "after backward(), call synchronize() of the optimizer before gradients are clipped, unscaled or "
                          "cleared")
        if not started.in_place:
            kind = self._kinds[parameter]
            parameter.grad = result if kind == _DENSE or result.is_sparse else result.to_sparse(kind - 1)
        if self._how.predivide != 1.0:
            average: Any = parameter.grad
            average.mul_(self._how.predivide)

    def wait_for_all(self) -> None:
        first: Optional[Error] = None
        for parameter in self.names:
            try:
                self.wait_for(parameter)
            except Error as error:  # of a gradient that was changed: the others are to be over, too
                if error.code != Code.INVALID_ARGUMENT:
                    raise
                first = first or error
        if first is not None:
            raise first
        self.averaged = True

    def average_loss(self, loss: Any) -> Any:
        """The average over all ranks of what a closure has returned, of the same type."""
        name = f"{self._prefix}.loss"
        if not self._takes_part:
            return loss
        value = torch.as_tensor(loss).detach().to("cpu", torch.float64).clone()
        if self._place.client._declared.get(name) is None and name not in self._place.name_groups:
            self._place.drop_with(self, [name])
            self._place.declare([TensorSpec(name, dtype_of(value, "the loss"), value.numel(), ranks=self._ranks)])
        start(value, value, name, Op.AVERAGE).synchronize()
        return value.to(loss) if isinstance(loss, torch.Tensor) else value.item()

    def _watch(self, parameter: torch.nn.Parameter) -> None:
        watch = _weakly(self)
        self._watched.add(parameter)
        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
            self._hooks.append(parameter.register_post_accumulate_grad_hook(watch))
            return
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        self._keep.append(accumulator)
        self._hooks.append(accumulator.register_hook(lambda *unused: watch(parameter)))

    def gradient_is_there(self, parameter: torch.nn.Parameter) -> None:
        if parameter in self.promised:
            raise invalid(f"{self.names[parameter]} was used before the update that step() had promised",
                          "its module is used in a way that `model=` does not see: leave that out")
        if parameter in self._started:
            raise invalid(f"the gradient of {self.names[parameter]} came {self._passes + 1} times between two step()s, and "
                          f"after {self._passes} it is averaged",
                          "set backward_passes_per_step to the most passes that a step has, or call step() after each "
                          "backward(); a layer that runs in several checkpoints needs use_reentrant=False")
        self.averaged = False
        self._seen[parameter] = self._seen.get(parameter, 0) + 1
        if self._seen[parameter] >= self._passes:
            self._hand_over(parameter)

    def _hand_over(self, parameter: torch.nn.Parameter) -> None:
        gradient = parameter.grad
        assert gradient is not None
        self._started[parameter] = _Started(gradient, gradient._version)
        if parameter in self._kinds:
            self._start(parameter)

    def _start(self, parameter: torch.nn.Parameter) -> None:
        started, how, kind = self._started[parameter], self._how, self._kinds[parameter]
        gradient = started.gradient
        what = f"the gradient of {self.names[parameter]}"
        given = gradient.detach() if how.predivide == 1.0 else gradient.detach() / how.predivide
        in_place = kind == _DENSE and not gradient.is_sparse
        handle: Handle
        if kind == _DENSE or how.sparse_as_dense:
            given = given.to_dense() if given.is_sparse else given
            check_place(given, what)
            target = gradient if in_place else torch.empty_like(given)
            handle = start(given, target, self._wire_name(parameter), how.op, compression=how.compression)
        else:
            given = as_sparse(given, kind - 1)
            dtype_of(given._values(), what)
            if not given.is_floating_point():
                raise invalid(f"{what} is sparse and has elements of {given.dtype}", "sparse gradients are of floats")
            handle = start_sparse(calls_of_name(self._place, self._wire_name(parameter)), given, None, how.op)
        self._started[parameter] = started._replace(handle=handle, in_place=in_place)

    def _agree_on_kinds(self) -> None:
        """On all ranks; of parameters that are new, or have been thawed since the last time."""
        new = [parameter for parameter in self.names if parameter.requires_grad and parameter not in self._kinds]
        if not new:
            return
        kinds = bytearray(map(self._kind, new))
        reduce_bytes(self._place, kinds, Op.MAX, "kinds of gradients", self._calls)
        found = {parameter: max(_DENSE, kind) for parameter, kind in zip(new, kinds)}
        # In forward order, which is that of named_parameters: at equal priority the earlier declared goes first, so what
        # the next forward pass needs first overtakes the rest.
        self._place.declare([self._spec(parameter) for parameter, kind in found.items()
                             if kind == _DENSE or self._how.sparse_as_dense])
        for parameter, kind in found.items():
            if kind != _DENSE and not self._how.sparse_as_dense:
                self._check_sparse(parameter)
                self._place.names[self._wire_name(parameter)] = self._spec(parameter)
            if parameter not in self._watched:  # it was frozen when it was added
                self._watch(parameter)
        self._kinds.update(found)
        for parameter in found:
            if parameter in self._started:
                self._start(parameter)

    def _kind(self, parameter: torch.nn.Parameter) -> int:
        """0: this rank does not know."""
        gradient = self._started[parameter].gradient if parameter in self._started else parameter.grad
        if gradient is None:
            return 0
        return _DENSE + gradient.sparse_dim() if gradient.is_sparse else _DENSE

    def _check_sparse(self, parameter: torch.nn.Parameter) -> None:
        how = self._how
        if not self._place.calls_without_names:
            raise invalid(f"the gradient of {self.names[parameter]} is sparse, in a job whose ranks sum on their host first",
                          "give sparse_as_dense=True, or leave out local-group")
        if how.op not in (Op.SUM, Op.AVERAGE):
            raise invalid(f"the gradient of {self.names[parameter]} is sparse, and op is {how.op.name}",
                          "sparse gradients can be added up and averaged; or give sparse_as_dense=True")

    def _zeros(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        kind = self._kinds[parameter]
        if kind == _DENSE:
            return torch.zeros_like(parameter)
        return torch.sparse_coo_tensor(torch.empty((kind - 1, 0), dtype=torch.int64), parameter.new_empty(
            (0, *parameter.shape[kind - 1:])), parameter.shape, device=parameter.device)

    @property
    def _ranks(self) -> Optional[Sequence[int]]:
        return None if self._calls is None else self._calls.ranks

    def _spec(self, parameter: torch.nn.Parameter) -> TensorSpec:
        given, compression = parameter.detach(), self._how.compression
        count = given.numel()
        if is_own(compression):
            given = compression.compress(given)[0]
            count = given.numel()
        elif compression is not None and given.is_floating_point():
            given = torch.empty(0, dtype=compression)
        return TensorSpec(self._wire_name(parameter), dtype_of(given, self.names[parameter]), count, ranks=self._ranks)

    def _wire_name(self, parameter: torch.nn.Parameter) -> str:
        return f"{self._prefix}.{self.names[parameter]}"
