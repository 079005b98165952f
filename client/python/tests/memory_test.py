"""Which objects can be pushed and pulled, and how long they are held."""
import array
import ctypes
import gc
import time
import unittest
import unittest.mock
import weakref

import bps
import numpy
from bps import Code, CudaMemory, DType, Error
from bps._memory import memory_of


class OnlyDLPack:
    """What an array of a library without the buffer protocol looks like."""

    def __init__(self, inner, device=None):
        self.inner = inner
        self.device = device

    def __dlpack__(self, stream=None):
        assert stream == (1 if self.device and self.device[0] == 2 else None)
        return self.inner.__dlpack__()

    def __dlpack_device__(self):
        return self.device or self.inner.__dlpack_device__()


class OnlyInterface:
    """An array on a GPU of a library without DLPack."""

    def __init__(self, inner, **more):
        self.__cuda_array_interface__ = {**inner.__array_interface__, "version": 3, **more}


NUMPY = {"float32": DType.F32, "float64": DType.F64, "float16": DType.F16, "int8": DType.I8, "uint8": DType.U8,
         "int32": DType.I32, "int64": DType.I64}


class MemoryTest(unittest.TestCase):
    def refused(self, pattern, thing, writable=False, as_bytes=False):
        with self.assertRaises(Error) as caught:
            memory_of(thing, "out of weight", writable, as_bytes)
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
        for thing in (numpy.zeros(5, object), numpy.zeros(5, [("n", "i4"), ("o", object)]), (ctypes.c_char_p * 3)(),
                      (ctypes.c_void_p * 3)()):
            self.refused("pointers", thing, as_bytes=True)
        self.refused("view.'u1'.", numpy.zeros(5, "M8[D]"), as_bytes=True)
        self.assertEqual(memory_of(numpy.zeros(5, [("One", "i4"), ("Z", "c8")]), "x", as_bytes=True).count, 60)
        for name in ("c8", "f4", "i2"):
            for thing in (numpy.zeros(5, name), OnlyDLPack(numpy.zeros(5, name))):
                memory = memory_of(thing, "x", as_bytes=True)
                self.assertEqual((memory.dtype, memory.count), (DType.U8, 5 * numpy.dtype(name).itemsize))
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

    def test_memory_of_other_devices_is_refused(self):
        self.refused("ROCm device 1.*of CUDA GPUs only.*copy it to the host", OnlyDLPack(numpy.zeros(3), device=(10, 1)))

    def test_dlpack_on_a_gpu(self):
        values = numpy.zeros((3, 5), "f4")
        memory = memory_of(OnlyDLPack(values, device=(2, 1)), "x")
        raw = memory.c_buffer()
        self.assertEqual((raw.pointer, raw.bytes, raw.kind, raw.device, raw.stream), (values.ctypes.data, 60, 2, 1, None))
        self.refused("not contiguous", OnlyDLPack(values.T, device=(2, 1)))

    def test_cuda_array_interface(self):
        for dtype, kind in NUMPY.items():
            values = numpy.zeros((3, 5), dtype)
            memory = CudaMemory.from_interface(OnlyInterface(values, stream=77), device=3)
            raw = memory.c_buffer()
            self.assertEqual((memory.dtype, memory.count, raw.pointer, raw.device, raw.stream),
                             (kind, 15, values.ctypes.data, 3, 77), dtype)
        for said, given in ((None, None), (1, None), (2, 2)):  # the default stream, and that of each thread
            memory = CudaMemory.from_interface(OnlyInterface(values, stream=said))
            self.assertEqual(memory.c_buffer().stream, given)
        records = numpy.zeros(4, [("weight", "f4"), ("kind", "i2")])  # 6 bytes apart
        for stays in (values.T, values[:, ::2], records["weight"]):
            with self.assertRaisesRegex(Error, "not contiguous"):
                CudaMemory.from_interface(OnlyInterface(stays))
        with self.assertRaisesRegex(Error, "<i2.*cannot be reduced"):
            CudaMemory.from_interface(OnlyInterface(numpy.zeros(3, "i2")))
        with self.assertRaisesRegex(Error, "mask"):
            CudaMemory.from_interface(OnlyInterface(values, mask=values))
        self.refused("does not say on which GPU.*from_interface", OnlyInterface(values))
        read_only = numpy.zeros(3, "f4")
        read_only.flags.writeable = False
        self.refused("read-only", CudaMemory.from_interface(OnlyInterface(read_only)), writable=True)

    def test_held_while_it_lives(self):
        thing = bytearray(5)
        memory = memory_of(thing, "x")
        with self.assertRaises(BufferError):
            thing.append(1)
        del memory
        thing.append(1)


LIMIT = 120  # seconds after which anything is considered to hang


class Array(numpy.ndarray):
    """An array that weak references can see."""


class UnderWayTest(unittest.TestCase):
    """What an operation keeps alive."""

    @classmethod
    def setUpClass(cls):
        cls.client = bps.Client(scheduler="embedded:")
        cls.addClassCleanup(cls.client.close)

    def declare(self, count):
        return self.client.declare([bps.TensorSpec(self.id(), DType.F32, count)])[0]

    def test_memory_lives_until_the_end_and_no_longer(self):
        tensor = self.declare(200_000)
        array = numpy.zeros(200_000, "f4").view(Array)
        alive = weakref.ref(array)
        handle = self.client.push_pull(tensor, array)
        del array
        gc.collect()
        self.assertIsNotNone(alive())
        handle.wait()
        self.assertIsNone(alive())

    def test_a_dropped_handle_leaves_its_memory_to_the_client(self):
        tensor = self.declare(2_000_000)
        array = numpy.zeros(2_000_000, "f4").view(Array)
        alive = weakref.ref(array)
        self.client.push_pull(tensor, array)  # nobody keeps the handle
        orphans = [orphan.memory[0].pointer for orphan in self.client._orphans]
        self.assertIn(array.ctypes.data, orphans)
        del array
        other, = self.client.declare([bps.TensorSpec("sweeper", DType.F32, 1)])
        started = 0
        while alive() is not None and started < 100_000:
            started += 1
            self.client.push_pull(other, numpy.zeros(1, "f4")).wait()
        self.assertIsNone(alive())

    def test_a_collected_handle_leaves_its_memory_to_the_client(self):
        """In a cycle of garbage, as one that an exception holds: all its finalizers run."""
        thing = bytearray(1_000_000)
        tensor, = self.client.declare([bps.TensorSpec("collected", DType.U8, len(thing))])
        cycle = [self.client.broadcast(tensor, thing)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        with self.assertRaises(BufferError):
            thing.append(1)
        deadline = time.monotonic() + LIMIT
        while self.client._orphans and time.monotonic() < deadline:
            self.client.broadcast(tensor, bytearray(len(thing))).wait()
        thing.append(1)


class TouchedTest(unittest.TestCase):
    """Memory that a GPU may still read and write, because an operation has ended with an error of the GPU."""

    def test_what_stays(self):
        here = CudaMemory(4096, DType.F32, 1)
        there = memory_of(numpy.zeros(1, "f4"), "values")
        for status, memory, stays in ((Code.OS, (here,), True), (Code.OS, (there,), False),
                                      (Code.PEER_LOST, (here,), False), (0, (here,), False)):
            with unittest.mock.patch("bps.handle._touched", []) as touched:
                bps.handle.keep_if_touched(memory, status)
                self.assertEqual(touched, [memory] if stays else [])
