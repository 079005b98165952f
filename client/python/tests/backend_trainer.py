"""Trains with what of torch stands on a process group; a program of backend_test.py."""
import contextlib
import gc
import hashlib
import os
import pathlib
import signal
import sys
import threading
import time
import unittest.mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from backend_ranks import begin, check, expect_error, right, run

from bps.torch.backend.call import Call
from bps.torch.backend.deadlines import deadlines


def model_of(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 30), torch.nn.Tanh(),
                               torch.nn.Linear(30, 1))


def batch_of(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 20, generator=generator)


def loss_of(model, batch):
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def trained_alone(size, steps):
    """What one process gets that has the batches of all."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        torch.stack([loss_of(model, batch_of(rank, step)) for rank in range(size)]).mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def assert_close(mine, expected, what):
    for a, b in zip(mine, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda text: f"{what}: {text}")


def digest_of(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def trained(hook=None, state=None, steps=10, **options):
    rank = dist.get_rank()
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.002, **options)
    if hook is not None:
        model.register_comm_hook(state(model) if state else None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch_of(rank, step)).backward()
        optimizer.step()
    return model


def ddp():
    rank, size = begin()
    alone = trained_alone(size, 10)
    for options in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model = trained(**options)
        assert_close([p.detach() for p in model.module.parameters()], alone, f"DDP {options}")
        digests = [None] * size
        dist.all_gather_object(digests, digest_of(model))
        assert len(set(digests)) == 1, f"DDP {options}: parameters differ between ranks"
    del model
    gc.collect()
    left = [call for _, _, reference in deadlines()._calls for call in [reference()] if call is not None]
    assert not left, f"{len(left)} calls and their results stay until their deadlines"
    right("ddp")


@contextlib.contextmanager
def taken_futures():
    """Of calls: those that end by themselves, and those that wait."""
    taken = set()

    def noted(kind):
        original = getattr(Call, kind)
        return lambda call: taken.add(kind) or original(call)

    with contextlib.ExitStack() as patches:
        for kind in ("future", "waited_future"):
            patches.enter_context(unittest.mock.patch.object(Call, kind, noted(kind)))
        yield taken


def hooks():
    """Three times each, with the same bits. Those of torch that make no calls in callbacks overlap with backward."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks

    rank, size = begin()
    power = lambda model: powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, random_seed=1)
    for name, hook, state in (("allreduce", default_hooks.allreduce_hook, None), ("fp16", default_hooks.fp16_compress_hook, None),
                              ("bf16", default_hooks.bf16_compress_hook, None), ("PowerSGD", powerSGD_hook.powerSGD_hook, power),
                              ("quantised by tensor", quantization_hooks.quantization_pertensor_hook, lambda model: dist.group.WORLD),
                              ("quantised by channel", quantization_hooks.quantization_perchannel_hook, lambda model: dist.group.WORLD)):
        with taken_futures() as taken:
            models = [trained(hook, state) for _ in range(3)]
        if name == "allreduce":
            assert_close([p.detach() for p in models[0].module.parameters()], trained_alone(size, 10), name)
        digests = set(map(digest_of, models))
        assert ("waited_future" in taken) != (hook.__module__ == default_hooks.__name__), f"{name}: {taken}"
        everywhere = [None] * size
        dist.all_gather_object(everywhere, digests)
        assert len(set.union(*everywhere)) == 1, f"{name}: {everywhere}"
    right("hooks")


def fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, size = begin()
    alone = trained_alone(size, 10)
    shapes = [((size,), None)] + ([((2, size // 2), ("rest", "shard"))] if size % 2 == 0 and size > 2 else [])
    for shape, names in shapes:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        model = model_of()
        for layer in model:
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(10):
            optimizer.zero_grad()
            loss_of(model, batch_of(rank, step)).backward()
            optimizer.step()
        assert_close([p.full_tensor().detach() for p in model.parameters()], alone, f"FSDP2 on {shape}")
    right("fsdp")


def other_trainers():
    """What else of torch trains over a process group."""
    from torch.distributed.algorithms.join import Join
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    rank, size = begin()
    alone = trained_alone(size, 4)

    def steps(model, optimizer, count=4):
        for step in range(count):
            optimizer.zero_grad()
            loss_of(model, batch_of(rank, step)).backward()
            optimizer.step()

    model = DistributedDataParallel(model_of())
    steps(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9))
    assert_close([p.detach() for p in model.parameters()], alone, "ZeroRedundancyOptimizer")
    model = FullyShardedDataParallel(model_of(), device_id=torch.device("cpu"))
    steps(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    with FullyShardedDataParallel.summon_full_params(model):
        assert_close([p.detach() for p in model.parameters()], [torch.cat([p.reshape(-1) for p in alone])]
                     if len(list(model.parameters())) == 1 else alone, "FSDP1")
    model = DistributedDataParallel(model_of())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Join([model]):
        steps(model, optimizer, 2 + rank)  # unequally many
    digests = [None] * size
    dist.all_gather_object(digests, digest_of(model))
    assert len(set(digests)) == 1, "Join: parameters differ between ranks"
    torch.manual_seed(0)
    rows = DistributedDataParallel(torch.nn.Embedding(10, 3, sparse=True))  # gradients of some rows
    rows(torch.tensor([rank, rank + 1])).sum().backward()
    gradient = rows.module.weight.grad
    assert gradient.is_sparse
    check(gradient.to_dense()[1], torch.full((3,), 2.0 / size), "a sparse gradient")
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(float(size * 2 * 3)).view(size * 2, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    check(sharded.redistribute(mesh, [Replicate()]).to_local(), whole, "redistribute")
    check(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole, "redistribute to columns")
    right("other_trainers")


def compiled():
    """DDP in torch.compile, and collectives inside a compiled function; without a compiler of C++."""
    import torch.distributed._functional_collectives as functional

    rank, size = begin()
    alone = trained_alone(size, 4)
    model = DistributedDataParallel(model_of())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    compiled_model = torch.compile(model, backend="aot_eager")
    for step in range(4):
        optimizer.zero_grad()
        loss_of(compiled_model, batch_of(rank, step)).backward()
        optimizer.step()
    assert_close([p.detach() for p in model.parameters()], alone, "compiled DDP")

    @torch.compile(backend="aot_eager", fullgraph=True)
    def total(tensor):
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    check(total(torch.full((3,), float(rank))), torch.full((3,), float(size * (size - 1) + 1)), "all_reduce in a compiled function")
    check(functional.all_gather_tensor(torch.tensor([rank]), 0, dist.group.WORLD) * 1, torch.arange(size), "all_gather_tensor")
    scattered = functional.reduce_scatter_tensor(torch.arange(float(size)), "sum", 0, dist.group.WORLD)
    check(scattered * 1, torch.tensor([float(rank * size)]), "reduce_scatter_tensor")
    right("compiled")


def checkpoints():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard

    rank, size = begin()
    folder = os.environ["CHECKPOINT"]
    model = model_of()
    fully_shard(model)
    expected = [p.full_tensor().clone() for p in model.parameters()]
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder + "/now")
    checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=folder + "/later").result()
    for which in ("now", "later"):
        other = model_of(seed=5)
        fully_shard(other)
        state = {"model": other.state_dict()}
        checkpoint.load(state, checkpoint_id=f"{folder}/{which}")
        other.load_state_dict(state["model"])
        for a, b in zip((p.full_tensor() for p in other.parameters()), expected):
            check(a, b, "a checkpoint")
    right("checkpoints")


def killed_in_backward():
    rank, size = begin()
    model = DistributedDataParallel(model_of())
    loss_of(model, batch_of(rank, 0)).backward()
    if rank == 1:
        print("under way", flush=True)
        signal.pause()
    error = expect_error(lambda: loss_of(model, batch_of(rank, 1)).backward(), "rank 1", 30.0)
    print(f"told: {type(error).__name__}: {error}", flush=True)
    sys.exit(3)


def backward_has_a_deadline():
    rank, size = begin(3)
    model = DistributedDataParallel(model_of())
    if rank == 0:
        expect_error(lambda: loss_of(model, batch_of(rank, 0)).backward(), "its timeout of 3 s is over", 20.0)
        print("told", flush=True)
        began = time.monotonic()
        dist.destroy_process_group()
        assert time.monotonic() - began < 10.0, "destroy_process_group waits for a call that has timed out"
        sys.exit(3)
    signal.pause()


def steady():
    """Many steps of a tiny FSDP2 model: memory, threads."""
    from torch.distributed.fsdp import fully_shard

    rank, size = begin()
    model = torch.nn.Linear(4, 4)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes = []
    for step in range(int(os.environ.get("STEPS", "3000"))):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        if step % 500 == 499:
            sizes.append(int(pathlib.Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]))
    assert sizes[-1] - sizes[1] < 4096, sizes
    dist.destroy_process_group()
    names = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("bps"))
    assert names in ([], ["bps-deadlines"]), names
    right("steady")


if __name__ == "__main__":
    run(globals())
