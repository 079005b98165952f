"""Workers of torch_test.py for what DistributedOptimizer is given: every optimizer, parameters of every kind, and Horovod's
arguments; as torch_worker.py."""
import copy
import inspect
import types

import torch
import torch_models as models
from torch import nn
from torch_worker import check_alike, main, refused, same_bits

import bps.torch as bps


class Net(nn.Module):
    """Matrices, so that Muon takes it; ranks use all of it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 30, bias=False)
        self.last = nn.Linear(30, 5, bias=False)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def trained_alike(make, steps=4, distribute=bps.DistributedOptimizer, kind=Net, loss_of=models.square_loss, **how):
    """With each rank's data against one process that has the data of all; make(model): the optimizer of a model."""
    model, reference = models.seeded(kind), models.seeded(kind)
    optimizer, plain = distribute(make(model), model.named_parameters(), **how), make(reference)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, bps.rank(), step).backward()
        optimizer.step()
        models.averaged_gradients(reference, bps.size(), lambda one, rank: loss_of(one, rank, step).backward())
        plain.step()
    check_alike(model)
    return model, reference


def every_optimizer():
    """Of torch.optim, and its ways to step that this PyTorch has for the CPU."""
    tried = []
    for name, kind in sorted(vars(torch.optim).items()):
        if not inspect.isclass(kind) or kind in (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam):
            continue
        for how in ({}, {"foreach": True}, {"fused": True}):
            if not set(how) <= set(inspect.signature(kind).parameters):
                continue
            try:
                make = lambda model: kind(model.parameters(), lr=0.01, **how)
                trial = nn.Linear(2, 2, bias=False)
                one = make(trial)
                trial(torch.ones(2)).sum().backward()
                one.step()
            except (RuntimeError, NotImplementedError):  # fused is for GPUs only in older ones
                continue
            model, reference = trained_alike(make)
            assert same_bits(model, reference), (name, how)
            tried.append((name, *how))
    assert len(tried) > 20, tried


def lbfgs():
    """Its step evaluates several times, and decides by the loss: of all ranks, or they would go different ways."""
    for search in (None, "strong_wolfe"):
        model, reference = models.seeded(Net), models.seeded(Net)

        def make(one):
            return torch.optim.LBFGS(one.parameters(), lr=0.5, max_iter=6, line_search_fn=search)

        optimizer, plain = bps.DistributedOptimizer(make(model), model.named_parameters()), make(reference)
        losses = []
        for step in range(3):
            def closure():
                optimizer.zero_grad()
                loss = models.square_loss(model, bps.rank(), step)
                loss.backward()
                return loss

            def of_all():
                losses = [models.square_loss(reference, rank, step) for rank in range(bps.size())]
                models.averaged_gradients(reference, bps.size(), lambda one, rank: models.square_loss(one, rank, step).backward())
                return sum(losses) / bps.size()

            losses.append((optimizer.step(closure), plain.step(of_all)))
        check_alike(model)
        for mine, theirs in losses:
            torch.testing.assert_close(mine, theirs.detach())
        torch.testing.assert_close(model.state_dict(), reference.state_dict(), rtol=1e-4, atol=1e-6)


class Sharp(torch.optim.Optimizer):
    """As optimizers of other packages: its closure is optional to the eye, and it calls it twice."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        for _ in range(2):
            with torch.enable_grad():
                loss = closure()
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.sub_(0.1 * parameter.grad)
        return loss


def closures():
    model, reference = models.seeded(Net), models.seeded(Net)
    optimizer, plain = bps.DistributedOptimizer(Sharp(model.parameters()), model.named_parameters()), Sharp(reference.parameters())
    for step in range(3):
        def closure():
            optimizer.zero_grad()
            loss = models.square_loss(model, bps.rank(), step)
            loss.backward()
            return loss

        def of_all():
            models.averaged_gradients(reference, bps.size(), lambda one, rank: models.square_loss(one, rank, step).backward())

        optimizer.step(closure)
        plain.step(of_all)
        assert same_bits(model, reference)


class Twins(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(20, 20), nn.Linear(20, 20)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))


def listed_twice():
    """Names of every way to list tied weights."""
    def listings(model):
        yield list(model.named_parameters()) * 2
        yield [(f"{name}.{key}", value) for name, part in model.named_children() for key, value in part.named_parameters()]
        if "remove_duplicate" in inspect.signature(model.named_parameters).parameters:
            yield list(model.named_parameters(remove_duplicate=False))

    for number in range(len(list(listings(Twins())))):
        how = lambda optimizer, named: bps.DistributedOptimizer(optimizer, list(listings(model_of[0]))[number])
        model_of = []

        def make(model):
            model_of.append(model)
            return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        before = set(bps.client()._declared)
        model, reference = trained_alike(make, distribute=how, kind=Twins)
        assert same_bits(model, reference)
        made = [name for name in set(bps.client()._declared) - before if name.startswith("optimizer")]
        assert len(made) == 3, made
    model = Net()
    refused(bps.Code.INVALID_ARGUMENT, "two parameters with the name it", lambda: bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), [("it", parameter) for parameter in model.parameters()]))


def frozen_and_thawed():
    """A frozen layer is on no server. Thawed, it is averaged as soon as backward has its gradient."""
    model, reference = models.seeded(Net), models.seeded(Net)
    types_ = [torch.bool] + [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
    for one in (model, reference):
        one.first.requires_grad_(False)
        for number, dtype in enumerate(types_):
            one.register_parameter(f"odd{number}", nn.Parameter(torch.zeros(3).to(dtype), requires_grad=False))

    def make(one):
        return torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)

    before = set(bps.client()._declared)
    optimizer, plain = bps.DistributedOptimizer(make(model), model.named_parameters()), make(reference)
    for step in range(6):
        if step == 3:
            for one in (model, reference):
                one.first.requires_grad_(True)
        optimizer.zero_grad()
        models.square_loss(model, bps.rank(), step).backward()
        started = len(optimizer._exchange._started)
        optimizer.step()
        models.averaged_gradients(reference, bps.size(), lambda one, rank: models.square_loss(one, rank, step).backward())
        plain.step()
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(model.parameters(), reference.parameters())
                   if mine.dtype == torch.float32), step
        made = {name for name in set(bps.client()._declared) - before if name.startswith("optimizer")}
        assert len(made) == (1 if step < 3 else 2), made
        assert started == (1 if step <= 3 else 2), (step, started)


def unused_on_a_rank():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.common, self.of_one = nn.Linear(20, 20), nn.Linear(20, 20)

        def forward(self, x, both):
            x = torch.tanh(self.common(x))
            return self.of_one(x) if both else x

    def loss_of(model, rank, step):
        return models.square_loss(model, rank, step, both=rank == 0 and step > 0)

    for make in (lambda m: torch.optim.Adam(m.parameters(), lr=0.01), lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9)):
        model, reference = trained_alike(make, kind=Branches, loss_of=loss_of)
        assert same_bits(model, reference)


def accumulated_and_clipped():
    """Bits of one process that adds up as many backward passes, and clips the average."""
    model, reference = models.seeded(Net), models.seeded(Net)
    make = lambda one: torch.optim.AdamW(one.parameters(), lr=0.01)
    optimizer = bps.DistributedOptimizer(make(model), model.named_parameters(), backward_passes_per_step=3)
    plain = make(reference)
    for step in range(3):
        def loss_of(one, rank):
            for part in range(3):
                (models.square_loss(one, rank, 3 * step + part) / 3).backward()

        optimizer.zero_grad()
        loss_of(model, bps.rank())
        optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with optimizer.skip_synchronize():
            optimizer.step()
        models.averaged_gradients(reference, bps.size(), loss_of)
        assert norm == nn.utils.clip_grad_norm_(reference.parameters(), 0.01)
        plain.step()
        assert same_bits(model, reference)


def passes_that_differ():
    """As when an epoch does not divide by them, with all ranks on the same data: a step has fewer or more than usual."""
    def train(distribute, at_the_end):
        model = models.seeded(Net)
        optimizer = distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for _ in range(3):
            for part in range(10):
                models.square_loss(model, 0, part).backward()
                if part % 4 == 3 or (at_the_end and part == 9):
                    optimizer.step()
                    optimizer.zero_grad()
        return models.digest(model)

    for at_the_end, passes in ((True, 4), (True, 1000), (False, 1000)):
        ours = train(lambda optimizer, model: bps.DistributedOptimizer(
            optimizer, model.named_parameters(), backward_passes_per_step=passes), at_the_end)
        assert ours == train(lambda optimizer, model: optimizer, at_the_end)


def two_optimizers():
    """Of parts of a model, each with a backward pass of its own, which gives the other's parameters gradients, too."""
    def train(distribute):
        model = models.seeded(Net)
        both = [distribute(torch.optim.SGD(part.parameters(), lr=0.1), part) for part in (model.first, model.last)]
        for step in range(4):
            for optimizer in both:
                optimizer.zero_grad()
                models.square_loss(model, 0, step).backward()
                optimizer.step()
        return models.digest(model)

    ours = train(lambda optimizer, part: bps.DistributedOptimizer(optimizer, part.named_parameters()))
    assert ours == train(lambda optimizer, part: optimizer)


def loaded_on_one_rank():
    """As when only rank 0 reads a checkpoint."""
    saved = models.seeded(Net)
    its = torch.optim.Adam(saved.parameters(), lr=0.03)
    models.square_loss(saved, 0, 9).backward()
    its.step()
    model = models.seeded(Net, seed=bps.rank())
    optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
    if bps.rank() == 0:
        model.load_state_dict(saved.state_dict())
        optimizer.load_state_dict(copy.deepcopy(its.state_dict()))
    bps.broadcast_parameters(model.state_dict())
    bps.broadcast_optimizer_state(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.03
    for step in range(3):
        optimizer.zero_grad()
        models.square_loss(model, bps.rank(), step).backward()
        optimizer.step()
        models.averaged_gradients(saved, bps.size(), lambda one, rank: models.square_loss(one, rank, step).backward())
        its.step()
        assert same_bits(model, saved)


def scaled_with_infinity():
    """A gradient that is infinite on one rank is so on all: all skip the step, and halve the scale."""
    if not hasattr(torch.amp, "GradScaler"):
        return
    for options in ({}, {"fused": True}):
        model = models.seeded(Net)
        optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01, **options), model.named_parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for step in range(3):
            before = models.digest(model)
            optimizer.zero_grad()
            loss = models.square_loss(model, bps.rank(), step) * (float("inf") if step == 1 and bps.rank() == 0 else 1.0)
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            assert (models.digest(model) == before) == (step == 1), step
            assert scaler.get_scale() == (256.0 if step < 1 else 128.0)
            check_alike(model)


def schedulers():
    """Their state, and that of the optimizer, come back from a file."""
    import io

    kinds = torch.optim.lr_scheduler
    makers = [lambda o: kinds.OneCycleLR(o, 0.1, total_steps=20), lambda o: kinds.CosineAnnealingWarmRestarts(o, 5),
              lambda o: kinds.ReduceLROnPlateau(o), lambda o: kinds.LambdaLR(o, lambda step: 0.9 ** step),
              lambda o: kinds.CosineAnnealingLR(o, 10),
              lambda o: kinds.SequentialLR(o, [kinds.ConstantLR(o), kinds.ExponentialLR(o, 0.9)], [2]),
              lambda o: kinds.ChainedScheduler([kinds.StepLR(o, 2), kinds.ExponentialLR(o, 0.9)])]
    for make in makers:
        model = models.seeded(Net)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters())
        scheduler = make(optimizer)

        def step(number):
            optimizer.zero_grad()
            models.square_loss(model, bps.rank(), number).backward()
            optimizer.step()
            scheduler.step(*([1.0] if isinstance(scheduler, kinds.ReduceLROnPlateau) else []))

        for number in range(3):
            step(number)
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()], file)
        step(3)
        expected = models.digest(model)
        file.seek(0)
        state = torch.load(file, **({"weights_only": False} if torch.__version__ >= "2" else {}))
        for one, its in zip((model, optimizer, scheduler), state):
            one.load_state_dict(its)
        step(3)
        assert models.digest(model) == expected


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def predivided():
    """Averages are the same up to rounding, with a factor of two bit for bit; halves do not overflow on their way."""
    for factor in (2.0, bps.size(), 3.7):
        model, reference = trained_alike(sgd, gradient_predivide_factor=factor)
        torch.testing.assert_close(model.state_dict(), reference.state_dict(), rtol=1e-5, atol=1e-7)
        assert factor != 2.0 or same_bits(model, reference)
    model = nn.Linear(1, 1, bias=False)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(),
                                         compression=bps.Compression.fp16, gradient_predivide_factor=4.0)
    (model.weight * 1e5).sum().backward()  # beyond the greatest number of fp16
    optimizer.synchronize()
    torch.testing.assert_close(model.weight.grad, torch.full((1, 1), 1e5), rtol=1e-3, atol=0.0)

    def refuses(pattern, **how):
        refused(bps.Code.INVALID_ARGUMENT, pattern, lambda: bps.DistributedOptimizer(sgd(Net()), **how))

    refuses("with op SUM", gradient_predivide_factor=2.0, op=bps.Sum)
    refuses("takes a positive number", gradient_predivide_factor=0.0)
    refuses("is to be a number", gradient_predivide_factor="2")


def groups():
    """Nothing depends on them; their arguments are checked as Horovod does."""
    import warnings

    model = Net()
    several = [[model.first.weight], [model.last.weight]]
    for how in ({"groups": 2}, {"groups": several}, {"groups": several[:1]}):
        optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), **how)
        del optimizer
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), num_groups=2)
    assert [one.category for one in seen] == [DeprecationWarning]
    del optimizer
    for wrong, pattern in ((0, "a number of groups"), (-1, "a number of groups"), (2.5, "a number of groups"),
                           ([[1]], "no tensor"), ([several[0], several[0]], "a parameter twice")):
        refused(bps.Code.INVALID_ARGUMENT, pattern, lambda: bps.DistributedOptimizer(sgd(model), groups=wrong))


def operations():
    model = models.seeded(Net)
    for op, of_all in ((bps.Sum, sum), (bps.Average, lambda all: sum(all) / len(all)), (bps.Max, max), (bps.Min, min)):
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters(), op=op)
        optimizer.zero_grad()
        (model.first.weight * (1.0 + bps.rank())).sum().backward()
        optimizer.step()
        assert (model.first.weight.grad == of_all([1.0 + rank for rank in range(bps.size())])).all(), op
        del optimizer
    for wrong in ("Adasum", 77, None):
        refused(bps.Code.INVALID_ARGUMENT, "op=.*no Adasum", lambda: bps.DistributedOptimizer(sgd(model), op=wrong))
    refused(bps.Code.INVALID_ARGUMENT, "mode='other'", lambda: bps.DistributedOptimizer(sgd(model), mode="other"))
    refused(bps.Code.INVALID_ARGUMENT, "is for mode='async'", lambda: bps.DistributedOptimizer(sgd(model), staleness=3))


def set_of(*ranks):
    return types.SimpleNamespace(ranks=list(ranks))


def sets():
    """Of three ranks, two sets that share rank 0, with a model each; who is in none trains alone."""
    for ranks in ((2, 0), (0, 1), (0, 1, 2), (1,), (0, 2)):
        everyone = sorted(ranks)
        model, reference = models.seeded(Net), models.seeded(Net)
        optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), process_set=set_of(*ranks),
                                             backward_passes_per_step=2)
        plain = sgd(reference)
        mine = everyone if bps.rank() in ranks else [bps.rank()]
        for step in range(3):
            def loss_of(one, index):
                for part in range(2):
                    models.square_loss(one, mine[index], 2 * step + part).backward()

            optimizer.zero_grad()
            loss_of(model, mine.index(bps.rank()))
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
            models.averaged_gradients(reference, len(mine), loss_of)
            plain.step()
            assert same_bits(model, reference), (ranks, step)
        if bps.rank() == 0 and 0 in ranks:  # alone, and so it takes no number
            refused(bps.Code.INVALID_ARGUMENT, "has another DistributedOptimizer", lambda: bps.DistributedOptimizer(
                sgd(model), model.named_parameters(), process_set=set_of(*ranks)))
    for wrong, pattern in ((3, "list `ranks`"), (set_of(), "ranks of this job are 0 to 2"), (set_of(0, 3), "ranks of this job")):
        refused(bps.Code.INVALID_ARGUMENT, pattern, lambda: bps.DistributedOptimizer(sgd(Net()), process_set=wrong))


def sets_that_differ():
    """A model that is another one on a rank of the set."""
    model = nn.Linear(3, 4 if bps.rank() == 2 else 3)
    make = lambda: bps.DistributedOptimizer(sgd(model), model.named_parameters(), process_set=set_of(1, 2))
    if bps.rank() == 0:
        make().step()
        return
    pattern = "of rank 2 is not that of rank 1" + (r".*its weight is float32 \[4, 3\], rank 1's" if bps.rank() == 2 else "")
    refused(bps.Code.CONFIGURATION, pattern, make)


def refused_with_a_name():
    """Parameters that cannot be exchanged, on all ranks; and a layer in two checkpoints."""
    from torch.utils.checkpoint import checkpoint

    invalid = bps.Code.INVALID_ARGUMENT
    lazy = nn.LazyLinear(5)
    refused(invalid, "weight has no shape yet.*one forward pass",
            lambda: bps.DistributedOptimizer(torch.optim.SGD(lazy.parameters(), lr=0.1), lazy.named_parameters()))
    odd = nn.ParameterDict({"odd": nn.Parameter(torch.zeros(3, dtype=torch.complex64))})
    refused(invalid, "odd has elements of torch.complex64", lambda: bps.DistributedOptimizer(sgd(odd), odd.named_parameters()))
    for reentrant in (True, False):
        layer = nn.Linear(20, 20)
        optimizer = bps.DistributedOptimizer(sgd(layer), layer.named_parameters())
        x = models.features(bps.rank(), 0).requires_grad_()
        for _ in range(2):
            x = checkpoint(layer, x, use_reentrant=reentrant)
        if reentrant:
            refused(invalid, "gradient of .* came 2 times.*use_reentrant=False", x.sum().backward)
            continue
        x.sum().backward()
        optimizer.step()
        check_alike_from(layer)


def check_alike_from(layer):
    """Gradients are alike, whatever the parameters are."""
    mine = [p.grad.tolist() for p in layer.parameters()]
    assert bps.broadcast_object(mine) == mine


if __name__ == "__main__":
    main(globals())
