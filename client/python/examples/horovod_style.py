#!/usr/bin/env python3
"""A script as they are written for Horovod; nothing but its import has changed.

    bps-run -n 4 -s 2 -- python3 horovod_style.py

Classifies points of ten clusters in 64 dimensions.
"""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import bps.torch as hvd  # was: import horovod.torch as hvd


def make_data(seed, samples):
    random = torch.Generator().manual_seed(seed)
    centers = torch.randn(10, 64, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(10, (samples,), generator=random)
    return TensorDataset(centers[labels] + torch.randn(samples, 64, generator=random), labels)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def train(model, optimizer, loader, sampler, epoch, log_interval):
    model.train()
    sampler.set_epoch(epoch)
    for number, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        if number % log_interval == 0 and hvd.rank() == 0:
            print(f"epoch {epoch} [{number * len(data)}/{len(sampler)}] loss {loss.item():.4f}")


def test(model, loader):
    model.eval()
    right, total = 0, 0
    with torch.no_grad():
        for data, target in loader:
            right += (model(data).argmax(1) == target).sum().item()
            total += len(target)
    accuracy = metric_average(right / total, "accuracy")
    if hvd.rank() == 0:
        print(f"accuracy {100 * accuracy:.1f} %")
    return accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--fp16-allreduce", action="store_true")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(42 + hvd.rank())
    torch.set_num_threads(1)

    train_set, test_set = make_data(2, 8000), make_data(3, 2000)
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    test_loader = DataLoader(test_set, batch_size=500,
                             sampler=DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank()))

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression,
                                         op=hvd.Average)
    for epoch in range(1, args.epochs + 1):
        train(model, optimizer, train_loader, sampler, epoch, args.log_interval)
        accuracy = test(model, test_loader)
    assert accuracy > 0.9, accuracy


if __name__ == "__main__":
    main()
