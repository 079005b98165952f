"""Which objects can be pushed and pulled, and how long they are held."""
import array
import unittest

import numpy
from bps import Code, DType, Error
from bps._memory import memory_of


class OnlyDLPack:
    """What an array of a library without the buffer protocol looks like."""

    def __init__(self, inner, device=None):
        self.inner = inner
        self.device = device

    def __dlpack__(self, stream=None):
        return self.inner.__dlpack__()

    def __dlpack_device__(self):
        return self.device or self.inner.__dlpack_device__()


NUMPY = {"float32": DType.F32, "float64": DType.F64, "float16": DType.F16, "int8": DType.I8, "uint8": DType.U8,
         "int32": DType.I32, "int64": DType.I64}


class MemoryTest(unittest.TestCase):
    def refused(self, pattern, thing, writable=False):
        with self.assertRaises(Error) as caught:
            memory_of(thing, "out of weight", writable)
        self.assertEqual(caught.exception.code, Code.INVALID_ARGUMENT)
        self.assertRegex(str(caught.exception), "out of weight.*" + pattern)

    def test_numpy_and_dlpack(self):
        for name, dtype in NUMPY.items():
            values = numpy.zeros((3, 5), name)
            for thing in (values, OnlyDLPack(values)):
                memory = memory_of(thing, "x", writable=True)
                self.assertEqual((memory.dtype, memory.count, memory.pointer, memory.bytes),
                                 (dtype, 15, values.ctypes.data, values.nbytes), name)

    def test_standard_library(self):
        self.assertEqual(memory_of(array.array("d", [1, 2]), "x").dtype, DType.F64)
        self.assertEqual(memory_of(array.array("l", [1, 2]), "x").dtype, DType.I64)
        self.assertEqual(memory_of(bytearray(5), "x", writable=True).dtype, DType.U8)
        self.assertEqual(memory_of(b"12345", "x").count, 5)

    def test_empty_and_zero_dimensional(self):
        self.assertEqual(memory_of(numpy.zeros((0, 3), "f4"), "x").count, 0)
        self.assertEqual(memory_of(numpy.float32(1).reshape(()), "x").count, 1)
        self.assertEqual(memory_of(OnlyDLPack(numpy.zeros((), "f4")), "x").count, 1)

    def test_part_of_an_array(self):
        whole = numpy.zeros(10, "f4")
        for thing in (whole[4:6], OnlyDLPack(whole[4:6])):
            self.assertEqual(memory_of(thing, "x").pointer, whole.ctypes.data + 16)

    def test_refused(self):
        self.refused("not contiguous|not C-contiguous", numpy.zeros((4, 4), "f4").T)
        self.refused("not contiguous", OnlyDLPack(numpy.zeros((4, 4), "f4").T))
        self.refused("'h' cannot be reduced.*bf16", numpy.zeros(3, "i2"))
        self.refused("cannot be reduced", numpy.zeros(3, ">f4"))
        self.refused("cannot be reduced", OnlyDLPack(numpy.zeros(3, "c8")))
        self.refused("neither the buffer protocol nor DLPack", [1.0, 2.0])
        self.refused("may be written", b"12345", writable=True)

    def test_memory_of_a_gpu_is_refused(self):
        self.refused("CUDA device 1.*host memory only.*copy it to the host", OnlyDLPack(numpy.zeros(3), device=(2, 1)))

    def test_held_while_it_lives(self):
        thing = bytearray(5)
        memory = memory_of(thing, "x")
        with self.assertRaises(BufferError):
            thing.append(1)
        del memory
        thing.append(1)
