"""Memory of other libraries, as operations need it: where it is, how long, of which type, and who keeps it alive.

Anything with the buffer protocol (NumPy, array.array, bytearray) or DLPack (JAX, TensorFlow, MXNet, PyTorch, CuPy) will
do, the latter also in the memory of a CUDA GPU. A `Memory` pins its object: as long as it lives the object can neither be
freed nor resized.
"""
import ctypes
import math
import re
from typing import Any, Optional, Sequence

from ._abi import MEMORY_CUDA, CBuffer, DType
from .errors import Code, Error, invalid

# Of the buffer protocol: one letter each, native or little-endian. 'l' is as long as the machine says.
_INTEGERS = {1: DType.I8, 4: DType.I32, 8: DType.I64}
_LETTERS = {"f": DType.F32, "d": DType.F64, "e": DType.F16, "B": DType.U8}
# Of DLPack: (type code, bits).
_DLPACK = {(2, 32): DType.F32, (2, 64): DType.F64, (2, 16): DType.F16, (4, 16): DType.BF16, (0, 8): DType.I8,
           (1, 8): DType.U8, (0, 32): DType.I32, (0, 64): DType.I64}
_DLPACK_CPU = 1
_DLPACK_CUDA = 2
_DLPACK_CUDA_HOST = 3
_DLPACK_DEVICES = {10: "ROCm", 13: "CUDA managed"}
_DEFAULT_STREAM = 1  # as DLPack and __cuda_array_interface__ call what is NULL to CUDA

# Of __cuda_array_interface__, which knows no bf16.
_TYPESTRS = {"<f4": DType.F32, "<f8": DType.F64, "<f2": DType.F16, "|i1": DType.I8, "|u1": DType.U8, "<i4": DType.I32,
             "<i8": DType.I64}

_PYBUF_WRITABLE = 0x0001
_PYBUF_C_CONTIGUOUS = 0x0020 | 0x0010 | 0x0008

SUPPORTED = "f32, f64, f16, bf16, i8, u8, i32 and i64 can be reduced; all others can be copied, with a tensor of u8"


class Memory:
    """A contiguous piece of memory, the host's if it is no CudaMemory. `owner` lives as long as this does."""

    def __init__(self, pointer: int, dtype: DType, count: int, owner: Any, writable: bool) -> None:
        self.pointer = pointer
        self.dtype = dtype
        self.count = count
        self.writable = writable
        self._owner = owner

    @property
    def is_cuda(self) -> bool:
        return False

    @property
    def bytes(self) -> int:
        return self.count * self.dtype.bytes

    def c_buffer(self) -> CBuffer:
        """Does not keep this alive."""
        return CBuffer(struct_size=ctypes.sizeof(CBuffer), pointer=self.pointer, bytes=self.bytes)

    def copy_from(self, other: "Memory") -> None:
        """Of the same length."""
        ctypes.memmove(self.pointer, other.pointer, self.bytes)


class CudaMemory(Memory):
    """A contiguous piece of the memory of a GPU.

    pointer: on the GPU. device: as the CUDA runtime counts them. stream: a cudaStream_t or CUstream as a number, 0 the
    default stream; an operation begins when what is queued on it by then has been done. owner: is kept alive as long as
    this is, so until the end of each operation that is given it.
    """

    def __init__(self, pointer: int, dtype: DType, count: int, device: int = 0, stream: int = 0, owner: Any = None,
                 writable: bool = True) -> None:
        super().__init__(pointer, DType(dtype), count, owner, writable)
        self.device = device
        self.stream = stream

    @property
    def is_cuda(self) -> bool:
        return True

    def c_buffer(self) -> CBuffer:
        return CBuffer(struct_size=ctypes.sizeof(CBuffer), pointer=self.pointer, bytes=self.bytes, kind=MEMORY_CUDA,
                       device=self.device, stream=self.stream)

    @classmethod
    def from_interface(cls, array: Any, device: int = 0) -> "CudaMemory":
        """Of an array with `__cuda_array_interface__` and without DLPack, as Numba's; the interface does not say on which
        GPU it is. Errors (INVALID_ARGUMENT): masked, not contiguous, of a type that cannot be reduced."""
        face = array.__cuda_array_interface__
        dtype = _TYPESTRS.get(face["typestr"])
        if dtype is None:
            raise invalid(f"elements of type {face['typestr']!r} cannot be reduced", SUPPORTED)
        shape, strides = face["shape"], face.get("strides")
        if face.get("mask") is not None:
            raise invalid("an array with a mask has no plain memory", "fill it first")
        if not _is_contiguous(shape, strides, dtype.bytes):
            raise invalid("the array is not contiguous", "give a contiguous copy")
        pointer, read_only = face["data"]
        stream = face.get("stream")  # None: its owner has seen to the order already
        return cls(pointer, dtype, math.prod(shape), device, 0 if stream in (None, _DEFAULT_STREAM) else stream, array,
                   not read_only)


class _PyBuffer(ctypes.Structure):
    """Py_buffer of the interpreter, the same since Python 3.3."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.restype = ctypes.c_int
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.restype = None
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]


def _pointer(pin: memoryview, writable: bool) -> int:
    """Raises what the object raises: it is not contiguous, or read-only."""
    view = _PyBuffer()
    _get_buffer(pin, ctypes.byref(view), _PYBUF_C_CONTIGUOUS | (_PYBUF_WRITABLE if writable else 0))
    pointer = view.buf
    _release_buffer(ctypes.byref(view))
    return pointer or 0


def _dtype_of_format(text: str, itemsize: int) -> Optional[DType]:
    letter = text.lstrip("@=<")
    if letter in _LETTERS:
        return _LETTERS[letter]
    if letter in ("b", "i", "l", "q"):
        return _INTEGERS.get(itemsize)
    return None


def _holds_pointers(form: str) -> bool:
    """Of a format of the buffer protocol: objects, pointers, strings and functions of C."""
    without_names = re.sub(r":[^:]*:", "", form)
    without_complex = re.sub(r"Z[fdg]", "", without_names)
    return any(letter in without_complex for letter in "OPzZ&X")


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLTensor(ctypes.Structure):
    """DLTensor of dlpack.h, the unversioned ABI, which every exporter still speaks."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(thing: Any, what: str, as_bytes: bool) -> Memory:
    device_type, device = thing.__dlpack_device__()
    if device_type not in (_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_CUDA_HOST):
        kind = _DLPACK_DEVICES.get(int(device_type), f"DLPack device type {int(device_type)}")
        raise out_of_reach(what, f"{kind} device {device}")
    # The capsule is not consumed, only kept: its own destructor tells the exporter that we are done. Of a GPU: the exporter
    # lets the default stream wait for what it has queued.
    capsule = thing.__dlpack__(stream=_DEFAULT_STREAM) if device_type == _DLPACK_CUDA else thing.__dlpack__()
    tensor = ctypes.cast(_capsule_pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    dtype, width = _DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None, 1
    if as_bytes and tensor.bits * tensor.lanes % 8 == 0:
        dtype, width = DType.U8, tensor.bits * tensor.lanes // 8
    if dtype is None:
        raise invalid(f"{what}: DLPack type code {tensor.code} of {tensor.bits} bits cannot be reduced", SUPPORTED)
    shape = tensor.shape[:tensor.ndim] if tensor.ndim else []
    if not _is_contiguous(shape, tensor.strides[:tensor.ndim] if tensor.ndim and tensor.strides else None, 1):
        raise invalid(f"{what} is not contiguous", "give a contiguous copy")
    pointer, count = (tensor.data or 0) + tensor.byte_offset, math.prod(shape) * width
    if device_type == _DLPACK_CUDA:
        return CudaMemory(pointer, dtype, count, device, owner=capsule)
    return Memory(pointer, dtype, count, capsule, writable=True)


def _is_contiguous(shape: Sequence[int], strides: Optional[Sequence[int]], unit: int) -> bool:
    """unit: what strides count an element as."""
    for axis in reversed(range(len(shape))):
        if strides is not None and shape[axis] > 1 and strides[axis] != unit:
            return 0 in shape
        unit *= shape[axis]
    return True


def out_of_reach(what: str, where: str) -> Error:
    """The one refusal of memory that this library does not move."""
    return Error(Code.INVALID_ARGUMENT,
                 f"{what} is in the memory of {where}, and this library moves that of the host and of CUDA GPUs only",
                 "copy it to the host first")


def memory_of(thing: Any, what: str, writable: bool = False, as_bytes: bool = False) -> Memory:
    """The memory of `thing`, pinned. `what` names it in errors. as_bytes: elements of any type, as u8.

    Errors (INVALID_ARGUMENT): no memory that could be shared, not contiguous, read-only although `writable`, an element
    type that cannot be reduced, neither on the host nor on a CUDA GPU.
    """
    if isinstance(thing, Memory):
        if writable and not thing.writable:
            raise invalid(f"{what} is read-only", "give memory that may be written")
        return thing
    try:
        # Not an object of ours with a finalizer: that runs, too, when a handle is collected whose memory is still needed.
        pin = memoryview(thing)
    except TypeError:
        if hasattr(thing, "__dlpack__") and hasattr(thing, "__dlpack_device__"):
            return _from_dlpack(thing, what, as_bytes)
        if hasattr(thing, "__cuda_array_interface__"):
            raise invalid(f"{what}: a {type(thing).__name__} does not say on which GPU it is",
                          "give CudaMemory.from_interface(array, device)") from None
        raise invalid(f"{what}: a {type(thing).__name__} has neither the buffer protocol nor DLPack",
                      "give an array") from None
    except (BufferError, ValueError) as problem:
        raise invalid(f"{what}: {problem}", "give its bytes, as array.view('u1')" if as_bytes else SUPPORTED) from None
    try:
        pointer = _pointer(pin, writable)
    except (BufferError, ValueError) as problem:
        wanted = "a contiguous array that may be written" if writable else "a contiguous array"
        raise invalid(f"{what}: {problem}", f"give {wanted}") from None
    if as_bytes:
        if _holds_pointers(pin.format):
            raise invalid(f"{what}: elements of type {pin.format!r} are or hold pointers, which mean nothing on another rank",
                          "copy what they point to")
        return Memory(pointer, DType.U8, pin.nbytes, pin, not pin.readonly)
    dtype = _dtype_of_format(pin.format, pin.itemsize)
    if dtype is None:
        raise invalid(f"{what}: elements of type {pin.format!r} cannot be reduced", SUPPORTED)
    return Memory(pointer, dtype, pin.nbytes // pin.itemsize, pin, not pin.readonly)
