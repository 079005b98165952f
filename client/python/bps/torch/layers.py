"""Updates layer by layer: instead of one barrier in step(), each layer waits for its own gradients before its next use.

The gradient of the first layer is ready last and needed first. With a barrier the whole exchange must end before the next
forward pass begins; without one, only the layer that runs next has to wait, and the others arrive meanwhile.
"""
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set

import torch

from ..errors import invalid

if TYPE_CHECKING:
    from .gradients import GradientExchange

_Group = Dict[str, Any]
_Hook = Callable[..., None]


def _untraced(hook: _Hook) -> _Hook:
    """torch.compile would trace through it, and then run its steps in another order or not at all."""
    compiler = getattr(torch, "compiler", None)  # torch 2.1
    return compiler.disable(hook) if hasattr(compiler, "disable") else hook


class _Link:
    """What a model's hooks know of its updates. They keep them, and the optimizer, only while updates are owed: a model
    outlives its optimizer."""

    def __init__(self, updates: "LayerwiseUpdates") -> None:
        self._updates = weakref.ref(updates)
        self.owed: Any = None

    def hook(self, method: _Hook, is_traced: bool = True) -> "_ModelHook":
        def call(*arguments: Any) -> None:
            updates = self._updates()
            if updates is not None:
                method(updates, *arguments)

        return _ModelHook(self, call if is_traced else _untraced(call))


class _ModelHook:
    """That of a copy of the model, also of one that is saved, does nothing."""

    def __init__(self, link: Optional[_Link] = None, call: Optional[_Hook] = None) -> None:
        self._link = link
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        if self._call is not None:
            self._call(*arguments)

    def __reduce__(self) -> Any:
        if self._link is not None and self._link.owed is not None:
            raise invalid("a model is copied or saved whose parameters lack updates of the last step()",
                          "call synchronize() of its optimizer before, or take its state_dict()")
        return _ModelHook, ()


def remove_all(handles: List[Any]) -> None:
    for handle in handles:
        handle.remove()


class LayerwiseUpdates:
    """The updates that step() has promised and that have not been made yet.

    Owned by one DistributedOptimizer; lives on the thread that trains. A layer is a module with parameters of its own. In
    the first forward pass everything is updated at its beginning, and it is noted which modules' forward is called: a
    parameter of a module that is only looked into (as torch.nn.MultiheadAttention does with its out_proj) belongs to the
    nearest module around it that is called. One that several modules share belongs to all of them: whichever runs first
    updates it.
    """

    def __init__(self, model: torch.nn.Module, exchange: "GradientExchange", optimizer: torch.optim.Optimizer,
                 base: type) -> None:
        self._model = model
        self._exchange = exchange
        self._optimizer = weakref.ref(optimizer)
        self._base = base
        self._groups: List[_Group] = []  # as they were at step()
        self._group_of: Dict[torch.nn.Parameter, int] = {}
        self._waiting: Set[torch.nn.Parameter] = exchange.promised
        self._clear = False
        self._called: Set[torch.nn.Module] = set()
        self._layer: Dict[torch.nn.Module, List[torch.nn.Parameter]] = {}
        self._link = _Link(self)
        before_forward = self._link.hook(LayerwiseUpdates._before_forward, is_traced=False)
        before_state_dict = self._link.hook(LayerwiseUpdates._before_state_dict)
        handles = [model.register_forward_hook(self._link.hook(LayerwiseUpdates._after_model, is_traced=False))]
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(before_forward))
            # Of every module: programs save and load parts of a model, too.
            handles.append(module._register_state_dict_hook(before_state_dict))
            handles.append(module._register_load_state_dict_pre_hook(before_state_dict))
        weakref.finalize(self, remove_all, handles)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def begin(self, groups: List[_Group]) -> None:
        """step(): all gradients are under way. What a scheduler does to learning rates from here on is for the next."""
        self._groups = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        self._group_of = {p: number for number, group in enumerate(groups) for p in group["params"]}
        self._waiting.update(self._group_of)
        self._link.owed = self, self._optimizer()
        self._clear = False

    def clear_later(self) -> None:
        """zero_grad(): each gradient when it has been used."""
        self._clear = True
        for parameter in self._group_of:
            if parameter not in self._waiting:
                parameter.grad = None

    def flush(self) -> None:
        """Makes all updates that are promised."""
        if self._waiting:
            self._update(list(self._group_of))

    def _update(self, parameters: List[torch.nn.Parameter]) -> None:
        due = [p for p in dict.fromkeys(parameters) if p in self._waiting]
        if not due:
            return
        for parameter in due:
            self._exchange.wait_for(parameter)
        optimizer: Any = self._optimizer()
        current = optimizer.param_groups
        members: List[List[torch.nn.Parameter]] = [[] for _ in self._groups]
        for parameter in due:
            members[self._group_of[parameter]].append(parameter)
        optimizer.param_groups = [{**group, "params": mine} for group, mine in zip(self._groups, members)]
        try:
            self._base.step(optimizer)  # type: ignore[attr-defined]
        finally:
            optimizer.param_groups = current
        for parameter in due:
            self._waiting.discard(parameter)
            if self._clear:
                parameter.grad = None
        if not self._waiting:
            self._link.owed = None

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        if not self._layer:
            self._called.add(module)
        if not self._waiting:
            return
        # Without gradients a module may take a short way that calls no layer.
        if not self._layer or not module.training or not torch.is_grad_enabled():
            self.flush()
        elif module in self._layer:
            self._update(self._layer[module])

    def _after_model(self, model: torch.nn.Module, inputs: Any, output: Any) -> None:
        if self._layer or not model.training or model is not self._model:
            return
        self._find_layers(model, model)

    def _find_layers(self, module: torch.nn.Module, called: torch.nn.Module) -> None:
        if module in self._called:
            called = module
        self._layer.setdefault(called, []).extend(p for p in module._parameters.values() if p is not None)
        for child in module.children():
            self._find_layers(child, called)

    def _before_state_dict(self, *unused: Any) -> None:
        # It refers to the parameters, which are updated in place. What is loaded must not be updated by steps before it.
        self.flush()
