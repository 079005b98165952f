"""What a reduce operation of torch is to bps.

bps sums, averages, multiplies and compares eight types. The rest of what torch has is made of that: bool is u8, whose largest
is an `or`; complex numbers are pairs; what bps cannot do on the way (bit operations, int16) is gathered and reduced here, in
rank order, at the price of as many bytes as there are ranks.
"""
import ctypes
import hashlib
from typing import Any, Callable, Iterable, List, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from ..._abi import Op
from ...client import Scale

_FLOATS = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
_INTEGERS = {torch.int8, torch.uint8, torch.int32, torch.int64}
_GATHERED = {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool}

_OPS = [(ReduceOp.SUM, Op.SUM), (ReduceOp.AVG, Op.AVERAGE), (ReduceOp.MIN, Op.MIN), (ReduceOp.MAX, Op.MAX),
        (ReduceOp.PRODUCT, Op.PRODUCT)]
_FOLDS = [(ReduceOp.SUM, torch.add), (ReduceOp.MIN, torch.minimum), (ReduceOp.MAX, torch.maximum),
          (ReduceOp.PRODUCT, torch.mul), (ReduceOp.BAND, torch.bitwise_and), (ReduceOp.BOR, torch.bitwise_or),
          (ReduceOp.BXOR, torch.bitwise_xor)]
_ORS = (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR)
_ANDS = (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BAND)


class Reduction(NamedTuple):
    """op, scale: what bps does, on tensors that `viewed` has made. fold: what is done here instead, with what was gathered."""

    op: Op = Op.SUM
    scale: Optional[Scale] = None
    fold: Optional[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = None
    text: str = ""  # of a fold: what it does

    def folded(self, parts: List[torch.Tensor]) -> torch.Tensor:
        assert self.fold is not None
        result = parts[0]
        for part in parts[1:]:
            result = self.fold(result, part)
        return result.to(parts[0].dtype)


def viewed(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as elements that bps knows."""
    if tensor.dtype == torch.bool:
        return tensor.view(torch.uint8)
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def reduction_of(reduce_op: Any, dtype: torch.dtype) -> Reduction:
    """TypeError: nothing that torch defines for this type."""
    premul = reduce_op == ReduceOp.PREMUL_SUM
    if dtype in _FLOATS or dtype.is_complex:
        if premul:
            return Reduction(Op.SUM, Scale(prescale=_factor_of(reduce_op)))
        for theirs, ours in _OPS[:2] if dtype.is_complex else _OPS:
            if reduce_op == theirs:
                return Reduction(ours)
    elif dtype == torch.bool and reduce_op in _ORS:
        return Reduction(Op.MAX)
    elif dtype == torch.bool and reduce_op in _ANDS:
        return Reduction(Op.MIN)
    elif dtype in _INTEGERS:  # averages are cut off towards zero, as those of NCCL
        for theirs, ours in _OPS:
            if reduce_op == theirs:
                return Reduction(ours)
    if dtype in _GATHERED:
        for theirs, fold in _FOLDS:
            if reduce_op == theirs:
                return Reduction(fold=fold, text=f"{dtype} by {_name_of(reduce_op)}")
    advice = "; sum, and divide" if reduce_op == ReduceOp.AVG else ""
    raise TypeError(f"bps does not reduce {dtype} by {_name_of(reduce_op)}{advice}")


def _factor_of(reduce_op: Any) -> float:
    factor = reduce_op.factor if hasattr(reduce_op, "factor") else reduce_op.__getstate__()[1]
    return float(factor)


def _name_of(reduce_op: Any) -> str:
    names = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
    return next((name for name in names if reduce_op == getattr(ReduceOp, name)), "this operation")


class Signature:
    """What a call is, in front of bytes that mean nothing to bps: all ranks find out if one has made another call. A hash of the
    text, and as much of the text as there is room for."""

    length = 256  # a multiple of the size of each type, so that elements behind it are aligned

    def __init__(self, text: str) -> None:
        code = text.encode()
        whole = (hashlib.sha256(code).digest() + code)[:self.length].ljust(self.length)
        self.bytes = torch.frombuffer(bytearray(whole), dtype=torch.uint8)

    def places(self, ranks: int, byte_count: int) -> torch.Tensor:
        return torch.empty((ranks, self.length + byte_count), dtype=torch.uint8)

    def check(self, places: Iterable[torch.Tensor]) -> None:
        """DistBackendError: what has come from the ranks is not that of one call."""
        heads = [place[:self.length] for place in places]
        signatures = [ctypes.string_at(head.data_ptr(), head.numel()) for head in heads]
        for rank, signature in enumerate(signatures):
            if signature != signatures[0]:
                raise dist.DistBackendError(f"bps: rank 0 of the group calls {_text_of(signatures[0])}, rank {rank} calls "
                                            f"{_text_of(signature)}")

    def checked(self, places: torch.Tensor, like: torch.Tensor) -> List[torch.Tensor]:
        """The parts of all ranks. DistBackendError as check()."""
        self.check(places)
        return [place[self.length:].view(like.dtype).view(like.shape) for place in places]


def _text_of(signature: bytes) -> str:
    text = signature[hashlib.sha256().digest_size:].decode(errors="replace").strip()
    return text if text.isprintable() else "something else"
