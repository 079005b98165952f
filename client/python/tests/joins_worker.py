"""Workers of horovod_test.py that join: python3 joins_worker.py FUNCTION[:ARGUMENT...] ... as torch_worker.py."""
import os
import signal
import threading

import torch
from horovod_worker import close, gathers, same  # noqa: F401: the tests run gathers after join()
from torch_worker import main, refused

import bps.torch as hvd


def joins():
    """Horovod's rules: sums count a joined rank as zeros, averages divide by all ranks, other operations are errors on the ranks
    that call them, and join() returns the rank that came last. Names are those that all ranks have used before."""
    rank, size = hvd.rank(), hvd.size()
    model = torch.nn.Linear(4, 3)
    hvd.broadcast_parameters(model.state_dict())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
    for epoch in range(3):
        steps = [2 + 2 * ((r + epoch) % size) for r in range(size)]
        for step in range(steps[rank]):
            there = [r for r in range(size) if step < steps[r]]
            total = float(sum(r + 1 for r in there))
            given = torch.full((7,), rank + 1.0)
            named = [hvd.allreduce_async(given, name=f"named.{number}", op=op) for number, op in enumerate((hvd.Sum, hvd.Average))]
            unnamed = hvd.allreduce_async(given, op=hvd.Sum)
            optimizer.zero_grad()
            model(torch.full((1, 4), rank + 1.0)).sum().backward()
            optimizer.step()
            close(model.weight.grad, torch.full((3, 4), total / size))
            close(named[0].synchronize(), torch.full((7,), total))
            close(named[1].synchronize(), torch.full((7,), total / size))
            close(unnamed.synchronize(), torch.full((7,), total))
            close(hvd.allreduce(torch.tensor([2 * rank]), op=hvd.Sum), torch.tensor([2 * sum(there)]))
            if len(there) < size:
                pattern = f"{size - len(there)} of {size} ranks have joined"
                refused(hvd.Code.CONFIGURATION, pattern, lambda: hvd.allgather(given))
                for call in (lambda: hvd.alltoall(torch.ones(size)), lambda: hvd.reducescatter(torch.ones(size)),
                             lambda: hvd.broadcast(given, there[-1]), lambda: hvd.allreduce(given, op=hvd.Max),
                             lambda: hvd.allreduce(given, name="named.0", op=hvd.Min)):
                    refused(hvd.Code.CONFIGURATION, "joined", call)
        last = hvd.join()
        assert hvd.allgather_object(last) == [last] * size and steps[last] == max(steps), (last, steps)
        close(hvd.allreduce(given, name="named.0", op=hvd.Sum), torch.full((7,), size * (size + 1) / 2))
        hvd.broadcast_parameters(model.state_dict())


def joins_before_a_slow_rank():
    """The last rank joins, and rank 0 goes on, while rank 1 has not taken yet what the round before has given."""
    rank, size = hvd.rank(), hvd.size()
    pids = hvd.allgather_object(os.getpid())
    count = 4_000_000
    hvd.allreduce(torch.zeros(count), name="large")
    for delay_s in (0.0, 0.005, 0.01, 0.02, 0.04):
        hvd.barrier()
        if rank == 0:
            threading.Timer(delay_s, os.kill, (pids[1], signal.SIGSTOP)).start()
            threading.Timer(delay_s + 0.5, os.kill, (pids[1], signal.SIGCONT)).start()
        same(hvd.allreduce(torch.full((count,), rank + 1.0), name="large", op=hvd.Sum),
             torch.full((count,), size * (size + 1) / 2))
        if rank < size - 1:
            same(hvd.allreduce(torch.full((count,), rank + 1.0), name="large", op=hvd.Sum),
                 torch.full((count,), size * (size - 1) / 2))
        hvd.join()


def joins_after_refused_names():
    """Rank 1 calls what the ranks that have joined cannot do, under each name: those join its group again, each in its order."""
    rank, size = hvd.rank(), hvd.size()
    names = [f"name {number}" for number in range(6)]
    for name in names:
        hvd.allreduce(torch.ones(3), name=name)
    for _ in range(3):
        if rank == 1:
            for name in names:
                refused(hvd.Code.CONFIGURATION, "joined", lambda: hvd.allreduce(torch.ones(3), name=name, op=hvd.Max))
            refused(hvd.Code.CONFIGURATION, "joined", lambda: hvd.reducescatter(torch.ones(3, 0)))
        hvd.join()
        for name in names:
            same(hvd.allreduce(torch.ones(3), name=name, op=hvd.Sum), torch.full((3,), float(size)))


def joins_while_one_sleeps():
    """Rank 1 waits for many sums, and is asleep when the others join."""
    rank, size = hvd.rank(), hvd.size()
    pids = hvd.allgather_object(os.getpid())
    names = [f"name {number}" for number in range(8)]
    for _ in range(10):
        for name in names:
            hvd.allreduce(torch.ones(3), name=name)
        hvd.barrier()
        if rank == 1:
            handles = [hvd.allreduce_async(torch.ones(3), name=name, op=hvd.Sum) for name in names]
            for handle in handles:
                same(handle.synchronize(), torch.ones(3))
        elif rank == 0:
            threading.Event().wait(0.1)
            os.kill(pids[1], signal.SIGSTOP)
            threading.Timer(0.15, os.kill, (pids[1], signal.SIGCONT)).start()
        hvd.join()


def joins_after_a_loss():
    """Rank 1 is lost before, rank 2 in the second join(); the others do without them. Lost is not joined: an average does not
    count who is lost."""
    rank, size = hvd.rank(), hvd.size()
    pids = hvd.allgather_object(os.getpid())
    hvd.allreduce(torch.ones(3), name="used")
    hvd.allreduce(torch.ones(3))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    rest = [0, *range(2, size)]
    for turn in range(2):
        for name in ("used", None):
            close(hvd.allreduce(torch.full((3,), rank + 1.0), name=name), torch.full((3,), sum(r + 1 for r in rest) / len(rest)))
        if rank != 2:
            if turn == 1 and rank == 0:
                os.kill(pids[2], signal.SIGKILL)
            there = [r for r in rest if r != 2]
            for name in ("used", None):
                given = hvd.allreduce(torch.full((3,), rank + 1.0), name=name, op=hvd.Sum)
                close(given, torch.full((3,), float(sum(r + 1 for r in there))))
        last = hvd.join()
        rest = rest if turn == 0 else there
        assert last in rest, last
    close(hvd.allreduce(torch.ones(3), name="used"), torch.ones(3))


def joins_in_any_order():
    """After a rank has joined: names in another order on each rank, operations under way across join(), sparse gradients, a
    process set's optimizer; asynchronous parameters go on."""
    rank, size = hvd.rank(), hvd.size()
    names = ["a", "b", "c"]
    table = torch.nn.Embedding(6, 2, sparse=True)
    torch.nn.init.ones_(table.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters())
    everyone = {name: hvd.allreduce_async(torch.ones(3), name=name, op=hvd.Sum) for name in names}
    for handle in everyone.values():
        close(handle.synchronize(), torch.full((3,), float(size)))

    def step(there):
        optimizer.zero_grad()
        table(torch.tensor([rank, 5])).sum().backward()
        optimizer.step()
        close(table.weight.grad.to_dense()[5], torch.full((2,), there / size))

    step(size)
    for epoch in range(2):
        last = size - 1
        late = None
        if rank != last:  # the last rank has no data in this epoch
            for turn in range(2):
                mine = names[rank % 3:] + names[:rank % 3]
                handles = {name: hvd.allreduce_async(torch.full((3,), rank + 1.0), name=name, op=hvd.Sum) for name in mine}
                for name in reversed(mine):
                    close(handles[name].synchronize(), torch.full((3,), size * (size - 1) / 2))
                step(size - 1)
            late = hvd.allreduce_async(torch.ones(3), name="a", op=hvd.Sum)
        hvd.join()
        if late is not None:
            close(late.synchronize(), torch.full((3,), size - 1.0))
        close(hvd.allreduce(torch.ones(3), name="a", op=hvd.Sum), torch.full((3,), float(size)))
        step(size)


if __name__ == "__main__":
    main(globals())
