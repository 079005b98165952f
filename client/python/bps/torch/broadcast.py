"""What makes ranks begin alike: parameters, optimizer state and any object, from one rank to all."""
import pickle
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from .._abi import DType
from .._memory import Memory, memory_of
from ..errors import invalid
from .agreement import check_agreement
from .stream import broadcast_bytes
from .tensors import check_place, is_on_gpu, is_plain, memory_of_tensor
from .world import world

Parameters = Union[Mapping[str, Any], Iterable[Tuple[str, torch.Tensor]]]


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
        broadcast_bytes(world(), memories, root)
        with torch.no_grad():
            for tensor, copy in zip(batch, copies):
                if copy is not tensor and not is_root:
                    _copy_back(copy, tensor)


def broadcast_(tensor: torch.Tensor, root_rank: int = 0, name: str = "the tensor") -> torch.Tensor:
    """The root's values, in place of this rank's. Any dtype; equal shapes on all ranks, which is checked."""
    check_place(tensor, name)
    check_agreement(world(), [(name, tensor)], "the tensor")
    _broadcast_all([tensor], root_rank)
    return tensor


def broadcast(tensor: torch.Tensor, root_rank: int = 0, name: str = "the tensor") -> torch.Tensor:
    """As broadcast_, into a new tensor."""
    check_place(tensor, name)
    return broadcast_(tensor.detach().clone(), root_rank, name)


def broadcast_parameters(params: Parameters, root_rank: int = 0) -> None:
    """Copies the root's parameters to all ranks, in place. params: model.state_dict() or model.named_parameters().

    Code.CONFIGURATION: the model differs between ranks; the message names the first difference.
    """
    items = list(params.items() if isinstance(params, Mapping) else params)
    tensors = [(name, value) for name, value in items if value is not None]
    for name, value in tensors:
        if not isinstance(value, torch.Tensor):
            raise invalid(f"{name} is a {type(value).__name__}, not a tensor", "use broadcast_object for it")
        check_place(value, name)
    check_agreement(world(), tensors, "the model")
    _broadcast_all([value for _, value in tensors], root_rank)


def broadcast_object(thing: Any, root_rank: int = 0, name: Optional[str] = None) -> Any:
    """The root's object on all ranks, by pickle: the ranks of a job trust each other. name: Horovod's, not needed."""
    place = world()
    is_root = place.client.rank == root_rank
    data = bytearray(pickle.dumps(thing)) if is_root else bytearray()
    length = bytearray(len(data).to_bytes(8, "little"))
    broadcast_bytes(place, [memory_of(length, "length", writable=True)], root_rank)
    if not is_root:
        data = bytearray(int.from_bytes(length, "little"))
    broadcast_bytes(place, [memory_of(data, "object", writable=True)], root_rank)
    return thing if is_root else pickle.loads(data)


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


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """All ranks' optimizer gets the root's state: momenta, step counts, learning rates; also where it has none yet."""
    tensors: List[torch.Tensor] = []

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
