"""Workers of torch_test.py for DistributedOptimizer with mode="async"; as torch_worker.py."""
import math
import os
import signal
import sys

import torch
import torch_models as models
from torch import nn
from torch_worker import check_alike, main, refused

import bps.torch as bps
from bps import DType, TensorSpec


def shared(of, make=lambda p: torch.optim.SGD(p, lr=0.02), **how):
    return bps.DistributedOptimizer(make(of.parameters()), of.named_parameters(), mode="async", **how)


def target_of(x):
    return x.sum(1, keepdim=True).tanh()


def batch(rank, step):
    x = models.features(rank, step)
    return x, target_of(x)


def loss_of(model, rank, step):
    x, y = batch(rank, step)
    return nn.functional.mse_loss(model(x), y)


def net():
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1))


def converges():
    """At their own pace, from rank 0's parameters on; afterwards all have the same."""
    for make in (lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.5), lambda p: torch.optim.Adam(p, lr=0.003)):
        model = models.seeded(net, seed=bps.rank())
        optimizer = shared(model, make)
        check_alike(model)
        before = loss_of(model, 0, 1000).item()
        for step in range(150 + 50 * bps.rank()):
            optimizer.zero_grad()
            loss_of(model, bps.rank(), step).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        bps.barrier()
        optimizer.synchronize()
        check_alike(model)
        after = loss_of(model, 0, 1000).item()
        assert after < 0.3 * before, (before, after)
        del optimizer


def adds_all_changes():
    """The value is that of rank 0 and the changes of all ranks: exact, with numbers that are."""
    model = nn.Linear(4, 3)
    nn.init.constant_(model.weight, 1.0 + bps.rank())
    nn.init.constant_(model.bias, 0.0)
    model.weight.data = model.weight.data.t().contiguous().t()  # strided
    optimizer = shared(model, lambda p: torch.optim.SGD(p, lr=0.5))
    assert (model.weight == 1.0).all()
    model.bias.requires_grad_(False)
    for step in range(3 + bps.rank()):
        optimizer.zero_grad()
        (model.weight.sum() * (1 + bps.rank())).backward()
        if step % 2 == 1:
            optimizer.zero_grad(set_to_none=True)  # a step that changes nothing
        optimizer.step()
    bps.barrier()
    optimizer.synchronize()
    steps = [(3 + rank + 1) // 2 for rank in range(bps.size())]
    expected = 1.0 - 0.5 * sum(count * (1 + rank) for rank, count in enumerate(steps))
    assert (model.weight == expected).all(), (model.weight, expected)

    # A parameter that comes later, and one that is thawed.
    extra = nn.Parameter(torch.full((5,), float(bps.rank())))
    optimizer.add_param_group({"params": [extra], "lr": 1.0})
    frozen = nn.Parameter(torch.full((2,), float(bps.rank())), requires_grad=False)
    optimizer.add_param_group({"params": [frozen], "lr": 1.0})
    assert (extra == 0.0).all() and (frozen == bps.rank()).all()
    frozen.requires_grad_(True)
    optimizer.step()
    assert (frozen == 0.0).all()
    (extra.sum() + frozen.sum()).backward()
    bps.barrier()
    optimizer.step()
    bps.barrier()
    optimizer.synchronize()
    assert (extra == -bps.size()).all() and (frozen == -bps.size()).all(), (extra, frozen)


def values_of_the_client():
    """bps.Client: a value on the servers, and what a TensorSpec refuses."""
    client = bps.client()
    tensor, = client.declare([TensorSpec("value", DType.I64, 3, mode="async", staleness=math.inf)])
    mine = torch.tensor([10, 20, 30] if client.rank == 1 else [0, 0, 0])
    client.broadcast(tensor, mine, root=1).wait()
    assert mine.tolist() == [10, 20, 30]
    client.barrier()
    now = torch.zeros(3, dtype=torch.int64)
    for _ in range(1 + client.rank):
        client.push_pull(tensor, torch.tensor([1, 2, 3]), now, bps.Sum).wait()
    client.barrier()
    client.push_pull(tensor, torch.zeros(3, dtype=torch.int64), now, bps.Sum).wait()
    assert now.tolist() == [13, 26, 39], now
    for how, pattern in (({"mode": "other"}, "mode of x is 'other'"), ({"mode": 1}, "mode of x is 1"),
                         ({"staleness": -1}, "staleness of x is -1"), ({"staleness": "1"}, "staleness of x is '1'")):
        refused(bps.Code.INVALID_ARGUMENT, pattern, lambda: client.declare([TensorSpec("x", DType.F32, 3, **how)]))


def not_possible():
    invalid = bps.Code.INVALID_ARGUMENT
    model = net()
    for how, name in (({"model": model}, "model"), ({"op": bps.Sum}, "op"), ({"compression": bps.Compression.fp16}, "compression"),
                      ({"backward_passes_per_step": 2}, "backward_passes_per_step"), ({"sparse_as_dense": True}, "sparse_as_dense"),
                      ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor")):
        refused(invalid, f"mode='async' with {name}.*leave {name} out", lambda: shared(model, **how))
    for staleness in (-1, 1.5, "much"):
        refused(invalid, "the staleness of .* is to be", lambda: shared(model, staleness=staleness))
    optimizer = shared(model)
    refused(invalid, "0.weight has another DistributedOptimizer", lambda: shared(model))
    refused(invalid, "skip_synchronize", optimizer.skip_synchronize)
    bps.broadcast_parameters(model.state_dict())  # as scripts do; the values stay
    optimizer.step()
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    refused(invalid, "0.weight was changed outside of step", optimizer.step)
    other = nn.Linear(3, 3 + bps.rank())
    refused(bps.Code.CONFIGURATION, "is not that of rank 0", lambda: shared(other))


def bounded(ahead):
    """Rank 1 makes three steps, and then none until it is told to; rank 0 as many as it can."""
    model = models.seeded(net)
    optimizer = shared(model, staleness=int(ahead))
    for step in range(3 if bps.rank() == 1 else 100):
        optimizer.zero_grad()
        loss_of(model, bps.rank(), step).backward()
        try:
            optimizer.step()
        except bps.Error as error:
            assert error.code == bps.Code.DEADLINE and "rank 1" in str(error), error
            print("steps", step, flush=True)
            break
    print("waiting", flush=True)
    sys.stdin.readline()
    for _ in range(int(ahead) + 2 if bps.rank() == 1 else 1):  # rank 0 first ends the step that has timed out
        optimizer.step()
    bps.barrier()
    optimizer.synchronize()
    check_alike(model)


def killed():
    model = models.seeded(net)
    optimizer = shared(model)
    for step in range(100_000):
        optimizer.zero_grad()
        loss_of(model, bps.rank(), step).backward()
        if step == 20:
            print("middle", flush=True)
            if bps.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()


def through_the_loss_of_a_server():
    """Goes on with what has been added so far; then all have the same."""
    model = models.seeded(net)
    optimizer = shared(model)
    for step in range(400):
        if step == 200:
            print("middle", flush=True)
            sys.stdin.readline()
        optimizer.zero_grad()
        loss_of(model, bps.rank(), step).backward()
        optimizer.step()
    bps.barrier()
    optimizer.synchronize()
    check_alike(model)
    assert loss_of(model, 0, 1000).item() < 0.3


if __name__ == "__main__":
    main(globals())
