"""Workers of gpu_test.py, as torch_worker.py: python3 gpu_worker.py FUNCTION[:ARGUMENT...] ... with tensors on virtual GPUs."""
import os
import threading
import types as python_types

import torch
import torch_models as models
import virtual_gpu
from torch_worker import main, on_rank, refused, summed
from virtual_gpu import Pinned, Stream, on_gpu, on_host

import bps
import bps.torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
GPU = torch.device("cuda", 0)


def mine(dtype, shape):
    return on_gpu(on_rank(dtype, shape, bps.torch.rank()))


def same(tensor, expected):
    assert tensor.is_cuda, "the result is not on the GPU"
    assert torch.equal(on_host(tensor), expected), (on_host(tensor), expected)


def types():
    for dtype in FLOATS + (torch.int8, torch.uint8, torch.int32, torch.int64):
        for shape in ((), (0, 4), (5,), (3, 70_001)):
            values = mine(dtype, shape)
            kept = on_host(values).clone()
            same(bps.torch.push_pull(values, f"{dtype}{shape}", average=False), summed(dtype, shape, False))
            same(values, kept)
            bps.torch.allreduce_(values, op=bps.torch.Sum)
            same(values, summed(dtype, shape, False))
    for dtype in FLOATS:
        same(bps.torch.allreduce(mine(dtype, (1000,))), summed(dtype, (1000,), True))


def calls_of_groups():
    """By way of the host: what comes out lies on the GPU."""
    hvd, rank, size = bps.torch, bps.torch.rank(), bps.torch.size()
    given, alone = [on_rank(torch.float32, (2 * size, 3), one) for one in range(size)], hvd.add_process_set([rank])
    tensor = mine(torch.float32, (2 * size, 3))
    for result, expected in ((hvd.allgather(tensor), torch.cat(given)),
                             (hvd.alltoall(tensor), torch.cat([one[2 * rank:2 * rank + 2] for one in given])),
                             (hvd.reducescatter(tensor, op=hvd.Max), torch.stack(given).amax(0)[2 * rank:2 * rank + 2]),
                             (hvd.broadcast(tensor, 1), given[1]),
                             (hvd.grouped_allreduce([tensor], op=hvd.Max)[0], torch.stack(given).amax(0)),
                             (hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5), sum(one * 0.5 for one in given)),
                             (hvd.allreduce(tensor, op=hvd.Sum, process_set=alone), given[rank])):
        assert result.is_cuda
        same(result, expected)
    changed = mine(torch.float32, (2 * size, 3))
    hvd.broadcast_(changed, 1)
    same(changed, given[1])
    hvd.remove_process_set(alone)


def views():
    """What is not contiguous goes by way of a copy, which is not given away before the stream has read it."""
    for view in (lambda t: t.t(), lambda t: t[:, 1::2], lambda t: t[1:3]):
        whole = mine(torch.float32, (6, 8))
        expected = on_rank(torch.float32, (6, 8), bps.torch.rank())
        same(bps.torch.push_pull(view(whole)), view(summed(torch.float32, (6, 8), True)))
        view(expected).copy_(view(summed(torch.float32, (6, 8), True)))
        virtual_gpu.recorded.clear()
        stream = Stream(GPU)
        handle = bps.torch.push_pull_async_(view(whole))
        with virtual_gpu.stream(stream):
            handle.wait_stream()
            same(whole, expected)
        handle.synchronize()
        assert all(where == stream.cuda_stream for _, where in virtual_gpu.recorded)
        kept = {pointer for pointer, _ in virtual_gpu.recorded}
        assert view(whole).data_ptr() in kept and len(kept) == (1 if view(whole).is_contiguous() else 2), kept


def compressed():
    total = sum((on_rank(torch.float32, (1000,), rank).half().float() for rank in range(bps.torch.size())), torch.zeros(1000))
    result = bps.torch.allreduce(mine(torch.float32, (1000,)), compression=bps.torch.Compression.fp16)
    same(result, (total / bps.torch.size()).half().float())


def copies_are_waited_for():
    """What comes by way of a copy is there for the host, and for another stream, only when the stream that copies has."""
    values = on_rank(torch.float32, (6, 8), bps.torch.rank())
    halves = sum((on_rank(torch.float32, (6, 8), rank).half().float() for rank in range(bps.torch.size())), torch.zeros(6, 8))
    cases = ((lambda: bps.torch.push_pull_async_(on_gpu(values).t(), "transposed"), summed(torch.float32, (6, 8), True).t()),
             (lambda: bps.torch.allreduce_async(on_gpu(values), name="half", compression=bps.torch.Compression.fp16),
              (halves / bps.torch.size()).half().float()))
    for begin, expected in cases:
        same(begin().synchronize(), expected)  # the library knows the tensor, and asks the driver for no memory below
        for waits_on_host in (True, False):
            handle, copies, other, gate = begin(), Stream(GPU), Stream(GPU), virtual_gpu.Word()
            while not handle.poll():
                threading.Event().wait(0.001)
            copies.wait_word(gate)
            with virtual_gpu.stream(copies):
                handle.wait_stream()
            assert not torch.equal(on_host(handle.tensor), expected), "it has been copied before its turn"
            if waits_on_host:
                opener = threading.Timer(0.1, gate.set)
                opener.start()
                same(handle.synchronize(), expected)
                opener.join()
            else:
                with virtual_gpu.stream(other):
                    handle.wait_stream()
                    assert not other.query(), "it does not wait for the copy"
                    gate.set()
                    same(handle.tensor, expected)
                handle.synchronize()


def copies_have_a_deadline():
    """The program's own work on the stream that copies does not end."""
    values = on_rank(torch.float32, (6, 8), bps.torch.rank())
    begin = lambda: bps.torch.push_pull_async_(on_gpu(values).t(), "late")  # noqa: E731
    expected = summed(torch.float32, (6, 8), True).t()
    same(begin().synchronize(), expected)
    handle, copies, gate, world = begin(), Stream(GPU), virtual_gpu.Word(), bps.torch.world._world
    while not handle.poll():
        threading.Event().wait(0.001)
    copies.wait_word(gate)
    timeout_s, world.operation_timeout_s = world.operation_timeout_s, 0.2
    with virtual_gpu.stream(copies):
        for _ in range(2):
            refused(bps.Code.DEADLINE, "waited 0.2 s for the copy of late", handle.synchronize)
    world.operation_timeout_s = timeout_s
    gate.set()
    same(handle.synchronize(), expected)


def queued_work_comes_first():
    """What is sent is what the current stream will have made of the tensor, and not what is there in the call."""
    values, stream, gate = on_gpu(torch.full((50_000,), -1.0)), Stream(GPU), virtual_gpu.Word()
    later = Pinned(on_rank(torch.float32, (50_000,), bps.torch.rank()))
    begin = lambda: bps.torch.push_pull_async_(values, "queued", average=False)  # noqa: E731
    bps.torch.synchronize(begin())  # the library knows the tensor, and asks the driver for no memory below
    stream.wait_word(gate)
    stream.copy_from_host(values, later)
    with virtual_gpu.stream(stream):
        handle = begin()
    assert not handle.poll()
    gate.set()
    same(bps.torch.synchronize(handle), summed(torch.float32, (50_000,), False))


def streams_wait():
    """And the host does not."""
    values, stream = mine(torch.float32, (50_000,)), Stream(GPU)
    begin = lambda: bps.torch.push_pull_async_(values, "waited for", average=False)  # noqa: E731
    bps.torch.synchronize(begin())  # the library knows the tensor
    values.copy_(on_rank(torch.float32, (50_000,), bps.torch.rank()))
    with virtual_gpu.driver.copies_to_devices_held():
        handle = begin()
        with virtual_gpu.stream(stream):
            handle.wait_stream()
        assert not handle.poll(), "its last copy has not been made"
        assert not stream.query(), "it does not wait for the result"
    with virtual_gpu.stream(stream):
        same(values, summed(torch.float32, (50_000,), False))
    handle.synchronize()
    refused(bps.Code.INVALID_ARGUMENT, "call synchronize", lambda: bps.torch.push_pull_async(torch.ones(3)).wait_stream())


def hosts_and_gpus():
    """In one job, and of one tensor in different rounds."""
    for turn in range(2):
        values = on_rank(torch.float32, (1000,), bps.torch.rank())
        if (bps.torch.rank() + turn) % 2 == 0:
            values = on_gpu(values)
        result = bps.torch.push_pull(values, "either")
        assert result.is_cuda == values.is_cuda and torch.equal(result.cpu(), summed(torch.float32, (1000,), True))


def placed(model):
    """Its parameters on the GPU, with gradients there to be added to."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            moved = torch.nn.Parameter(on_gpu(parameter))
            moved.grad = on_gpu(torch.zeros_like(parameter))
            module._parameters[name] = moved
    return model


def state_of(model):
    return {name: on_host(value).clone() if value.is_cuda else value for name, value in model.state_dict().items()}


def begin_alike():
    """Parameters and optimizer state; on rank 0 the model is on the host."""
    bps.torch.broadcast._BATCH_BYTES = 100_000  # several batches
    root = bps.torch.size() - 1
    model = models.seeded(models.WithBatchNorm, seed=bps.torch.rank())
    model = model if bps.torch.rank() == 0 else placed(model)
    bps.torch.broadcast_parameters(model.state_dict(), root_rank=root)
    expected = models.seeded(models.WithBatchNorm, seed=root).state_dict()
    for name, value in state_of(model).items():
        assert torch.equal(value, expected[name]), name
    for transposed in (False, True):
        values = on_gpu(torch.arange(6.0).reshape(2, 3) * (bps.torch.rank() + 1))
        same(bps.torch.broadcast_(values.t() if transposed else values, root), (torch.arange(6.0).reshape(2, 3) * (root + 1)).t()
             if transposed else torch.arange(6.0).reshape(2, 3) * (root + 1))

    weight = torch.nn.Parameter(on_gpu(torch.ones(5)))
    optimizer = torch.optim.SGD([weight], lr=0.5 if bps.torch.rank() == root else 0.1, momentum=0.9)
    if bps.torch.rank() == root:
        weight.grad = on_gpu(torch.arange(5.0))
        optimizer.step()
    bps.torch.broadcast_optimizer_state(optimizer, root_rank=root)
    state = optimizer.state_dict()
    assert state["param_groups"][0]["lr"] == 0.5
    assert torch.equal(state["state"][0]["momentum_buffer"].cpu(), torch.arange(5.0))


def without_host_memory(device):
    """As a job with local_group nccl refuses it: then all goes by way of this rank's GPU."""
    device = bps.torch.local_rank() if device == "local rank" else int(device)
    same(bps.torch.push_pull(on_gpu(torch.ones(3), device), average=True), torch.ones(3))  # so that the library has it
    world, client, calls = bps.torch.world._world, bps.torch.client(), []
    assert not world.sums_on_gpus
    world.sums_on_gpus, world.calls_without_names = True, False

    def only_gpus(function):
        def call(tensor, *arguments, **named):
            calls.append(arguments[0].device if isinstance(arguments[0], bps.CudaMemory) else None)
            return function(tensor, *arguments, **named)

        return call

    client.broadcast, client.push_pull = only_gpus(client.broadcast), only_gpus(client.push_pull)
    thing = {"epoch": bps.torch.rank(), "much": b"x" * 3_000_000}
    assert bps.torch.broadcast_object(thing, 1) == {**thing, "epoch": 1}
    same(bps.torch.broadcast_(mine(torch.float32, (10,)), 1), on_rank(torch.float32, (10,), 1))
    if bps.torch.size() > 1:
        shape = (3 if bps.torch.rank() == 1 else 4,)
        refused(bps.Code.CONFIGURATION, "rank 1 is not that of rank 0", lambda: bps.torch.broadcast_(mine(torch.float32, shape)))
    assert calls and all(one == device for one in calls), calls
    del client.broadcast, client.push_pull
    world.sums_on_gpus, world.calls_without_names = False, True


def optimizer(passes):
    """Gradients leave while backward goes on; parameters are those of one process, bit for bit."""
    passes = int(passes)
    model, reference = placed(models.seeded(models.WithBatchNorm)), models.seeded(models.WithBatchNorm)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    mine = bps.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(),
                                          backward_passes_per_step=passes)
    for step in range(4):
        def loss_of(one, rank):
            for part in range(passes):
                models.square_loss(one, rank, step * passes + part).backward()

        mine.zero_grad(set_to_none=False)
        loss_of(model, bps.torch.rank())
        assert mine._exchange.under_way, "nothing has left during backward"
        mine.step()
        models.averaged_gradients(reference, bps.torch.size(), loss_of)
        plain.step()
        expected = dict(reference.named_parameters())
        for name, parameter in model.named_parameters():
            assert parameter.is_cuda and torch.equal(on_host(parameter), expected[name].detach()), (step, name)


def averaged_in(wire, values):
    """The ranks' f32, each rounded, added in f32, and rounded once. wire: one of Compression."""
    wire = wire.wire_dtype
    total = sum((one.to(wire).float() for one in values), torch.zeros_like(values[0]))
    return (total / len(values)).to(wire).float()


def pushed():
    return bps.torch.client().stats().pushed_bytes


def check_pushed(before, expected):
    """Nothing more, unless a connection has broken and it was sent again."""
    assert pushed() - before == expected or bps.torch.client().stats().resent > 0, (pushed() - before, expected)


def moved_to_gpu(model):
    """As model.cuda() does: the parameters are the same objects, and their memory is another."""
    for parameter in model.parameters():
        parameter.data, parameter.grad = on_gpu(parameter), None
        parameter.__class__ = virtual_gpu.CudaTensor
        parameter.grad = on_gpu(torch.zeros(parameter.shape))


def compressed_step(wire, model, optimizer):
    """Gradients are averages of what the ranks have rounded, and lie where they were; half of their bytes travel."""
    alone = [models.seeded(models.WithBatchNorm) for _ in range(bps.torch.size())]
    for rank, one in enumerate(alone):
        models.square_loss(one, rank, 0).backward()
    places, before = [p.grad.data_ptr() for p in model.parameters()], pushed()
    models.square_loss(model, bps.torch.rank(), 0).backward()
    optimizer.synchronize()
    check_pushed(before, 2 * sum(p.numel() for p in model.parameters()))
    assert places == [p.grad.data_ptr() for p in model.parameters()]
    others = [dict(one.named_parameters()) for one in alone]
    for name, parameter in model.named_parameters():
        given = [torch.zeros_like(one[name]) if one[name].grad is None else one[name].grad for one in others]
        same(parameter.grad, averaged_in(wire, [gradient.detach() for gradient in given]))


def optimizer_compressed():
    wire = bps.torch.Compression.bf16
    model = placed(models.seeded(models.WithBatchNorm))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = bps.torch.DistributedOptimizer(plain, model.named_parameters(), compression=wire)
    mine.synchronize()  # of gradients that are zeros; the first time ranks also agree on what gradients are like
    compressed_step(wire, model, mine)


def optimizer_compressed_moves():
    """The model goes to the GPU when it has its optimizer already: on rank 0 only after a step on the host."""
    for wire in (bps.torch.Compression.fp16, bps.torch.Compression.bf16):
        model = models.seeded(models.WithBatchNorm)
        plain = torch.optim.SGD(model.parameters(), lr=0.0)
        mine = bps.torch.DistributedOptimizer(plain, model.named_parameters(), compression=wire)
        if bps.torch.rank() != 0:
            moved_to_gpu(model)
        models.square_loss(model, bps.torch.rank(), 0).backward()
        mine.step()
        mine.zero_grad(set_to_none=False)
        if bps.torch.rank() == 0:
            moved_to_gpu(model)
        compressed_step(wire, model, mine)


class Bucket:
    """torch.distributed.GradBucket, as the hook sees it."""

    def __init__(self, number, buffer, is_last):
        self._number, self._buffer, self._is_last = number, buffer, is_last

    def index(self):
        return self._number

    def buffer(self):
        return self._buffer

    def is_last(self):
        return self._is_last


def hook(dtype):
    """A future of the bucket's device, complete when the average is there."""
    dtype = getattr(torch, dtype)
    state = bps.torch.state()
    for step in range(3):
        buckets = [Bucket(i, mine(dtype, (5_000 * (i + 1),)), i == 2) for i in range(3)]
        futures = [bps.torch.comm_hook(state, bucket) for bucket in buckets]
        for i, future in enumerate(futures):
            same(future.wait(), summed(dtype, (5_000 * (i + 1),), True))
    assert state.waited_s > 0


def hook_compressed():
    wire = bps.torch.Compression.fp16
    state = bps.torch.state(compression=wire)
    for _ in range(2):
        before = pushed()
        expected = averaged_in(wire, [on_rank(torch.float32, (5_000,), rank) for rank in range(bps.torch.size())])
        same(bps.torch.comm_hook(state, Bucket(0, mine(torch.float32, (5_000,)), True)).wait(), expected)
        check_pushed(before, 2 * 5_000)
    same(bps.torch.comm_hook(state, Bucket(1, mine(torch.float64, (50,)), True)).wait(), summed(torch.float64, (50,), True))
    invalid = bps.Code.INVALID_ARGUMENT
    expected = averaged_in(wire, [on_rank(torch.float32, (70,), rank) for rank in range(bps.torch.size())])
    on_the_host = on_rank(torch.float32, (70,), bps.torch.rank())
    assert torch.equal(bps.torch.comm_hook(state, Bucket(2, on_the_host, True)).wait(), expected)
    refused(invalid, "compression=torch.int8", lambda: bps.torch.state(compression=torch.int8))


def refusals():
    """FAKE_GPUS=2"""
    invalid = bps.Code.INVALID_ARGUMENT
    same(bps.torch.push_pull(mine(torch.float32, (3,)), "first"), summed(torch.float32, (3,), True))  # this one has GPU 0
    refused(invalid, "GPU 1.*one GPU in each worker", lambda: bps.torch.push_pull(on_gpu(torch.ones(3), 1)))
    refused(invalid, "meta.*host and of CUDA GPUs only", lambda: bps.torch.push_pull(torch.ones(3, device="meta")))
    refused(invalid, "meta", lambda: bps.torch.broadcast_parameters({"weight": torch.ones(3, device="meta")}))
    refused(invalid, "cannot be reduced", lambda: bps.torch.push_pull(on_gpu(torch.ones(3, dtype=torch.bool))))
    client = bps.torch.client()
    tensor, = client.declare([bps.TensorSpec("core", bps.DType.F32, 3)])
    gpu = on_gpu(torch.ones(3))
    memory = bps.CudaMemory(gpu.data_ptr(), bps.DType.F32, 3, owner=gpu)
    refused(invalid, "one of input and output is CUDA memory", lambda: client.push_pull(tensor, memory, torch.ones(3)))
    refused(invalid, "not in any GPU's memory",
            lambda: client.push_pull(tensor, bps.CudaMemory(torch.ones(3).data_ptr(), bps.DType.F32, 3)))


class OnlyDLPack:
    """An array of another library, on a GPU."""

    def __init__(self, tensor):
        self.tensor, self.stream = tensor, None

    def __dlpack_device__(self):
        return 2, self.tensor.device.index

    def __dlpack__(self, stream=None):
        self.stream = stream
        return torch.utils.dlpack.to_dlpack(on_host(self.tensor))


class OnlyInterface:
    def __init__(self, tensor, stream=None):
        self.__cuda_array_interface__ = {"shape": tuple(tensor.shape), "typestr": "<f4", "data": (tensor.data_ptr(), False),
                                         "version": 3, "strides": None, "stream": stream}


def core():
    """bps without bps.torch: arrays of any library on a GPU, and a stream that waits."""
    client = bps.torch.client()
    tensor, = client.declare([bps.TensorSpec("of any library", bps.DType.F32, 1000)])
    expected = summed(torch.float32, (1000,), False)
    stream = Stream(GPU)
    for give in (OnlyDLPack, lambda t: bps.CudaMemory.from_interface(OnlyInterface(t)),
                 lambda t: bps.CudaMemory(t.data_ptr(), bps.DType.F32, 1000, 0, stream.cuda_stream, owner=t)):
        values = mine(torch.float32, (1000,))
        given = give(values)
        handle = client.push_pull(tensor, given, op=bps.Op.SUM)
        handle.wait_stream(stream.cuda_stream)
        stream.synchronize()
        handle.wait()
        same(values, expected)
    values = mine(torch.float32, (1000,))
    client.broadcast(tensor, OnlyDLPack(values), root=1).wait()
    same(values, on_rank(torch.float32, (1000,), 1))
    array = OnlyDLPack(values)
    client.push_pull(tensor, array).wait()
    assert array.stream == 1, "the default stream is to wait for what its library has queued"
    store = bps.KVStore(client)
    values = mine(torch.float32, (1000,))
    store.pushpull("key", OnlyDLPack(values))
    same(values, expected)
    refused(bps.Code.INVALID_ARGUMENT, "give that as both", lambda: store.broadcast("key", values.cpu(), OnlyDLPack(values)))


class Dropped:
    """Knows when nobody has it any more."""

    def __init__(self):
        self.gone = threading.Event()

    def __del__(self):
        self.gone.set()


def dropped():
    """A program that keeps neither handle nor tensor: the memory stays until the end, and not longer."""
    client, values = bps.torch.client(), mine(torch.float32, (200_000,))
    tensor, = client.declare([bps.TensorSpec("dropped", bps.DType.F32, 200_000)])
    if bps.torch.rank() == 1:
        bps.torch.barrier()
    owner = Dropped()
    gone = owner.gone
    client.push_pull(tensor, bps.CudaMemory(values.data_ptr(), bps.DType.F32, 200_000, owner=owner))
    del owner
    if bps.torch.rank() == 0:
        assert not gone.is_set()
        bps.torch.barrier()
    bps.torch.barrier()
    while not gone.is_set():
        client._sweep()


def for_ever():
    """Until another rank is gone."""
    values, step = mine(torch.float32, (50_000,)), 0
    while True:
        bps.torch.push_pull_(values, "weight")
        step += 1
        if step == 5:
            print("running", flush=True)


def no_driver():
    class Claims(torch.Tensor):
        device = GPU

    torch.cuda.current_stream = lambda device: python_types.SimpleNamespace(cuda_stream=0)
    bps.torch.push_pull(torch.ones(3).as_subclass(Claims))


if __name__ == "__main__":
    if "FAKE_GPUS" in os.environ:
        virtual_gpu.install()
    main(globals())
