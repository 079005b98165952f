"""Workers of torch_test.py: python3 torch_worker.py FUNCTION[:ARGUMENT...] ... runs those functions one after another, and says
so after each. None catches its error, and they end with its exit code all the same. Many functions in one process, because
importing PyTorch takes longer than most of them."""
import math
import os
import re
import signal
import sys

import torch
import torch_models as models
from torch import nn

import bps.torch as bps
from bps import DType, TensorSpec


def check_alike(model):
    """Bit for bit on all ranks."""
    mine = models.digest(model)
    assert bps.broadcast_object(mine) == mine, "the parameters differ between ranks"


def same_bits(model, reference):
    return models.digest(model) == models.digest(reference)


def on_rank(dtype, shape, rank):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(rank)) * 10
    return values.to(dtype)


def summed(dtype, shape, average):
    """What the server promises: in rank order; f16 and bf16 in f32, rounded once."""
    ranks = bps.size()
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = on_rank(dtype, shape, 0).to(wide)
    for rank in range(1, ranks):
        total = total + on_rank(dtype, shape, rank).to(wide)
    return (total / ranks if average else total).to(dtype)


def types():
    floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    for dtype in floats + (torch.int8, torch.uint8, torch.int32, torch.int64):
        for shape in ((), (0, 4), (5,), (3, 70_001)):
            mine = on_rank(dtype, shape, bps.rank())
            kept = mine.clone()
            assert torch.equal(bps.push_pull(mine, f"{dtype}{shape}", average=False), summed(dtype, shape, False)), dtype
            assert torch.equal(mine, kept)
            if dtype in floats:
                assert torch.equal(bps.push_pull(mine), summed(dtype, shape, True)), dtype
                bps.allreduce_(mine, op=bps.Sum)
                assert torch.equal(mine, summed(dtype, shape, False)), dtype


def strides():
    for view in (lambda t: t.t(), lambda t: t[:, 1::2], lambda t: t[1:3]):
        whole = on_rank(torch.float32, (6, 8), bps.rank())
        expected = summed(torch.float32, (6, 8), True)
        assert torch.equal(bps.push_pull(view(whole)), view(expected))
        bps.push_pull_(view(whole))
        assert torch.equal(view(whole), view(expected))
        untouched = on_rank(torch.float32, (6, 8), bps.rank())
        view(untouched).copy_(view(expected))
        assert torch.equal(whole, untouched)
    image = on_rank(torch.float32, (2, 3, 5, 5), bps.rank()).to(memory_format=torch.channels_last)
    assert torch.equal(bps.push_pull(image), summed(torch.float32, (2, 3, 5, 5), True))


def compressed():
    """Halves travel and are added in f32; what does not float is left alone."""
    mine = on_rank(torch.float32, (1000,), bps.rank())
    total = sum((on_rank(torch.float32, (1000,), rank).half().float() for rank in range(bps.size())), torch.zeros(1000))
    result = bps.allreduce(mine, compression=bps.Compression.fp16)
    assert result.dtype == torch.float32 and torch.equal(result, (total / bps.size()).half().float())
    assert torch.equal(bps.allreduce(torch.tensor([3]), compression=bps.Compression.fp16, op=bps.Sum), torch.tensor([3 * bps.size()]))

    model = models.seeded(models.Mixed)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                         compression=bps.Compression.bf16)
    models.language_loss(model, bps.rank(), 0).backward()
    optimizer.step()
    assert all(torch.equal(p.grad, p.grad.bfloat16().float()) for p in model.parameters())
    check_alike(model)


def differentiable():
    """Gradients are reduced alike on their way back, also those of gradients."""
    ranks, mine = bps.size(), torch.full((5,), bps.rank() + 1.0, requires_grad=True)
    average = sum(range(1, ranks + 1)) / ranks
    for reduce, through in ((bps.push_pull, average), (bps.allreduce, average), (lambda t: bps.allreduce(t, op=bps.Sum), average * ranks),
                            (lambda t: bps.push_pull(t, "with a name", average=False), average * ranks)):
        gradient, = torch.autograd.grad((reduce(2 * mine) * (bps.rank() + 1)).sum(), mine)
        assert torch.equal(gradient, torch.full((5,), 2 * through)), gradient
    first, = torch.autograd.grad(bps.push_pull(mine ** 3).sum(), mine, create_graph=True)
    second, = torch.autograd.grad(first.sum(), mine)
    assert torch.allclose(second, 6 * mine), second
    refused(bps.Code.INVALID_ARGUMENT, "no gradient flows back through max", lambda: bps.allreduce(mine, op=bps.Max).sum().backward())
    with torch.no_grad():
        assert not bps.push_pull(mine).requires_grad
    assert not bps.push_pull_async(mine).synchronize().requires_grad


def dropped():
    """By the program, under the name of an operation, which is declared again."""
    for step in range(20):
        count = 100 + step % 3
        mine = torch.full((count,), float(bps.rank()))
        assert torch.equal(bps.push_pull(mine, "dropped", average=False), torch.full((count,), sum(range(bps.size())) * 1.0))
        tensor, = bps.client().declare([TensorSpec("dropped", DType.F32, count)])
        bps.client().drop(tensor)
    # Refused while it is under way, and then it is known as before.
    tensor, = bps.client().declare([TensorSpec("slow", DType.F32, 10)])
    if bps.rank() == 0:
        bps.barrier()
    handle = bps.push_pull_async(torch.ones(10), "slow")
    if bps.rank() > 0:
        refused(bps.Code.INVALID_ARGUMENT, "slow.*under way", lambda: bps.client().drop(tensor))
        bps.barrier()
    handle.synchronize()
    assert bps.client()._declared["slow"] == tensor
    bps.client().drop(tensor)
    assert "slow" not in bps.client()._declared


def copied():
    """Copies are plain optimizers, with the state of this one; what a scheduler saves holds one."""
    import copy
    import io
    import pickle

    model = nn.Linear(2, 2)
    own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = bps.DistributedOptimizer(own, model.named_parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
    for one in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(one) is torch.optim.SGD, type(one)
        momenta = [[state["momentum_buffer"] for state in each.state.values()] for each in (one, optimizer)]
        assert len(momenta[0]) == 2 and all(torch.equal(a, b) for a, b in zip(*momenta))
        one.step()
    saved = io.BytesIO()
    torch.save(scheduler.state_dict(), saved)
    saved.seek(0)
    other = torch.optim.lr_scheduler.OneCycleLR(torch.optim.SGD(model.parameters(), lr=0.1), max_lr=0.1, total_steps=10)
    other.load_state_dict(torch.load(saved))
    assert other.last_epoch == scheduler.last_epoch == 2
    check_alike(model)


def added():
    """Parameters that come later, on the same data on all ranks: the bits are those of one process."""
    def train(distribute):
        torch.manual_seed(5)
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        optimizer = distribute(torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9), first)
        for step in range(4):
            if step == 2:
                optimizer.add_param_group({"params": second.parameters(), "lr": 0.01})
            optimizer.zero_grad()
            second(first(torch.full((2, 3), 1.0 + step))).sum().backward()
            optimizer.step()
        return first, second

    plain = train(lambda optimizer, model: optimizer)
    ours = train(lambda optimizer, model: bps.DistributedOptimizer(optimizer, model.named_parameters()))
    for one, other in zip(plain, ours):
        assert same_bits(one, other)

    model = nn.Linear(3, 3)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    more = nn.Linear(3, 4 if bps.rank() == 1 else 3)
    refused(bps.Code.CONFIGURATION, "the group that is added of rank 1 is not that of rank 0",
            lambda: optimizer.add_param_group({"params": more.parameters()}))
    assert len(optimizer.param_groups) == 1


def refusals():
    """What was refused, on all ranks or on one, changes nothing for the calls that follow."""
    model = nn.Linear(3, 3)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        refused(bps.Code.INVALID_ARGUMENT, "complex64",
                lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3, dtype=torch.complex64))]}))
    assert len(optimizer.param_groups) == 1
    if bps.rank() == 1:
        refused(bps.Code.INVALID_ARGUMENT, "has another DistributedOptimizer",
                lambda: bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)))
    other = nn.Linear(3, 3)
    both = [(model, optimizer), (other, bps.DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1)))]
    for one, its in both:
        one(torch.full((2, 3), 1.0 + bps.rank())).sum().backward()
        its.step()
        assert torch.equal(one.weight.grad, torch.full((3, 3), 1.0 + bps.size()))


def gan():
    """The generator's loss gives the discriminator gradients, too, which its zero_grad() clears. All ranks have the same
    data, so the bits are those of one process."""
    def train(distribute):
        torch.manual_seed(3)
        models_ = nn.Linear(4, 6), nn.Linear(6, 1)
        generator, discriminator = models_
        of_g, of_d = (distribute(torch.optim.SGD(model.parameters(), lr=0.1), model) for model in models_)
        for step in range(4):
            noise = torch.full((8, 4), 0.5 + step)
            of_d.zero_grad()
            (discriminator(generator(noise).detach()).mean() - discriminator(torch.ones(8, 6)).mean()).backward()
            of_d.step()
            of_g.zero_grad()
            (-discriminator(generator(noise)).mean()).backward()
            of_g.step()
        return models_

    plain = train(lambda optimizer, model: optimizer)
    ours = train(lambda optimizer, model: bps.DistributedOptimizer(optimizer, model.named_parameters()))
    for one, other in zip(plain, ours):
        assert same_bits(one, other)


def expanded():
    """A buffer whose elements are one."""
    model = nn.Module()
    model.register_buffer("scale", torch.tensor([[1.0], [2.0]]).mul(1 + bps.rank()).expand(2, 5))
    bps.broadcast_parameters(model.state_dict(), 1)
    assert torch.equal(model.scale, torch.tensor([[2.0], [4.0]]).expand(2, 5)) and model.scale.stride() == (1, 0)


def tied():
    """Weights with two names are one parameter."""
    torch.manual_seed(2)
    one, two = nn.Linear(3, 3), nn.Linear(3, 3)
    two.weight = one.weight
    named = [(f"{name}.{key}", value) for name, module in (("one", one), ("two", two)) for key, value in module.named_parameters()]
    parameters = list(dict.fromkeys(value for _, value in named))
    assert (len(named), len(parameters)) == (4, 3)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), named)
    for _ in range(3):
        optimizer.zero_grad()
        two(one(torch.full((4, 3), 1.0 + bps.rank()))).sum().backward()
        optimizer.step()
        check_alike(one)
        check_alike(two)


def frozen():
    """Servers have no memory for what is frozen, and it may be of any type. What is thawed is averaged like the rest."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 3000).requires_grad_(False), nn.Linear(3000, 1000).requires_grad_(False), nn.Linear(1000, 2))
    model.register_parameter("mask", nn.Parameter(torch.ones(3, dtype=torch.bool), requires_grad=False))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(4):
        if step == 2:
            model[0].requires_grad_(True)
        before = model[0].weight.clone()
        optimizer.zero_grad()
        model(torch.full((4, 2), 1.0 + bps.rank())).sum().backward()
        optimizer.step()
        check_alike(model)
        assert torch.equal(before, model[0].weight) == (step < 2), step


def folds(number):
    """A new model and optimizer each time, as in cross-validation: servers have memory for two of them."""
    for fold in range(int(number)):
        torch.manual_seed(fold)
        model = nn.Linear(500, 500)
        own = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(own, model.named_parameters()) if fold % 2 else None
        if optimizer is None:
            model = distributed(model)
            optimizer = own
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.full((4, 500), float(bps.rank()))).sum().backward()
            optimizer.step()
        if fold in (int(number) // 4, int(number) - 1):
            check_alike(model)
            print(f"fold {fold}", flush=True)
            sys.stdin.readline()
    left = [name for name in bps.client()._declared if name.startswith(("optimizer", "ddp"))]
    assert len(left) < 12, left


def distributed(model):
    """DDP, averaged by bps."""
    if not torch.distributed.is_initialized():
        bps.init_process_group()
    model = nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(bps.state(), bps.comm_hook)
    return model


def under_other_names():
    """What Horovod's scripts call besides."""
    assert torch.equal(bps.broadcast(torch.tensor([bps.rank()]), 1), torch.tensor([1]))
    whole = torch.arange(6).reshape(2, 3) * (bps.rank() + 1)
    assert torch.equal(bps.broadcast_(whole.t(), 1), 2 * torch.arange(6).reshape(2, 3).t()) and whole[1, 2] == 10
    last = torch.tensor([bps.size()])
    for op, expected in ((bps.Min, 1), (bps.Max, bps.size()), (bps.Product, math.factorial(bps.size()))):
        assert bps.allreduce(torch.tensor([bps.rank() + 1]), op=op).item() == expected
    assert bps.synchronize(bps.allreduce_async(torch.tensor([bps.rank() + 1]), op=bps.Max)).equal(last)
    mine = torch.tensor([bps.rank() + 1])
    assert bps.allreduce_async_(mine, op=bps.Max).synchronize().equal(last) and mine.equal(last)


def many_at_once():
    handles = [bps.push_pull_async(torch.full((1000,), float(bps.rank() + i))) for i in range(20)]
    ranks = bps.size()
    for i, handle in reversed(list(enumerate(handles))):
        assert (bps.synchronize(handle) == (ranks - 1) / 2 + i).all()
        assert bps.poll(handle)


def begin_alike():
    root = bps.size() - 1
    model = models.seeded(models.WithBatchNorm, seed=bps.rank())
    model.norm.num_batches_tracked += bps.rank()
    model.register_buffer("mask", torch.eye(4, dtype=torch.bool) if bps.rank() == root else torch.zeros(4, 4, dtype=torch.bool))
    bps.broadcast_parameters(model.state_dict(), root_rank=root)
    expected = models.seeded(models.WithBatchNorm, seed=root)
    assert same_bits(model, expected)
    assert model.norm.num_batches_tracked == root and torch.equal(model.mask, torch.eye(4, dtype=torch.bool))

    optimizer = torch.optim.Adam(model.parameters(), lr=0.5 if bps.rank() == root else 0.1)
    if bps.rank() == root:
        models.square_loss(model, 0, 0).backward()
        optimizer.step()
    bps.broadcast_optimizer_state(optimizer, root_rank=root)
    state = optimizer.state_dict()
    assert state["param_groups"][0]["lr"] == 0.5
    assert all(bps.broadcast_object(state, root)["state"][0][key].equal(value) for key, value in state["state"][0].items())
    assert bps.broadcast_object({"epoch": bps.rank(), "much": b"x" * 3_000_000}, root) == {"epoch": root, "much": b"x" * 3_000_000}


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def optimizer(kind, wait, passes, steps):
    """The bits of one process. kind: sgd or adam; wait: barrier or layers."""
    passes, steps = int(passes), int(steps)
    reference = models.seeded(models.Mixed)
    plain = OPTIMIZERS[kind](reference.parameters())
    model = models.seeded(models.Mixed, seed=bps.rank())
    bps.broadcast_parameters(models.seeded(models.Mixed).state_dict() if bps.rank() == 0 else model.state_dict())
    if bps.rank() == 0:
        model.load_state_dict(reference.state_dict())
    optimizer = bps.DistributedOptimizer(OPTIMIZERS[kind](model.parameters()), model.named_parameters(),
                                         backward_passes_per_step=passes, model=model if wait == "layers" else None)
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 2, 0.7) for o in (plain, optimizer)]
    for step in range(steps):
        if step == steps // 2:  # frozen in the middle
            for one in (model, reference):
                one.frozen.requires_grad_(False)
                one.frozen.weight.grad = one.frozen.bias.grad = None

        def loss_of(one, rank):
            for part in range(passes):
                models.language_loss(one, rank, step * passes + part, use_extra=(rank + step) % 2 == 0).backward()

        optimizer.zero_grad(set_to_none=True)
        loss_of(model, bps.rank())
        optimizer.step()
        models.averaged_gradients(reference, bps.size(), loss_of)
        plain.step()
        for scheduler in schedulers:
            scheduler.step()
        if wait == "barrier" or step % 3 == 2:
            assert same_bits_of(model.state_dict(), reference.state_dict()), f"step {step}"
            check_alike(model)
    assert same_bits_of(model.state_dict(), reference.state_dict())
    with torch.no_grad():
        model.eval()(models.tokens(0, 0))


def same_bits_of(mine, theirs):
    return list(mine) == list(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)


def clipping():
    """synchronize(), clip, step(): averages are taken once."""
    model, reference = models.seeded(models.Mixed), models.seeded(models.Mixed)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        models.language_loss(model, bps.rank(), step).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        models.averaged_gradients(reference, bps.size(), lambda one, rank: models.language_loss(one, rank, step).backward())
        nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
        plain.step()
        assert same_bits(model, reference)


def changed_under_way():
    """Clipped, cleared or replaced without synchronize(): an error, and never an average of something else."""
    for wait in ("barrier", "layers"):
        for change in (lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.05),
                       lambda model: model.zero_grad(set_to_none=True), lambda model: model.zero_grad(set_to_none=False),
                       lambda model: setattr(model.weight, "grad", model.weight.grad / 2)):
            model = nn.Linear(3, 3)
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                                 model=model if wait == "layers" else None)
            model(torch.ones(3)).sum().backward()
            change(model)
            refused(bps.Code.INVALID_ARGUMENT, "gradient of weight was changed.*synchronize",
                    lambda: (optimizer.step(), model(torch.ones(3))))


def scaled():
    """A GradScaler, if this PyTorch has one for the CPU; its scales are powers of two, so bits are those of no scaling."""
    if not hasattr(torch.amp, "GradScaler"):
        return
    for wait in ("barrier", "layers"):
        model, reference = models.seeded(models.Mixed), models.seeded(models.Mixed)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                             model=model if wait == "layers" else None)
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(models.language_loss(model, bps.rank(), step)).backward()
            optimizer.synchronize()
            scaler.step(optimizer)
            scaler.update()
            models.averaged_gradients(reference, bps.size(), lambda one, rank: models.language_loss(one, rank, step).backward())
            plain.step()
            assert same_bits(model, reference)
        optimizer.zero_grad()
        scaler.scale(models.language_loss(model, bps.rank(), 3)).backward()
        refused(bps.Code.INVALID_ARGUMENT, "GradScaler.*synchronize", lambda: scaler.step(optimizer))


def compiled():
    """torch.compile, if there is one: it does not trace the hooks that make the updates."""
    if not hasattr(getattr(torch, "compiler", None), "disable"):
        return
    for wait in ("layers", "barrier"):
        model, reference = (models.seeded(lambda: nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))) for _ in "12")
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                             model=model if wait == "layers" else None)
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        fast = torch.compile(model)
        for step in range(4):
            optimizer.zero_grad()
            models.square_loss(fast, bps.rank(), step).backward()
            optimizer.step()
            models.averaged_gradients(reference, bps.size(), lambda one, rank: models.square_loss(one, rank, step).backward())
            plain.step()
        optimizer.synchronize()
        check_alike(model)
        torch.testing.assert_close(model.state_dict(), reference.state_dict())


def too_many_passes():
    model = nn.Linear(3, 3)
    bps.broadcast_parameters(model.state_dict())
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    loss = model(torch.ones(3)).sum()
    loss.backward(retain_graph=True)
    refused(bps.Code.INVALID_ARGUMENT, "backward_passes_per_step", loss.backward)
    refused(bps.Code.INVALID_ARGUMENT, "was changed while it was under way", optimizer.synchronize)


def refused(code, pattern, function):
    try:
        function()
    except bps.Error as error:
        assert error.code == code and re.search(pattern, str(error)), (error.code, error)
        return
    raise AssertionError(f"no error like {pattern}")


def another_model(how):
    """Rank 1's differs; all are told, and rank 1 what it is."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 4 if bps.rank() == 1 and how != "frozen" else 3))
    mine, theirs = r"float32 \[4, 3\]", r"float32 \[3, 3\]"
    if how == "frozen":
        model[1].weight.requires_grad_(bps.rank() != 1)
        mine = r"float32 \[3, 3\] frozen"
    pattern = "the model.* of rank 1 is not that of rank 0"
    pattern += f".*1.weight is {mine}, rank 0's {theirs}" if bps.rank() == 1 else ".*rank 1 can say"
    if how == "broadcast":
        refused(bps.Code.CONFIGURATION, pattern, lambda: bps.broadcast_parameters(model.state_dict()))
    else:
        refused(bps.Code.CONFIGURATION, pattern, lambda: bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()))


def another_shape():
    refused(bps.Code.CONFIGURATION, "mismatch.*1[02].*1[02]",
            lambda: bps.push_pull(torch.zeros(10 if bps.rank() == 1 else 12), "mismatch"))


def not_possible():
    """What is refused before anything is sent."""
    invalid = bps.Code.INVALID_ARGUMENT
    refused(invalid, "loss is in the memory of meta.*CUDA GPUs only", lambda: bps.push_pull(torch.zeros(3, device="meta"), "loss"))
    refused(invalid, "torch.bool, which cannot be reduced", lambda: bps.push_pull(torch.zeros(3, dtype=torch.bool)))
    refused(invalid, "sparse", lambda: bps.push_pull(torch.eye(3).to_sparse()))
    for what in (bps.allreduce, bps.allreduce_, bps.push_pull, bps.push_pull_async, bps.broadcast, bps.broadcast_):
        refused(invalid, "the tensor is a float, not a tensor", lambda: what(0.5))
    model = nn.Linear(3, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    refused(invalid, "lacks 1 of the optimizer's 2", lambda: bps.DistributedOptimizer(sgd, [("weight", model.weight)]))
    torch.optim.lr_scheduler.StepLR(sgd, 1)
    refused(invalid, "schedulers after", lambda: bps.DistributedOptimizer(sgd))
    sgd = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    assert isinstance(sgd, torch.optim.SGD)
    refused(invalid, "distributed already", lambda: bps.DistributedOptimizer(sgd))
    refused(invalid, "come too late: job", lambda: bps.init(job="another"))


def flat():
    """References and memory over ten thousand steps."""
    import gc
    import resource

    model = nn.Linear(10, 3)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters())

    def steps(number):
        for _ in range(number):
            optimizer.zero_grad(set_to_none=True)
            model(torch.ones(2, 10)).sum().backward()
            optimizer.step()
        gc.collect()
        return len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = steps(1000)
    after = steps(10_000)
    assert after[0] - before[0] < 100, (before, after)
    assert after[1] - before[1] < 4096, (before, after)  # KiB


def train_for_killing(steps):
    """Says that it is in the middle, and goes on when it is told to."""
    model = models.seeded(models.WithBatchNorm)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    for step in range(int(steps)):
        if step == int(steps) // 2:
            print("middle", flush=True)
            sys.stdin.readline()
        optimizer.zero_grad()
        models.square_loss(model, bps.rank(), step).backward()
        optimizer.step()
    print("digest", models.digest(model))


def killed_in_a_step(how):
    model = models.seeded(models.WithBatchNorm)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(),
                                         model=model if how == "layers" else None)
    for step in range(1000):
        optimizer.zero_grad()
        loss = models.square_loss(model, bps.rank(), step)
        if step == 3 and bps.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()


def interrupted():
    """Rank 1 takes no part in the second step; rank 0 gets Ctrl-C while it waits in it. In the first, PyTorch imports for seconds."""
    model = models.seeded(models.WithBatchNorm)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    models.square_loss(model, bps.rank(), 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    print("waiting", flush=True)
    if bps.rank() == 0:
        models.square_loss(model, 0, 1).backward()
        optimizer.step()
    bps.barrier()


def main(functions):
    torch.set_num_threads(1)
    bps.init()
    for case in sys.argv[1:]:
        function, *arguments = case.split(":")
        functions[function](*arguments)
        print("right:", case, flush=True)


if __name__ == "__main__":
    main(globals())
