"""The memory of PyTorch tensors, as operations need it."""
from typing import Optional

import torch

from .._abi import DType
from .._memory import SUPPORTED, CudaMemory, Memory, out_of_reach
from ..errors import invalid

_DTYPES = {torch.float32: DType.F32, torch.float64: DType.F64, torch.float16: DType.F16, torch.bfloat16: DType.BF16,
           torch.int8: DType.I8, torch.uint8: DType.U8, torch.int32: DType.I32, torch.int64: DType.I64}


def check_place(tensor: torch.Tensor, what: str) -> None:
    """Error: INVALID_ARGUMENT for tensors without a plain piece of memory that can be reached: that of the host, or of a
    CUDA GPU; and for what is no tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise invalid(f"{what} is a {type(tensor).__name__}, not a tensor", "make one of it: torch.tensor(...)")
    if tensor.device.type not in ("cpu", "cuda"):
        raise out_of_reach(what, str(tensor.device))
    if tensor.layout != torch.strided:
        raise invalid(f"{what} is a sparse tensor ({tensor.layout})", "use dense gradients, e.g. Embedding(sparse=False)")


def dtype_of(tensor: torch.Tensor, what: str) -> DType:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise invalid(f"{what} has elements of {tensor.dtype}, which cannot be reduced", SUPPORTED)
    return dtype


def is_plain(tensor: torch.Tensor) -> bool:
    """Can its memory be used as it is?"""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


def will_be_used_here(tensor: torch.Tensor) -> None:
    """Of a tensor that may have been made on another stream, and may go before the current one has come to what is queued
    there: PyTorch's allocator gives the memory to nobody before."""
    if is_on_gpu(tensor):
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def memory_of_tensor(tensor: torch.Tensor, dtype: Optional[DType] = None) -> Memory:
    """Of a plain tensor, alive as long as the result. On a GPU: as what is queued on the current stream leaves it. dtype U8:
    as bytes, whatever they mean."""
    if dtype == DType.U8:
        count = tensor.numel() * tensor.element_size()
    else:
        dtype, count = _DTYPES[tensor.dtype], tensor.numel()
    # The alias keeps the memory even if the tensor is given another one, as `p.grad = None` or set_() do.
    alias = tensor.detach()
    if is_on_gpu(tensor):
        stream = torch.cuda.current_stream(tensor.device).cuda_stream
        return CudaMemory(tensor.data_ptr(), dtype, count, tensor.device.index, stream, alias)
    return Memory(tensor.data_ptr(), dtype, count, alias, writable=True)
