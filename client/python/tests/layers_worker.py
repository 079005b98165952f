"""Workers of torch_test.py for what DistributedOptimizer does to the program around it, and that to it: as torch_worker.py."""
import copy
import io
import pickle

import torch
import torch_models as models
from torch import nn
from torch_worker import check_alike, main, refused, same_bits, same_bits_of

import bps.torch as bps


def sgd(model, **how):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **how)


def distributed(model, wait="layers", **how):
    return bps.DistributedOptimizer(sgd(model), model.named_parameters(), model=model if wait == "layers" else None, **how)


class TiedLayers(nn.Module):
    """What is defined first runs last."""

    def __init__(self):
        super().__init__()
        self.second = nn.Linear(20, 20)
        self.first = nn.Linear(20, 20)
        self.first.weight = self.second.weight

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class TiedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 30, bias=False)
        self.embedding = nn.Embedding(30, 6)
        self.embedding.weight = self.head.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def train_alike(kind, loss_of, steps=5):
    """`model=` against one process, bit for bit."""
    model, reference = models.seeded(kind), models.seeded(kind)
    optimizer, plain = distributed(model), sgd(reference)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, bps.rank(), step).backward()
        optimizer.step()
        models.averaged_gradients(reference, bps.size(), lambda one, rank: loss_of(one, rank, step).backward())
        plain.step()
    optimizer.synchronize()
    assert same_bits(model, reference)
    check_alike(model)


def tied():
    """A parameter of several modules is updated before the first of them runs, whichever is defined first."""
    train_alike(TiedLayers, models.square_loss)
    train_alike(TiedHead, models.language_loss)


def another_group():
    optimizer = distributed(nn.Linear(3, 3), "layers")
    refused(bps.Code.INVALID_ARGUMENT, "updates the layers of a model.*after the last group",
            lambda: optimizer.add_param_group({"params": nn.Linear(3, 3).parameters()}))
    assert len(optimizer.param_groups) == 1


def loaded():
    """After a step() what is loaded stays as it was loaded: a model, a part of one, and an optimizer's state."""
    model = models.seeded(TiedLayers)
    optimizer = distributed(model)

    def step(number):
        optimizer.zero_grad()
        models.square_loss(model, bps.rank(), number).backward()
        optimizer.step()

    for number in range(3):
        step(number)
    saved = copy.deepcopy((model.state_dict(), model.first.state_dict(), optimizer.state_dict()))
    for load, look in ((lambda: model.load_state_dict(saved[0]), lambda: (model.state_dict(), saved[0])),
                       (lambda: model.first.load_state_dict(saved[1]), lambda: (model.first.state_dict(), saved[1])),
                       (lambda: optimizer.load_state_dict(saved[2]), lambda: momenta(optimizer.state_dict(), saved[2]))):
        step(4)
        load()
        mine, theirs = look()
        assert same_bits_of(mine, theirs)
        optimizer.synchronize()
        mine, theirs = look()
        assert same_bits_of(mine, theirs)
    step(5)
    before = [p.detach().clone() for p in model.first.parameters()]
    part = model.first.state_dict()
    assert not all(map(torch.equal, part.values(), before))
    check_alike(model)


def momenta(*states):
    return [{number: state["momentum_buffer"] for number, state in one["state"].items()} for one in states]


def dropped():
    """An optimizer that is gone watches nothing, and what step() has promised is done all the same."""
    for wait in ("barrier", "layers"):
        model, reference = models.seeded(TiedLayers), models.seeded(TiedLayers)
        for start in range(0, 6, 3):
            plain, optimizer = sgd(reference), distributed(model, wait)
            refused(bps.Code.INVALID_ARGUMENT, "second.weight has another DistributedOptimizer", lambda: distributed(model, wait))
            for step in range(start, start + 3):
                optimizer.zero_grad()
                models.square_loss(model, bps.rank(), step).backward()
                optimizer.step()
                models.averaged_gradients(reference, bps.size(), lambda one, rank: models.square_loss(one, rank, step).backward())
                plain.step()
            del optimizer
            assert same_bits_of(model.state_dict(), reference.state_dict())
            model.zero_grad(set_to_none=True)
            for _ in range(2 if bps.rank() == 0 else 0):  # alone, and more often than an exchange would take it
                models.square_loss(model, 0, 0).backward()
            model.zero_grad(set_to_none=True)


def copied():
    """A copy of a model is a model of its own."""
    model = models.seeded(TiedLayers)
    optimizer = distributed(model)
    twin = copy.deepcopy(model)
    before = models.digest(twin)
    for step in range(3):
        models.square_loss(twin, bps.rank(), step).backward()
        optimizer.zero_grad()
        models.square_loss(model, bps.rank(), step).backward()
        optimizer.step()
    for one in (copy.deepcopy, pickle.dumps, lambda given: torch.save(given, io.BytesIO())):
        refused(bps.Code.INVALID_ARGUMENT, "lack updates.*synchronize", lambda: one(model))
    optimizer.synchronize()
    assert models.digest(twin) == before != models.digest(model)
    check_alike(model)
    saved = pickle.loads(pickle.dumps(model))
    assert same_bits(saved, model)
    models.square_loss(saved, bps.rank(), 0).backward()  # its hooks are of no use
    del optimizer
    assert same_bits(pickle.loads(pickle.dumps(model)), model)


def passes():
    """zero_grad() begins anew; step() with a closure; what is refused."""
    for wait in ("barrier", "layers"):
        model, reference = models.seeded(TiedLayers), models.seeded(TiedLayers)
        optimizer, plain = distributed(model, wait, backward_passes_per_step=2), sgd(reference)
        refused(bps.Code.INVALID_ARGUMENT, "takes at least 1", lambda: optimizer.set_backward_passes_per_step(0))
        models.square_loss(model, bps.rank(), 9).backward()
        for count in (2, 3):
            optimizer.set_backward_passes_per_step(count)

            def loss_of(one, rank):
                for part in range(count):
                    models.square_loss(one, rank, part).backward()

            def closure():
                optimizer.zero_grad()
                loss_of(model, bps.rank())
                return count

            assert optimizer.step(closure) == count
            models.averaged_gradients(reference, bps.size(), loss_of)
            plain.step()
            assert same_bits_of(model.state_dict(), reference.state_dict())
        loss_of(model, bps.rank())
        with optimizer.skip_synchronize():
            refused(bps.Code.INVALID_ARGUMENT, "under way.*synchronize", optimizer.step)
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        check_alike(model)


def horovods_order():
    """Arguments by their place, as Horovod's scripts may give them."""
    model = models.seeded(TiedLayers)
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), bps.Compression.fp16, 1, bps.Sum, 1.0, 0, None)
    models.square_loss(model, bps.rank(), 0).backward()
    optimizer.synchronize()
    assert all(torch.equal(p.grad, p.grad.half().float()) for p in model.parameters())
    assert bps.broadcast_object(bps.rank(), root_rank=1, name="the rank") == 1
    lbfgs = nn.Linear(3, 3)
    refused(bps.Code.INVALID_ARGUMENT, "LBFGS looks at all gradients at once.*`model=`",
            lambda: bps.DistributedOptimizer(torch.optim.LBFGS(lbfgs.parameters()), model=lbfgs))


if __name__ == "__main__":
    main(globals())
