"""Virtual GPUs for Python: what bps and bps.torch use of a CUDA tensor, over the libcuda.so.1 of tests/gpu, which copies late.

An allocation of that driver is memory of this process, so PyTorch computes in it as in any other. What makes it a GPU's:
nothing but the driver knows the memory; what is queued on a stream is done later; and a tensor is computed with only when
the current stream of its device has come to rest, which is when a kernel queued there would run. What forgets to let a
stream wait therefore computes with old values, and what gives the wrong stream sends them. Only copy_() of one such tensor to
another is queued as a GPU does it: the caller goes on at once.

PyTorch here is built without CUDA, so the few functions of torch.cuda that bps.torch calls are replaced (`install`).
"""
import contextlib
import ctypes
import threading
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import TypeVar

import torch

_NOT_READY = 600
_POOL_BYTES = 256 << 20  # of each GPU, taken once, as PyTorch's allocator keeps what it has: cuMemAlloc may wait for streams
_ALIGNMENT = 512

T = TypeVar("T")


class Driver:
    """What breaks a rule of the driver's is said by it when the process ends."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")
        self._contexts = []
        self("cuInit", ctypes.c_uint(0))
        count = c_int()
        self("cuDeviceGetCount", byref(count))
        self.gpus = count.value
        for device in range(count.value):
            context = c_void_p()
            self("cuDevicePrimaryCtxRetain", byref(context), c_int(device))
            self._contexts.append(context)
        self._pools = [self._new_pool(device) for device in range(count.value)]
        self._next = [0] * count.value

    def __call__(self, name, *arguments, also=()):
        status = getattr(self._library, name)(*arguments)
        assert status in (0, *also), f"{name}: {status}"
        return status

    @contextlib.contextmanager
    def on(self, device):
        self("cuCtxPushCurrent_v2", self._contexts[device])
        try:
            yield
        finally:
            self("cuCtxPopCurrent_v2", byref(c_void_p()))

    def _new_pool(self, device):
        with self.on(device):
            address = c_uint64()
            self("cuMemAlloc_v2", byref(address), c_size_t(_POOL_BYTES))
        return address.value

    def allocate(self, size, device):
        """For ever."""
        address = self._pools[device] + self._next[device]
        self._next[device] += (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        assert self._next[device] <= _POOL_BYTES, "a virtual GPU has no more memory"
        return address

    def device_of(self, pointer):
        """None: it is no memory of a GPU."""
        return next((device for device, pool in enumerate(self._pools) if pool <= pointer < pool + _POOL_BYTES), None)

    def new_stream(self, device):
        stream = c_void_p()
        with self.on(device):
            self("cuStreamCreateWithPriority", byref(stream), ctypes.c_uint(1), c_int(0))
        return stream.value

    def is_at_rest(self, stream, device):
        with self.on(device):
            return self("cuStreamQuery", c_void_p(stream), also=(_NOT_READY,)) == 0

    @contextlib.contextmanager
    def copies_to_devices_held(self):
        """Those that are queued inside begin when it ends."""
        self("fakeHoldCopiesToDevices", c_int(1))
        try:
            yield
        finally:
            self("fakeHoldCopiesToDevices", c_int(0))


driver = None
_here = threading.local()
recorded = []  # (pointer, stream) of each record_stream


class Stream:
    """torch.cuda.Stream. The driver has a default one on the first GPU only."""

    default = {}

    def __init__(self, device, pointer=None):
        self.device = torch.device(device)
        self.cuda_stream = driver.new_stream(self.device.index) if pointer is None else pointer

    def __eq__(self, other):
        return self.cuda_stream == other.cuda_stream

    def query(self):
        return driver.is_at_rest(self.cuda_stream, self.device.index)

    def synchronize(self):
        deadline = time.monotonic() + 30
        while not self.query():
            assert time.monotonic() < deadline, "a stream does not come to rest"
            threading.Event().wait(2e-5)  # it goes on by being asked

    def wait_event(self, event):
        with driver.on(self.device.index):
            driver("cuStreamWaitEvent", c_void_p(self.cuda_stream), event.pointer, c_uint(0))

    def wait_word(self, word):
        """What is queued from now on waits until word.set()."""
        with driver.on(self.device.index):
            driver("fakeStreamWaitWord", c_void_p(self.cuda_stream), c_uint64(word.address))

    def run(self, kernel):
        """Queues a function: it runs when what is before it has been done, and what comes after it waits for its end."""
        begins, ended = Event(), Word()
        begins.record(self)
        self.wait_word(ended)

        def wait_and_run():
            begins.synchronize()
            kernel()
            ended.set()

        threading.Thread(target=wait_and_run, daemon=True).start()

    def copy_from_host(self, tensor, pinned, size=None):
        with driver.on(self.device.index):
            driver("cuMemcpyHtoDAsync_v2", c_uint64(tensor.data_ptr()), c_void_p(pinned.address),
                   c_size_t(size or pinned.size), c_void_p(self.cuda_stream))


class Event:
    """torch.cuda.Event, recorded once."""

    def __init__(self):
        self.pointer = c_void_p()
        self._device = None

    def record(self, stream):
        assert self._device is None
        self._device = stream.device.index
        with driver.on(self._device):
            driver("cuEventCreate", byref(self.pointer), c_uint(0))
            driver("cuEventRecord", self.pointer, c_void_p(stream.cuda_stream))

    def query(self):
        with driver.on(self._device):
            return driver("cuEventQuery", self.pointer, also=(_NOT_READY,)) == 0

    def synchronize(self):
        deadline = time.monotonic() + 30
        while not self.query():
            assert time.monotonic() < deadline, "an event does not come"
            threading.Event().wait(2e-5)


class Word:
    """For which a stream may wait."""

    _all = []  # for ever: a stream may still look

    def __init__(self):
        self._word = c_uint32(0)
        self.address = ctypes.addressof(self._word)
        self._all.append(self._word)

    def set(self):
        self._word.value = 1


class Pinned:
    """Host memory that the driver knows, for ever."""

    _all = []

    def __init__(self, values, device=0):
        self._values = values.contiguous()
        self.address = self._values.data_ptr()
        self.size = self._values.numel() * self._values.element_size()
        with driver.on(device):
            driver("cuMemHostRegister_v2", c_void_p(self.address), c_size_t(self.size), ctypes.c_uint(2))
        self._all.append(self)


def current_stream(device=None):
    device = torch.device("cuda", 0) if device is None else torch.device(device)
    return getattr(_here, "streams", {}).get(device.index) or Stream.default[device.index]


@contextlib.contextmanager
def stream(one):
    streams = _here.streams = getattr(_here, "streams", {})
    before = streams.get(one.device.index)
    streams[one.device.index] = one
    try:
        yield
    finally:
        streams[one.device.index] = before


_QUEUES_NOTHING = {"__get__", "__set__", "data_ptr", "numel", "element_size", "dim", "size", "stride", "is_contiguous", "is_neg",
                   "is_conj", "is_floating_point", "detach", "t", "as_subclass", "requires_grad_"}


class CudaTensor(torch.Tensor):
    """A tensor on a virtual GPU. What is computed with it lies there, too, unless gradients flow through it."""

    @property
    def device(self):
        with torch._C.DisableTorchFunction():
            return torch.device("cuda", driver.device_of(self.data_ptr()) or 0)

    @property
    def is_cuda(self):
        return True

    def cpu(self):
        return on_host(self).clone()

    def to(self, *arguments, **named):
        if arguments and isinstance(arguments[0], torch.device):
            return self if arguments[0] == self.device else on_gpu(self.cpu(), arguments[0].index)
        return super().to(*arguments, **named)

    def record_stream(self, one):
        recorded.append((self.data_ptr(), one.cuda_stream))

    def __reduce_ex__(self, protocol):
        raise NotImplementedError("a tensor on a virtual GPU cannot be pickled")

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        given = [one for one in _flat((arguments, named or {})) if isinstance(one, torch.Tensor)]
        devices = {one.device.index for one in given if isinstance(one, CudaTensor)}
        if function.__name__ == "copy_" and len(devices) == 1 and all(isinstance(one, CudaTensor) for one in given):
            current_stream(torch.device("cuda", *devices)).run(lambda: _copy(*given))
            return given[0]
        if function.__name__ not in _QUEUES_NOTHING:
            for device in devices:
                current_stream(torch.device("cuda", device)).synchronize()
        with torch._C.DisableTorchFunction():
            result = function(*arguments, **(named or {}))
        return _placed(result, given, min(devices, default=0))


def _copy(target, source):
    with torch._C.DisableTorchFunction(), torch.no_grad():
        target.copy_(source)


def _flat(thing):
    if isinstance(thing, dict):
        thing = thing.values()
    elif not isinstance(thing, (list, tuple)):
        return [thing]
    return [one for part in thing for one in _flat(part)]


def _placed(result, given, device):
    if isinstance(result, (list, tuple)):
        return type(result)(_placed(one, given, device) for one in result)
    if not isinstance(result, torch.Tensor) or isinstance(result, CudaTensor) or any(result is one for one in given):
        return result
    if result.requires_grad:  # a subclass is one more node of the graph
        return result
    if result.numel() > 0 and driver.device_of(result.data_ptr()) is not None:
        return result.as_subclass(CudaTensor)
    return on_gpu(result, device)


def on_gpu(values, device=0):
    """A copy of a CPU tensor, made at once."""
    with torch._C.DisableTorchFunction():
        values = values.detach().as_subclass(torch.Tensor)
        size = values.numel() * values.element_size()
        if size == 0:
            return torch.empty(values.shape, dtype=values.dtype).as_subclass(CudaTensor)
        memory = (ctypes.c_char * size).from_address(driver.allocate(size, device))
        made = torch.frombuffer(memory, dtype=values.dtype).reshape(values.shape)
        return made.copy_(values).as_subclass(CudaTensor)


def on_host(tensor):
    """The same memory, as a CPU tensor, when the current stream has come to rest."""
    current_stream(tensor.device).synchronize()
    with torch._C.DisableTorchFunction():
        return tensor.detach().as_subclass(torch.Tensor)


class Future(torch.futures.Future[T]):
    """One of PyTorch with `devices`."""

    def __new__(cls, *, devices=None):
        return super().__new__(cls)

    def __init__(self, *, devices=None):
        super().__init__()
        self.devices = devices

    def set_result(self, result):
        if self.devices and isinstance(result, torch.Tensor):
            assert result.device in self.devices
        super().set_result(result)


def install():
    """In this process, before bps.torch is used."""
    global driver
    driver = Driver()
    for device in range(driver.gpus):
        Stream.default[device] = Stream(torch.device("cuda", device), 0 if device == 0 else None)
    cuda = torch.cuda
    cuda.current_stream, cuda.stream, cuda.Stream, cuda.Event = current_stream, stream, Stream, Event
    cuda.device_count = lambda: driver.gpus
    torch.futures.Future = Future
    plain_to = torch.Tensor.to

    def to(tensor, *arguments, **named):
        device = named.get("device", arguments[0] if arguments else None)
        if isinstance(device, torch.device) and device.type == "cuda":
            return on_gpu(tensor if named.get("dtype") is None else plain_to(tensor, named["dtype"]), device.index)
        return plain_to(tensor, *arguments, **named)

    torch.Tensor.to = to
