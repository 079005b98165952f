"""DistributedOptimizer: an optimizer that averages gradients over all ranks before it uses them, or shares parameters."""
import contextlib
import functools
import inspect
import itertools
import sys
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Sequence, Tuple

import torch
from torch.nn.parameter import is_lazy

from .._abi import Op
from .._checks import number
from ..errors import invalid
from .asynchronous import SharedParameters
from .compression import is_own, wire_dtype_of
from .gradients import GradientExchange, Named, Reduction, changes_what_travels
from .layers import LayerwiseUpdates
from .world import world

_Closure = Callable[[], Any]


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

    _parameter_names: Dict[torch.nn.Parameter, str]  # Horovod's, which programs read

    def finish(self) -> None:
        """Parameters and state are those of the last step() afterwards."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy, also one that is pickled, is of the optimizer's own class and exchanges nothing: that is for one of them,
        and schedulers have a copy in what they save."""
        self.finish()
        _, _, *state = super().__reduce_ex__(max(int(protocol), 2))
        return (_new, (type(self).__bases__[1],), *state)

    def state_dict(self) -> Dict[str, Any]:
        self.finish()
        state: Dict[str, Any] = super().state_dict()  # type: ignore[misc]
        return state

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self.finish()  # an update to come is not one of the state that is loaded
        super().load_state_dict(state_dict)  # type: ignore[misc]

    def _add_group(self, exchange: Any, param_group: Dict[str, Any]) -> None:
        super().add_param_group(param_group)  # type: ignore[misc]
        groups = self.param_groups  # type: ignore[attr-defined]
        named = [(f"group{len(groups) - 1}.parameter{i}", one) for i, one in enumerate(groups[-1]["params"])]
        try:
            exchange.add(named, "the group that is added")
        except BaseException:
            groups.pop()
            raise


class _Synchronous(_Distributed):
    _exchange: GradientExchange
    _layers: Optional[LayerwiseUpdates]
    _skip: bool

    def step(self, closure: Optional[_Closure] = None) -> Any:
        """Waits for the averages, then steps. With `model` given to DistributedOptimizer it does not wait: each layer
        does, before its next forward pass. Gradients of a closure are averaged each time that the optimizer calls it."""
        if self._exchange.under_way and _by_scaler(self):
            raise invalid("a GradScaler has seen gradients before they were averaged",
                          "call synchronize() of the optimizer before unscale_() and step() of the scaler")
        if self._layers is not None and not self._skip and not self._exchange.averaged:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._layers.flush()
            self._exchange.start_missing()
            self._layers.begin(self.param_groups)  # type: ignore[attr-defined]
            return loss
        try:
            if closure is not None:
                return super().step(functools.partial(self._evaluate, closure))  # type: ignore[misc]
            self._make_ready()
            return super().step()  # type: ignore[misc]
        finally:
            self._exchange.averaged = False

    def _evaluate(self, closure: _Closure) -> Any:
        loss = closure()
        self._make_ready()
        # What decides by the loss must decide alike on all ranks.
        return self._exchange.average_loss(loss) if _needs_closure(type(self).__bases__[1]) and loss is not None else loss

    def _make_ready(self) -> None:
        if not self._skip:
            self.synchronize()
        elif self._exchange.under_way:
            raise invalid("step() in skip_synchronize(), and gradients are under way",
                          "call synchronize() of the optimizer before skip_synchronize()")

    def finish(self) -> None:
        if self._layers is not None:
            self._layers.flush()

    def synchronize(self) -> None:
        """Waits until all gradients are averages, e.g. to clip them before step(), which then does not wait again. With
        `model`: also until all parameters have the updates of the last step()."""
        self.finish()
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
        self._add_group(self._exchange, param_group)


class _Asynchronous(_Distributed):
    _shared: SharedParameters

    def step(self, closure: Optional[_Closure] = None) -> Any:
        """Steps, adds the change of each parameter to the servers' values, and takes what these have become. With a
        staleness it waits for ranks that are farther behind."""
        self._shared.check_untouched()
        loss = super().step() if closure is None else super().step(closure)  # type: ignore[misc]
        self._shared.exchange()
        return loss

    def synchronize(self) -> None:
        """Takes the servers' values, without a step; for the staleness it counts as one. After a barrier all ranks get the
        same."""
        self._shared.check_untouched()
        self._shared.exchange()

    def skip_synchronize(self) -> Any:
        raise invalid("skip_synchronize() of an asynchronous optimizer, whose step() has gradients of its own rank alone",
                      "leave synchronize() and skip_synchronize() out, and clip gradients before step()")

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """On all ranks, with the same parameters, which are shared from then on."""
        self._add_group(self._shared, param_group)


_MIXINS = {"sync": _Synchronous, "async": _Asynchronous}


@functools.lru_cache(maxsize=64)
def _class_of(mode: str, base: Any) -> type:
    return type(base.__name__, (_MIXINS[mode], base), {})


def _needs_closure(kind: type) -> bool:
    """As LBFGS: its step() evaluates more than once, and decides by the loss."""
    closure = inspect.signature(kind.step).parameters.get("closure")  # type: ignore[attr-defined]
    return closure is not None and closure.default is inspect.Parameter.empty


def _named(optimizer: torch.optim.Optimizer, named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]]) -> Named:
    """What the optimizer updates, with names, in the order of `named_parameters`."""
    mine = list(itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups))
    if named_parameters is None:
        named_parameters = [(f"parameter{number}", parameter) for number, parameter in enumerate(mine)]
    if isinstance(named_parameters, torch.nn.Module):
        raise invalid("named_parameters is a module", "give its named_parameters()")
    wanted = set(mine)
    given = [(name, parameter) for name, parameter in named_parameters if parameter in wanted]
    first: Dict[torch.nn.Parameter, str] = {}
    owners: Dict[str, torch.nn.Parameter] = {}
    for name, parameter in given:
        if is_lazy(parameter):
            raise invalid(f"{name} has no shape yet", "run one forward pass before DistributedOptimizer")
        first.setdefault(parameter, name)  # weights that are tied have several names
        if owners.setdefault(name, parameter) is not parameter:
            raise invalid(f"named_parameters has two parameters with the name {name}")
    named = [(name, parameter) for parameter, name in first.items()]
    lacking = len(wanted - set(first))
    if lacking:
        raise invalid(f"named_parameters lacks {lacking} of the optimizer's {len(wanted)} parameters",
                      "give it those of every model that the optimizer updates, or none")
    return named


def _check_groups(num_groups: int, groups: Any) -> None:
    if num_groups != 0:
        warnings.warn("num_groups has been replaced by groups", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None:
        return
    if not isinstance(groups, list):
        if isinstance(groups, bool) or not isinstance(groups, int) or groups <= 0:
            raise invalid(f"groups={groups!r}: it takes a number of groups, or a list of lists of tensors")
        return
    members = [one for group in groups for one in group]
    if not all(isinstance(one, torch.Tensor) for one in members):
        raise invalid("groups has something that is no tensor", "give a list of lists of tensors")
    if len(set(members)) != len(members):
        raise invalid("groups has a parameter twice")


def _reduction(compression: Any, op: Any, gradient_predivide_factor: float, sparse_as_dense: bool) -> Reduction:
    if not isinstance(op, Op):
        raise invalid(f"op={op!r}: gradients are combined by Average, Sum, Min, Max or Product", "there is no Adasum here")
    factor = number("gradient_predivide_factor", gradient_predivide_factor)
    if factor != 1.0 and op != Op.AVERAGE:
        raise invalid(f"gradient_predivide_factor={factor} with op {op.name}", "it is for Average")
    if not 0.0 < factor < float("inf"):
        raise invalid(f"gradient_predivide_factor={factor}: it takes a positive number")
    wire = compression if is_own(compression) else wire_dtype_of(compression)
    return Reduction(op, wire, factor, bool(sparse_as_dense))


def _ranks_of(process_set: Any) -> Optional[Sequence[int]]:
    """None: all ranks."""
    ranks = getattr(process_set, "ranks", None)
    if process_set is not None and not hasattr(process_set, "ranks"):
        raise invalid(f"process_set is {process_set!r}, and is to have a list `ranks`")
    if ranks is None:
        return None
    ranks = sorted(set(ranks))
    everyone = list(range(world().client.world_size))
    if not ranks or not set(ranks) <= set(everyone):
        raise invalid(f"process_set has the ranks {ranks}: ranks of this job are 0 to {everyone[-1]}")
    return None if ranks == everyone else ranks


def _exchange_of(named: Named, passes: int, how: Reduction, process_set: Any) -> GradientExchange:
    ranks = _ranks_of(process_set)
    if ranks is None:
        return GradientExchange(named, passes, how)
    if world().client.rank not in ranks:
        return GradientExchange([], passes, how, takes_part=False)
    return GradientExchange(named, passes, how, ranks)


def DistributedOptimizer(optimizer: torch.optim.Optimizer,  # noqa: N802, the name that scripts use
                         named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
                         compression: Any = None, backward_passes_per_step: int = 1, op: Op = Op.AVERAGE,
                         gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Any = None,
                         sparse_as_dense: bool = False, process_set: Any = None, *, model: Optional[torch.nn.Module] = None,
                         mode: str = "sync", staleness: Optional[int] = None) -> Any:
    """Makes `optimizer` average gradients over all ranks, and returns it: the same object, of a class derived from its own.

    named_parameters: names for messages, and the forward order. backward_passes_per_step: how many backward passes are
    added up in a gradient before it is averaged. op: Op.AVERAGE, or another one. compression: of dense gradients;
    Compression.fp16 or bf16, for half the traffic, at the price of a copy of each, or a compressor of the program.
    gradient_predivide_factor: of averages; gradients are divided by it before they are cast and added, and multiplied with
    it afterwards. num_groups, groups: Horovod's, which say what it sends together; they are checked, and nothing depends on
    them, because here gradients leave one by one and small ones cost little. sparse_as_dense: sparse gradients travel
    dense, and are sparse again for step(). process_set: an object with `ranks`, over which gradients are reduced; on other
    ranks nothing is.

    model: step() returns at once, and each layer of this model waits for its own average and is updated before its next
    forward pass; between step() and that parameters are old to everybody but the model and its state_dict(), until
    synchronize(). For optimizers that keep what they learn in `state`, not in their groups.

    mode "async": no rank waits for another. step() uses the gradients of this rank, adds the change of each parameter to a
    value that the servers hold, and takes what that has become. staleness: how many steps this rank may be ahead of the
    slowest; None: as the setting `staleness` of the job, any number by default.

    Parameters that a rank did not use in a step count as zeros there. Code.CONFIGURATION: the ranks' parameters differ.
    Make learning rate schedulers after it.
    """
    if isinstance(optimizer, _Distributed):
        raise invalid("this optimizer is distributed already")
    if "step" in vars(optimizer):
        raise invalid("the step() of this optimizer has been replaced, by a learning rate scheduler perhaps",
                      "make schedulers after DistributedOptimizer")
    if mode not in _MIXINS:
        raise invalid(f"mode={mode!r}: it is 'sync' or 'async'")
    _check_groups(num_groups, groups)
    base: Any = optimizer.__class__
    if model is not None and _needs_closure(base):
        raise invalid(f"{base.__name__} looks at all gradients at once, and with `model=` each layer waits for its own",
                      "leave `model=` out")
    how = _reduction(compression, op, gradient_predivide_factor, sparse_as_dense)
    named = _named(optimizer, named_parameters)
    distributed: Any = optimizer
    if mode == "async":
        given = [name for name, is_given in (
            ("model", model is not None), ("process_set", _ranks_of(process_set) is not None), ("op", how.op != Op.AVERAGE),
            ("compression", changes_what_travels(how.compression)), ("gradient_predivide_factor", how.predivide != 1.0),
            ("backward_passes_per_step", backward_passes_per_step != 1), ("sparse_as_dense", sparse_as_dense)) if is_given]
        if given:
            raise invalid(f"mode='async' with {given[0]}, which is for averages of gradients", f"leave {given[0]} out")
        distributed._shared = SharedParameters(named, staleness)
        distributed._parameter_names = distributed._shared.names
        distributed.__class__ = _class_of(mode, base)
        return optimizer
    if staleness is not None:
        raise invalid(f"staleness={staleness} with mode='sync'", "it is for mode='async'")
    exchange = _exchange_of(named, backward_passes_per_step, how, process_set)
    distributed.__class__ = _class_of(mode, base)
    distributed._exchange = exchange
    distributed._parameter_names = exchange.names
    distributed._skip = False
    distributed._layers = None if model is None else LayerwiseUpdates(model, exchange, optimizer, base)
    return optimizer
