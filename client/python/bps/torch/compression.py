"""What gradients travel as: the compressors of Horovod and BytePS.

A compressor is a class, or an object, with two functions: compress(tensor) gives what travels and a context, and
decompress(tensor, context) makes of the result what the program gets. Programs may bring their own. Those of `Compression`
change the type only, so the library can use memory in place and declare tensors beforehand.
"""
from typing import Any, Optional, Tuple

import torch

from ..errors import invalid


class NoneCompressor:
    """Tensors travel as they are."""

    wire_dtype: Optional[torch.dtype] = None

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor


class _Halves(NoneCompressor):
    """Floating point tensors travel as 16 bits; they are added in f32 all the same."""

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:  # type: ignore[override]
        return (tensor.to(cls.wire_dtype) if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor.to(context)


class FP16Compressor(_Halves):
    wire_dtype = torch.float16


class BF16Compressor(_Halves):
    wire_dtype = torch.bfloat16


class Compression:
    """What floating point gradients travel as."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def wire_dtype_of(compression: Any) -> Optional[torch.dtype]:
    """The type that floats travel as; None: their own. Error: INVALID_ARGUMENT for a compressor of the program, which may make
    anything of a tensor."""
    if compression is None or isinstance(compression, torch.dtype):
        return compression
    if not hasattr(compression, "wire_dtype"):
        raise invalid(f"compression is {compression!r}, of which only the program knows what it makes of a tensor",
                      "give Compression.fp16, bf16 or none")
    dtype: Optional[torch.dtype] = compression.wire_dtype
    return dtype


def compressor_of(compression: Any) -> Any:
    """With compress() and decompress()."""
    if is_own(compression):
        return compression
    dtype = wire_dtype_of(compression)
    return NoneCompressor if dtype is None else type("Cast", (_Halves,), {"wire_dtype": dtype})


def is_own(compression: Any) -> bool:
    """Is it a compressor of the program? Error: INVALID_ARGUMENT if it is none at all."""
    if compression is None or isinstance(compression, torch.dtype) or hasattr(compression, "wire_dtype"):
        return False
    if not (callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None))):
        raise invalid(f"compression is {compression!r}, which has no compress() and decompress()",
                      "give Compression.fp16, bf16 or none, or a class with both")
    return True
