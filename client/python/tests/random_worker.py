"""Workers of horovod_test.py: python3 random_worker.py FUNCTION:ARGUMENT, as torch_worker.py. A random program of bps.torch that
is right, the same on all ranks, and every value is checked."""
import os
import random
import signal
import threading

import torch
from torch_worker import main

import bps.torch as hvd

NAMES = [f"name {number}" for number in range(12)]
TYPES = [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8]
LENGTHS = [0, 1, 3, 20, 50, 200, 5000]


def value(key, rank, shape, dtype):
    """Small whole numbers, so that sums are exact."""
    generator = torch.Generator().manual_seed(random.Random(f"{key} {rank}").randrange(1 << 30))
    return torch.randint(0, 5, tuple(shape), generator=generator).to(dtype)


def check(key, got, expected):
    close = got.dtype == expected.dtype and got.shape == expected.shape and torch.allclose(got.double(), expected.double(), atol=0.01)
    assert close, f"{key}: {got} is not {expected}"


class Program:
    def __init__(self, seed):
        self.seed = seed
        self.rank, self.size = hvd.rank(), hvd.size()
        self.tensors = {name: [random.Random(f"{seed} {name}").choice(LENGTHS), torch.float32] for name in NAMES}
        self.used = set()  # names that all ranks know
        torch.manual_seed(1)
        self.model = torch.nn.Linear(6, 2)
        self.optimizer = hvd.DistributedOptimizer(torch.optim.SGD(self.model.parameters(), lr=0.0), self.model.named_parameters())
        self.step("first", list(range(self.size)))

    def plan(self, shared, there):
        """Of the calls of one step: those with names, which come in any order, and the others, in this one."""
        is_all = len(there) == self.size
        names = shared.sample(NAMES if is_all else sorted(self.used), shared.randrange(min(6, len(self.used)) + 1))
        if is_all and not self.used:
            names = list(NAMES)
        named = []
        for name in names:
            kept = self.tensors[name]
            if shared.random() < 0.15:
                kept[0] = shared.choice(LENGTHS)
            if shared.random() < 0.08:
                kept[1] = shared.choice(TYPES)
            average = kept[1].is_floating_point and shared.random() < 0.4
            named.append((name, shared.randrange(kept[0] + 1) if shared.random() < 0.1 else kept[0], kept[1], average))
        self.used.update(names)
        kinds = ["unnamed", "grouped", "step"] + (["allgather", "reducescatter", "alltoall", "broadcast"] if is_all else [])
        rest = [(shared.choice(kinds), shared.choice(TYPES), shared.randrange(6), shared.choice(there)) for _ in range(shared.randrange(4))]
        return named, rest

    def reduced(self, key, there, shape, dtype, average):
        total = sum(value(key, rank, shape, torch.float64) for rank in there)
        return (total / self.size if average else total).to(dtype)

    def start(self, key, call, there):
        """Returns what waits for it, and checks it."""
        kind, dtype, rows, root = call
        mine = value(key, self.rank, (rows, 2), dtype)
        if kind == "unnamed":
            handle = hvd.allreduce_async(mine, op=hvd.Sum)
            return lambda: check(key, handle.synchronize(), self.reduced(key, there, (rows, 2), dtype, False))
        if kind == "grouped":
            several = hvd.grouped_allreduce_async([mine, mine + mine], op=hvd.Sum)
            total = self.reduced(key, there, (rows, 2), dtype, False)
            return lambda: [check(key, got, total * times) for got, times in zip(several.synchronize(), (1, 2))]
        everyone = torch.cat([value(key, rank, (rows, 2), dtype) for rank in range(self.size)])
        if kind == "allgather":
            handle = hvd.allgather_async(mine)
            return lambda: check(key, handle.synchronize(), everyone)
        if kind == "reducescatter":
            handle = hvd.reducescatter_async(mine, op=hvd.Sum)
            begins = [0]
            for rank in range(self.size):
                begins.append(begins[-1] + rows // self.size + (rank < rows % self.size))
            whole = self.reduced(key, there, (rows, 2), dtype, False)
            return lambda: check(key, handle.synchronize(), whole[begins[self.rank]:begins[self.rank + 1]])
        if kind == "alltoall":
            handle = hvd.alltoall_async(mine, splits=[rows] + [0] * (self.size - 1))
            return lambda: check(key, handle.synchronize()[0], everyone if self.rank == 0 else everyone[:0])
        handle = hvd.broadcast_async(mine, root)
        return lambda: check(key, handle.synchronize(), value(key, root, (rows, 2), dtype))

    def step(self, key, there):
        self.optimizer.zero_grad()
        self.model(value(key, self.rank, (3, 6), torch.float32)).sum().backward()
        self.optimizer.step()
        column = sum(value(key, rank, (3, 6), torch.float32).sum(0) for rank in there) / self.size
        check(key, self.model.weight.grad, column.expand(2, 6))

    def run(self, key, shared, own, there):
        named, rest = self.plan(shared, there)
        if self.rank not in there:
            return []
        waits = []
        for name, count, dtype, average in own.sample(named, len(named)):
            handle = hvd.allreduce_async(value(f"{key} {name}", self.rank, (count,), dtype), name=name,
                                         op=hvd.Average if average else hvd.Sum)
            expected = self.reduced(f"{key} {name}", there, (count,), dtype, average)
            waits.append(lambda handle=handle, expected=expected, name=name: check(f"{key} {name}", handle.synchronize(), expected))
        for number, call in enumerate(rest):
            if call[0] == "step":
                self.step(f"{key} {number}", there)
            else:
                waits.append(self.start(f"{key} {number}", call, there))
        own.shuffle(waits)
        return waits


def programs(seed, epochs):
    """Ranks that have fewer steps join the others; any of them may be asleep for a moment, at any time."""
    pids = hvd.allgather_object(os.getpid())
    program = Program(seed)
    for epoch in range(int(epochs)):
        shared, own = random.Random(f"{seed} {epoch}"), random.Random(f"{seed} {epoch} {hvd.rank()}")
        steps = [shared.choice([0, 1, 2, 4]) for _ in pids]
        if hvd.rank() == 0:
            victim, begin = pids[-1], own.random() / 10
            threading.Timer(begin, os.kill, (victim, signal.SIGSTOP)).start()
            threading.Timer(begin + own.random() / 5, os.kill, (victim, signal.SIGCONT)).start()
        late = []
        for step in range(max(steps)):
            there = [rank for rank, count in enumerate(steps) if count > step]
            waits = program.run(f"{seed} {epoch} {step}", shared, own, there)
            if step + 1 == steps[hvd.rank()] and own.random() < 0.3:
                late = waits  # across join()
            else:
                for wait in waits:
                    wait()
        last = hvd.join()
        assert hvd.allgather_object(last) == [last] * len(pids), last
        for wait in late:
            wait()


if __name__ == "__main__":
    main(globals())
