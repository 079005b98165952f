"""Tensors of a call, and memory that bps can read and write.

Contiguous tensors of the host are used as they are. Others go through a copy: strided ones, and those of a GPU. What is not
one tensor for torch, but is for bps, as the outputs of an all_gather, is copied, too.
"""
from typing import Callable, List, Optional, Sequence, Tuple

import torch

from ..._abi import DType
from ..._memory import Memory
from ...errors import Error
from ..tensors import check_place, is_on_gpu, is_plain, memory_of_tensor

# Copies a result to where the program wants it.
Finish = Callable[[], None]


def check(tensor: torch.Tensor, what: str, written: bool) -> None:
    """ValueError: no dense tensor of the host or of a GPU; or it is written, and elements share memory."""
    try:
        check_place(tensor, what)
    except Error as error:
        raise ValueError(str(error)) from None
    if tensor.is_quantized:
        raise ValueError(f"{what} is quantised: its scale would not go with it; give int_repr() or dequantize() of it")
    if written and _overlaps(tensor):
        raise ValueError(f"elements of {what} share memory, so it cannot be written: its shape is {tuple(tensor.shape)}, its "
                         f"strides are {tensor.stride()}; give a contiguous tensor")


def _overlaps(tensor: torch.Tensor) -> bool:
    if tensor.numel() == 0 or tensor.is_contiguous():
        return False
    reach = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def is_direct(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and not is_on_gpu(tensor)


def source(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements, one after the other, on the host."""
    return tensor if is_direct(tensor) else tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()


def target(tensor: torch.Tensor, is_source: bool) -> Tuple[torch.Tensor, Optional[Finish]]:
    """Where to write what is for `tensor`, and how it gets there. is_source: it is read, too."""
    if is_direct(tensor):
        return tensor, None
    place = source(tensor) if is_source else torch.empty(tensor.shape, dtype=tensor.dtype)
    return place, lambda: put(tensor, place)


def put(tensor: torch.Tensor, place: torch.Tensor) -> None:
    """A result, where the program wants it."""
    with torch.no_grad():
        tensor.detach().copy_(place)


def bytes_of(tensor: torch.Tensor) -> Memory:
    return memory_of_tensor(tensor, DType.U8)


def byte_count(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of all, one after the other."""
    total = torch.empty(sum(parts_of(tensors)), dtype=torch.uint8)
    for place, one in zip(total.split(parts_of(tensors)), tensors):
        place.copy_(as_bytes(source(one)))
    return total


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Of a contiguous one. PyTorch calls a single element so, whatever its stride is."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def spread(total: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """The reverse of flat()."""
    for place, one in zip(total.split(parts_of(tensors)), tensors):
        is_aligned = place.storage_offset() % one.element_size() == 0
        put(one, (place if is_aligned else place.clone()).view(one.dtype).view(one.shape))


def parts_of(tensors: Sequence[torch.Tensor]) -> List[int]:
    return [byte_count(one) for one in tensors]
