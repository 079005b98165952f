"""Small models, their data, and what one process computes that adds the ranks' gradients in rank order."""
import copy
import hashlib

import torch
from torch import nn


class Mixed(nn.Module):
    """Embedding, attention (which looks into its out_proj without calling it), LayerNorm, and a branch that only even ranks
    use."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)
        self.norm = nn.LayerNorm(12)
        self.extra = nn.Linear(12, 12)
        self.frozen = nn.Linear(12, 12)
        self.head = nn.Linear(12, 30)

    def forward(self, tokens, use_extra=True):
        x = self.embedding(tokens)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        if use_extra:
            x = x + self.extra(x)
        return self.head(self.frozen(x))


class WithBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 300)
        self.norm = nn.BatchNorm1d(300)
        self.middle = nn.Linear(300, 300)
        self.unused = nn.Linear(300, 300)
        self.last = nn.Linear(300, 5)

    def forward(self, x, use_unused=False):
        x = torch.relu(self.norm(self.first(x)))
        x = self.unused(x) if use_unused else self.middle(x)
        return self.last(x)


def seeded(kind, seed=7):
    torch.manual_seed(seed)
    return kind()


def tokens(rank, step):
    return torch.randint(30, (4, 9), generator=torch.Generator().manual_seed(1000 * step + rank))


def features(rank, step):
    return torch.randn(16, 20, generator=torch.Generator().manual_seed(1000 * step + rank))


def language_loss(model, rank, step, **how):
    data = tokens(rank, step)
    return nn.functional.cross_entropy(model(data[:, :-1], **how).reshape(-1, 30), data[:, 1:].reshape(-1))


def square_loss(model, rank, step, **how):
    return model(features(rank, step), **how).pow(2).mean()


def averaged_gradients(model, ranks, loss_of):
    """Sets model.*.grad to the average over the ranks' gradients, added in rank order; loss_of(model, rank)."""
    sums = {}
    for rank in range(ranks):
        twin = copy.deepcopy(model)
        twin.zero_grad(set_to_none=True)
        loss_of(twin, rank)
        for name, parameter in twin.named_parameters():
            if not parameter.requires_grad:
                continue
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            sums[name] = gradient.clone() if rank == 0 else sums[name] + gradient
    for name, parameter in model.named_parameters():
        parameter.grad = sums[name] / ranks if name in sums else None


def digest(model):
    state = hashlib.sha256()
    for parameter in model.parameters():
        state.update(parameter.detach().contiguous().numpy().tobytes())
    return state.hexdigest()
