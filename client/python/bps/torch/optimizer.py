"""DistributedOptimizer: an optimizer that averages gradients over all ranks before it uses them."""
import contextlib
import gc
import itertools
import sys
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch

from .._abi import Op
from ..client import TensorSpec
from ..errors import invalid
from .agreement import check_agreement
from .layers import LayerwiseUpdates, remove_all
from .operations import Handle, start
from .tensors import check_place, dtype_of
from .world import world

Named = List[Tuple[str, torch.nn.Parameter]]


class _Started(NamedTuple):
    """A push_pull, and the gradient that it was started with and will be written to."""

    handle: Handle
    gradient: torch.Tensor
    version: int

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
    """Starts a push_pull for a parameter's gradient as soon as it is complete, and knows which are under way.

    Owned by one DistributedOptimizer. Gradients arrive on threads of autograd, one at a time; everything else happens on
    the thread that calls step(). When it goes, its parameters are as they were before it.
    """

    _living: "weakref.WeakSet[GradientExchange]" = weakref.WeakSet()

    def __init__(self, named: Named, backward_passes_per_step: int, op: Op,
                 compression: Optional[torch.dtype]) -> None:
        self._place = world()
        self._op = op
        self._compression = compression
        self.set_passes(backward_passes_per_step)
        self._prefix: Optional[str] = None  # of its tensors' names
        self._names: Dict[torch.nn.Parameter, str] = {}
        self._seen: Dict[torch.nn.Parameter, int] = {}  # backward passes since the last step
        self._started: Dict[torch.nn.Parameter, _Started] = {}
        self._keep: List[Any] = []  # gradient accumulators, whose hooks go with them
        self.averaged = False  # the gradients are what step() may use
        self.promised: Set[torch.nn.Parameter] = set()  # have an update to come; LayerwiseUpdates sees to it
        self.add(named, "the model that is optimized")
        GradientExchange._living.add(self)

    def add(self, named: Named, what: str) -> None:
        """On all ranks. Code.CONFIGURATION: `what` differs between them."""
        GradientExchange._refuse_watched(named)
        check_agreement(self._place, named, what)
        if self._prefix is None:  # ranks count alike: one that is refused above takes no number
            self._prefix = f"optimizer{self._place.next_optimizer()}"
        self._names.update((parameter, name) for name, parameter in named)
        self._place.drop_with(self, [self._wire_name(parameter) for _, parameter in named])
        # In forward order, which is that of named_parameters: at equal priority the earlier declared goes first, so what
        # the next forward pass needs first overtakes the rest. What is frozen is declared when it is thawed.
        try:
            self._place.declare([self._spec(parameter) for _, parameter in named if parameter.requires_grad])
        except BaseException:
            for _, parameter in named:
                self._names.pop(parameter, None)
            raise
        watch = _weakly(self)
        handles = [self._watch(parameter, watch) for _, parameter in named if parameter.requires_grad]
        weakref.finalize(self, remove_all, handles)

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
        for parameter in self._names:
            if parameter.requires_grad and parameter not in self._started:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._start(parameter)

    def wait_for(self, parameter: torch.nn.Parameter) -> None:
        """Nothing happens if nothing is under way for it. Error: INVALID_ARGUMENT if the program has changed the gradient
        meanwhile, because then nobody knows what was averaged."""
        started = self._started.get(parameter)
        if started is None:
            return
        untouched = started.is_untouched(parameter)
        started.handle.synchronize()
        del self._started[parameter]
        self._seen.pop(parameter, None)
        if not untouched:
            raise invalid(f"the gradient of {self._names[parameter]} was changed while it was under way",
                          "after backward(), call synchronize() of the optimizer before gradients are clipped, unscaled or "
                          "cleared")

    def wait_for_all(self) -> None:
        for parameter in self._names:
            self.wait_for(parameter)
        self.averaged = True

    @staticmethod
    def _refuse_watched(named: Named) -> None:
        watched = [name for name, parameter in named for other in GradientExchange._living if parameter in other._names]
        if watched and gc.collect():  # one that nobody has any more may still lie there, in a cycle
            watched = [name for name, parameter in named for other in GradientExchange._living if parameter in other._names]
        if watched:
            raise invalid(f"{watched[0]} has another DistributedOptimizer, and would be averaged by both",
                          "drop the other one before, after its synchronize() if it has `model=`")

    def _watch(self, parameter: torch.nn.Parameter, watch: Callable[[torch.nn.Parameter], None]) -> Any:
        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
            return parameter.register_post_accumulate_grad_hook(watch)
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        self._keep.append(accumulator)
        return accumulator.register_hook(lambda *unused: watch(parameter))

    def gradient_is_there(self, parameter: torch.nn.Parameter) -> None:
        if parameter in self.promised:
            raise invalid(f"{self._names[parameter]} was used before the update that step() had promised",
                          "its module is used in a way that `model=` does not see: leave that out")
        if parameter in self._started:
            raise invalid(f"the gradient of {self._names[parameter]} came {self._passes + 1} times between two step()s, and "
                          f"after {self._passes} it is averaged",
                          "set backward_passes_per_step, or call step() after each backward()")
        self.averaged = False
        self._seen[parameter] = self._seen.get(parameter, 0) + 1
        if self._seen[parameter] >= self._passes:
            self._start(parameter)

    def _start(self, parameter: torch.nn.Parameter) -> None:
        gradient = parameter.grad
        assert gradient is not None
        check_place(gradient, f"the gradient of {self._names[parameter]}")
        handle = start(gradient, gradient, self._wire_name(parameter), self._op, compression=self._compression)
        self._started[parameter] = _Started(handle, gradient, gradient._version)

    def _spec(self, parameter: torch.nn.Parameter) -> TensorSpec:
        compressed = self._compression is not None and parameter.is_floating_point()
        given = torch.empty(0, dtype=self._compression) if compressed else parameter
        return TensorSpec(self._wire_name(parameter), dtype_of(given, self._names[parameter]), parameter.numel())

    def _wire_name(self, parameter: torch.nn.Parameter) -> str:
        return f"{self._prefix}.{self._names[parameter]}"


def _by_scaler(optimizer: Any) -> bool:
    """Is step() called by a torch.amp.GradScaler that is enabled? What it does to gradients, no version shows."""
    frame = sys._getframe(2)
    for _ in range(6):  # schedulers and profilers may lie between
        if frame.f_code.co_name == "_maybe_opt_step" and "grad_scaler" in frame.f_globals.get("__name__", ""):
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return hasattr(optimizer, "found_inf")  # fused optimizers unscale by themselves


def _new(kind: type) -> Any:
    return kind.__new__(kind)


class _Distributed:
    """Mixed in before the class of the optimizer that is distributed."""

    _exchange: GradientExchange
    _layers: Optional[LayerwiseUpdates]
    _skip: bool

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Waits for the averages, then steps. With `model` given to DistributedOptimizer it does not wait: each layer
        does, before its next forward pass."""
        if self._exchange.under_way and _by_scaler(self):
            raise invalid("a GradScaler has seen gradients before they were averaged",
                          "call synchronize() of the optimizer before unscale_() and step() of the scaler")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._layers is not None and not self._skip and not self._exchange.averaged:
            self._layers.flush()
            self._exchange.start_missing()
            self._layers.begin(self.param_groups)  # type: ignore[attr-defined]
            return loss
        if not self._skip:
            self.synchronize()
        elif self._exchange.under_way:
            raise invalid("step() in skip_synchronize(), and gradients are under way",
                          "call synchronize() of the optimizer before skip_synchronize()")
        self._exchange.averaged = False
        super().step()  # type: ignore[misc]
        return loss

    def synchronize(self) -> None:
        """Waits until all gradients are averages, e.g. to clip them before step(), which then does not wait again. With
        `model`: also until all parameters have the updates of the last step()."""
        if self._layers is not None:
            self._layers.flush()
        if not self._exchange.averaged:
            self._exchange.start_missing()
            self._exchange.wait_for_all()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """step() inside uses the gradients as they are."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        if self._layers is not None and self._layers.waiting:
            self._exchange.forget_passes()
            self._layers.clear_later()
            return
        if self._exchange.under_way:  # of a loss that was another optimizer's, as in a GAN
            self.synchronize()
        self._exchange.averaged = False
        self._exchange.forget_passes()
        super().zero_grad(*arguments, **named)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From the next step on."""
        self._exchange.set_passes(passes)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """On all ranks, with the same parameters, which are averaged from then on."""
        if self._layers is not None:
            raise invalid("this optimizer updates the layers of a model, and what is added later may be of none",
                          "make DistributedOptimizer after the last group, or without `model=`")
        super().add_param_group(param_group)  # type: ignore[misc]
        groups = self.param_groups  # type: ignore[attr-defined]
        named = [(f"group{len(groups) - 1}.parameter{i}", one) for i, one in enumerate(groups[-1]["params"])]
        try:
            self._exchange.add(named, "the group that is added")
        except BaseException:
            groups.pop()
            raise

    def state_dict(self) -> Dict[str, Any]:
        if self._layers is not None:
            self._layers.flush()
        return super().state_dict()  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy, also one that is pickled, is of the optimizer's own class and averages nothing: that is for one of them,
        and schedulers have a copy in what they save."""
        if self._layers is not None:
            self._layers.flush()
        _, _, *state = super().__reduce_ex__(max(int(protocol), 2))
        return (_new, (type(self).__mro__[2],), *state)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        if self._layers is not None:  # an update to come is not one of the state that is loaded
            self._layers.flush()
        super().load_state_dict(state_dict)  # type: ignore[misc]


def _named(optimizer: torch.optim.Optimizer, named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]]) -> Named:
    """What the optimizer updates, with names, in the order of `named_parameters`."""
    mine = list(itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups))
    if named_parameters is None:
        return [(f"parameter{number}", parameter) for number, parameter in enumerate(mine)]
    wanted = set(mine)
    given = [(name, parameter) for name, parameter in named_parameters if parameter in wanted]
    if len({name for name, _ in given}) != len(given):
        raise invalid("named_parameters has a name twice")
    first: Dict[torch.nn.Parameter, str] = {}
    for name, parameter in given:
        first.setdefault(parameter, name)  # weights that are tied have several names
    named = [(name, parameter) for parameter, name in first.items()]
    lacking = len(wanted - set(first))
    if lacking:
        raise invalid(f"named_parameters lacks {lacking} of the optimizer's {len(wanted)} parameters",
                      "give it those of every model that the optimizer updates, or none")
    return named


def DistributedOptimizer(optimizer: torch.optim.Optimizer,  # noqa: N802, the name that scripts use
                         named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
                         compression: Optional[torch.dtype] = None, backward_passes_per_step: int = 1,
                         op: Op = Op.AVERAGE, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                         groups: Any = None, *, model: Optional[torch.nn.Module] = None) -> Any:
    """Makes `optimizer` average gradients over all ranks, and returns it: the same object, of a class derived from its own.

    named_parameters: names for messages, and the forward order. backward_passes_per_step: how many backward passes are
    added up in a gradient before it is averaged. op: Op.AVERAGE, or another one. compression: Compression.fp16 or bf16,
    for half the traffic, at the price of a copy of each gradient. model: step() returns at once, and each layer of this model waits for its own average and is
    updated before its next forward pass; between step() and that parameters are old to everybody but the model and its
    state_dict(), until synchronize(). For optimizers that keep what they learn in `state`, not in their groups.
    gradient_predivide_factor, num_groups, groups: Horovod's, taken and ignored, because sums are in f32 at least and
    gradients leave one by one.

    Parameters that a rank did not use in a step count as zeros there. Code.CONFIGURATION: the ranks' parameters differ.
    Make learning rate schedulers after it.
    """
    if isinstance(optimizer, _Distributed):
        raise invalid("this optimizer is distributed already")
    if "step" in vars(optimizer):
        raise invalid("the step() of this optimizer has been replaced, by a learning rate scheduler perhaps",
                      "make schedulers after DistributedOptimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise invalid("LBFGS computes as many gradients in a step as it likes, on each rank", "use another optimizer")
    named = _named(optimizer, named_parameters)
    exchange = GradientExchange(named, backward_passes_per_step, Op(op), compression)
    base = optimizer.__class__
    optimizer.__class__ = type(base.__name__, (_Distributed, base), {})
    distributed: Any = optimizer
    distributed._exchange = exchange
    distributed._skip = False
    distributed._layers = None if model is None else LayerwiseUpdates(model, exchange, optimizer, base)
    return optimizer
