"""Workers of torch_test.py for sparse gradients; as torch_worker.py."""
import copy

import torch
import torch_models as models
from optimizer_worker import set_of
from torch import nn
from torch_worker import check_alike, main, refused, same_bits

import bps.torch as bps


class Words(nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        self.embedding = nn.Embedding(30, 6, sparse=sparse)
        self.head = nn.Linear(6, 30)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def sparse():
    """Each rank has other rows, and each other numbers of them."""
    def loss_of(model, rank, step):
        data = models.tokens(rank, step)[:, :3 + rank]
        return nn.functional.cross_entropy(model(data[:, :-1]).reshape(-1, 30), data[:, 1:].reshape(-1))

    def make(model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    for how in ({}, {"sparse_as_dense": True}, {"gradient_predivide_factor": 2.0}):
        before = set(bps.client()._declared)
        model, dense = models.seeded(Words), models.seeded(lambda: Words(sparse=False))
        optimizer, plain = bps.DistributedOptimizer(make(model), model.named_parameters(), **how), make(dense)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, bps.rank(), step).backward()
            optimizer.step()
            assert model.embedding.weight.grad.is_sparse
            models.averaged_gradients(dense, bps.size(), lambda one, rank: loss_of(one, rank, step).backward())
            plain.step()
            assert same_bits(model, dense), (how, step)
        made = {name for name in set(bps.client()._declared) - before if name.startswith("optimizer")}
        assert len(made) == (3 if "sparse_as_dense" in how else 2), made
    # Sums of halves are made in f32.
    table = nn.Embedding(10, 4, sparse=True).half()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), op=bps.Sum)
    (table(torch.tensor([1, 1 + bps.rank()])).sum() * 3).backward()
    optimizer.synchronize()
    expected = torch.zeros(10, 4)
    for rank in range(bps.size()):
        for row in (1, 1 + rank):
            expected[row] += 3
    assert torch.equal(table.weight.grad.to_dense().float(), expected), table.weight.grad
    refused(bps.Code.INVALID_ARGUMENT, "is sparse, and op is MAX", lambda: step_with(Words(), op=bps.Max))


def step_with(model, **how):
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **how)
    model(models.tokens(0, 0)).sum().backward()
    optimizer.step()


def sparse_on_some_ranks():
    """In a step, also the first, some ranks look nothing up, or all gradients are gone."""
    for first in (0, 1):
        table, reference = (models.seeded(lambda: nn.Embedding(12, 3, sparse=True)) for _ in "12")
        optimizer = bps.DistributedOptimizer(torch.optim.SparseAdam(table.parameters(), lr=0.01), table.named_parameters())
        plain = torch.optim.SparseAdam(reference.parameters(), lr=0.01)
        for step in range(4):
            looked_up = [rank for rank in range(bps.size()) if (rank + step) % 3 != first]
            optimizer.zero_grad()
            if bps.rank() in looked_up:
                table(torch.tensor([step, bps.rank()])).pow(2).sum().backward()
            optimizer.step()
            total = torch.zeros(12, 3)
            for rank in looked_up:
                twin = copy.deepcopy(reference)
                twin.zero_grad()
                twin(torch.tensor([step, rank])).pow(2).sum().backward()
                total += twin.weight.grad.to_dense()
            reference.weight.grad = (total / bps.size()).to_sparse(1)
            plain.step()
            assert same_bits(table, reference), step


def sparse_with_others():
    """In a set, with `model=`, accumulated, and a table that is tied to a dense layer."""
    for how in ({"process_set": set_of(0, 2)}, {"model": True}, {"backward_passes_per_step": 2}):
        model = models.seeded(Words)
        passes = how.get("backward_passes_per_step", 1)
        ranks = [0, 2] if "process_set" in how and bps.rank() != 1 else [1] if "process_set" in how else list(range(bps.size()))
        options = {**how, "model": model} if "model" in how else how
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options)
        reference = models.seeded(lambda: Words(sparse=False))
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(3):
            def loss_of(one, index):
                for part in range(passes):
                    models.language_loss(one, ranks[index], step + 10 * part).backward()

            optimizer.zero_grad()
            loss_of(model, ranks.index(bps.rank()))
            optimizer.step()
            models.averaged_gradients(reference, len(ranks), loss_of)
            plain.step()
        optimizer.finish()
        torch.testing.assert_close(model.state_dict(), reference.state_dict())  # a rank's own duplicates add up in another order
        del optimizer

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 6, sparse=True)

        def forward(self, tokens, both):
            x = self.embedding(tokens)
            return x @ self.embedding.weight.t() if both else x.repeat(1, 1, 5)

    def loss_of(model, rank, step):  # dense where both uses add up, sparse elsewhere
        return models.language_loss(model, rank, step, both=rank == 0)

    model = models.seeded(Tied)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    reference = models.seeded(Tied)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, bps.rank(), step).backward()
        optimizer.step()
        total = torch.zeros(30, 6)
        for rank in range(bps.size()):
            reference.zero_grad()
            reference.embedding.weight.grad = None
            loss_of(reference, rank, step).backward()
            gradient = reference.embedding.weight.grad
            total += gradient.to_dense() if gradient.is_sparse else gradient
        with torch.no_grad():
            reference.embedding.weight -= 0.1 * (total / bps.size())
        torch.testing.assert_close(model.state_dict(), reference.state_dict())
        check_alike(model)


if __name__ == "__main__":
    main(globals())
