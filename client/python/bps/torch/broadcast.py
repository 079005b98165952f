"""What makes ranks begin alike: parameters, optimizer state and any object, from one rank to all."""
import pickle
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from .. import handle as bps_handle
from .._abi import DType
from .._memory import Memory, memory_of
from ..errors import invalid
from ..group import Group
from .agreement import check_agreement
from .backend import buffers
from .calls import described
from .handles import Derived, Handle
from .operations import allreduce
from .process_sets import ProcessSet, calls_of, global_process_set, is_all
from .stream import broadcast_bytes
from .tensors import check_place, is_on_gpu, is_plain, memory_of_tensor
from .world import world

Parameters = Union[Mapping[str, Any], Iterable[Tuple[str, torch.Tensor]], Iterable[torch.Tensor]]


# What is copied to the host at a time, of tensors on a GPU, rounded up to whole tensors: a model may be larger than the host's
# memory.
_BATCH_BYTES = 64 << 20


def _batches(tensors: Sequence[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
    """The same on all ranks, also where their tensors lie on different devices."""
    begin = size = 0
    for end, tensor in enumerate(tensors, 1):
        size += tensor.numel() * tensor.element_size()
        if size >= _BATCH_BYTES or end == len(tensors):
            yield tensors[begin:end]
            begin, size = end, 0


def _on_host(tensor: torch.Tensor, with_values: bool) -> torch.Tensor:
    """The tensor itself, if it is plain and on the host, else a copy."""
    if is_on_gpu(tensor):
        tensor = tensor.cpu() if with_values else torch.empty(tensor.shape, dtype=tensor.dtype)
    return tensor if is_plain(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def _copy_back(copy: torch.Tensor, tensor: torch.Tensor) -> None:
    """Of what is expanded all elements along a dimension are one, and PyTorch wants it written once."""
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if size > 1 and stride == 0:
            tensor, copy = tensor.narrow(dimension, 0, 1), copy.narrow(dimension, 0, 1)
    tensor.copy_(copy)


def _broadcast_all(tensors: Sequence[torch.Tensor], root: int) -> None:
    """In place, of any dtype. From a GPU by way of the host."""
    is_root = world().client.rank == root
    for batch in _batches([tensor.detach() for tensor in tensors]):
        copies = [_on_host(tensor, with_values=is_root) for tensor in batch]
        memories: List[Memory] = [memory_of_tensor(copy, DType.U8) for copy in copies]
        broadcast_bytes(world(), memories, root, "tensors")
        with torch.no_grad():
            for tensor, copy in zip(batch, copies):
                if copy is not tensor and not is_root:
                    _copy_back(copy, tensor)


def _start(tensor: torch.Tensor, target: torch.Tensor, root_rank: int, name: Optional[str], process_set: ProcessSet) -> Handle:
    """target: where it goes, which may be `tensor` itself. Of any dtype; equal shapes on all ranks, which is checked."""
    place = world()
    tensor, target = tensor.detach(), target.detach()
    if is_all(process_set) and not place.calls_without_names:
        if target is not tensor:
            target.copy_(tensor)
        check_agreement(place, [(name or "the tensor", tensor)], "the tensor")
        _broadcast_all([target], root_rank)
        return Derived([], lambda _: target)
    calls = calls_of(process_set)
    calls.check_member()
    root = calls.job_rank(root_rank)
    is_root = place.client.rank == root
    carrier = buffers.source(tensor) if is_root else buffers.target(target, is_source=False)[0]
    memory = buffers.bytes_of(carrier)

    def finish() -> torch.Tensor:
        if carrier is not target and not (is_root and target is tensor):
            with torch.no_grad():
                _copy_back(carrier, target)
        return target

    return calls.start("broadcast", name, f"{described(tensor)} from rank {root}", lambda group: [group.broadcast(memory, root)],
                       finish)


def broadcast_async_(tensor: torch.Tensor, root_rank: int = 0, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Handle:
    """Starts to copy the root's values, in place of this rank's. root_rank: a rank of the job, also of process sets."""
    check_place(tensor, name or "the tensor")
    return _start(tensor, tensor, root_rank, name, process_set)


def broadcast_async(tensor: torch.Tensor, root_rank: int = 0, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> Handle:
    """As broadcast_async_, into a new tensor."""
    check_place(tensor, name or "the tensor")
    return _start(tensor, torch.empty_like(tensor, memory_format=torch.contiguous_format), root_rank, name, process_set)


def broadcast_(tensor: torch.Tensor, root_rank: int = 0, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The root's values, in place of this rank's. Any dtype; equal shapes on all ranks, which is checked."""
    broadcast_async_(tensor, root_rank, name, process_set).synchronize()
    return tensor


class _Broadcast(torch.autograd.Function):
    """Horovod's: the root gets the average of all ranks' gradients, the others zeros."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, root_rank: int, name: Optional[str], process_set: ProcessSet) -> torch.Tensor:
        context.root_rank = root_rank
        context.process_set = process_set
        result: torch.Tensor = broadcast_async(tensor, root_rank, name, process_set).synchronize()
        return result

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        average = allreduce(gradient, process_set=context.process_set)
        return average if world().client.rank == context.root_rank else torch.zeros_like(average), None, None, None


def broadcast(tensor: torch.Tensor, root_rank: int = 0, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """As broadcast_, into a new tensor. Gradients flow back through it."""
    check_place(tensor, name or "the tensor")
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
    return result


def broadcast_parameters(params: Parameters, root_rank: int = 0) -> None:
    """Copies the root's parameters to all ranks, in place. params: model.state_dict(), model.named_parameters() or a list of
    tensors.

    Code.CONFIGURATION: the model differs between ranks; the message names the first difference.
    """
    if isinstance(params, torch.nn.Module):
        raise invalid("params is a module", "give its state_dict() or named_parameters()")
    items = list(params.items() if isinstance(params, Mapping) else params)
    named = [one if isinstance(one, tuple) else (f"tensor {number}", one) for number, one in enumerate(items)]
    tensors = [(name, value) for name, value in named if value is not None]
    for name, value in tensors:
        if not isinstance(value, torch.Tensor):
            raise invalid(f"{name} is a {type(value).__name__}, not a tensor", "use broadcast_object for it")
        check_place(value, name)
    check_agreement(world(), tensors, "the model")
    _broadcast_all([value for _, value in tensors], root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """The root's object on all ranks, by pickle: the ranks of a job trust each other. name: Horovod's, not needed."""
    place = world()
    is_root = place.client.rank == root_rank
    calls = None if is_all(process_set) else calls_of(process_set)
    if calls is not None:
        calls.job_rank(root_rank)
    data = bytearray(pickle.dumps(obj)) if is_root else bytearray()
    length = bytearray(len(data).to_bytes(8, "little"))
    broadcast_bytes(place, [memory_of(length, "length", writable=True)], root_rank, "length of an object", calls)
    if not is_root:
        data = bytearray(int.from_bytes(length, "little"))
    broadcast_bytes(place, [memory_of(data, "object", writable=True)], root_rank, "an object", calls)
    return obj if is_root else pickle.loads(data)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks, in their order, by pickle. name: Horovod's, not needed."""
    mine = memory_of(bytearray(pickle.dumps(obj)), "object")
    started: List[bps_handle.Handle] = []

    def begin(group: Group) -> List[bps_handle.Handle]:
        started[:] = [group.all_gather(mine)]
        return started

    gathered: List[Any] = calls_of(process_set).start(
        "allgather", None, "objects", begin, lambda: [pickle.loads(part) for part in started[0].parts()]).synchronize()
    return gathered


class _Placeholder:
    """Stands for a tensor in a state that is sent without its tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype

    def empty(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype)


def _replace(thing: Any, kind: type, function: Any) -> Any:
    """`thing` with every instance of `kind` in it replaced, in dicts, lists and tuples."""
    if isinstance(thing, kind):
        return function(thing)
    if isinstance(thing, dict):
        return {key: _replace(value, kind, function) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return type(thing)(_replace(value, kind, function) for value in thing)
    return thing


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, model: Any = None) -> None:
    """All ranks' optimizer gets the root's state: momenta, step counts, learning rates; also where it has none yet. As with
    Horovod, the gradients of an optimizer that has not made a step are zeros afterwards, not None. model: Horovod's, not
    needed."""
    tensors: List[torch.Tensor] = []
    _give_gradients(optimizer)

    def take(tensor: torch.Tensor) -> _Placeholder:
        check_place(tensor, "the optimizer's state")
        tensors.append(tensor)
        return _Placeholder(tensor)

    def give(placeholder: _Placeholder) -> torch.Tensor:
        tensors.append(placeholder.empty())
        return tensors[-1]

    is_root = world().client.rank == root_rank
    skeleton = _replace(optimizer.state_dict(), torch.Tensor, take) if is_root else None
    skeleton = broadcast_object(skeleton, root_rank)
    if is_root:
        _broadcast_all(tensors, root_rank)
        return
    state = _replace(skeleton, _Placeholder, give)
    _broadcast_all(tensors, root_rank)
    optimizer.load_state_dict(state)


def _give_gradients(optimizer: torch.optim.Optimizer) -> None:
    if optimizer.state:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
