"""Ranks that call different things, come late, or are killed in a call. Workers of horovod_test.py, as those of horovod_worker.py:
python3 differences_worker.py FUNCTION[:ARGUMENT...] ..."""
import os
import signal
import threading

import torch
from horovod_worker import gathers, same  # noqa: F401, gathers is called by its name
from torch_worker import main, refused

import bps.torch as hvd


def mismatches():
    """An error on all ranks, which says what this one has called; then all goes on."""
    rank, size = hvd.rank(), hvd.size()
    odd = rank == 1
    either = torch.int32 if odd else torch.float32
    ranks = [(lambda: hvd.allreduce(torch.ones(4 if odd else 5)), "allreduce of average of float32"),
             (lambda: hvd.allreduce(torch.ones((2, 3) if odd else (3, 2))), r"allreduce of average of float32 \[. *, .\]"),
             (lambda: hvd.allreduce(torch.ones(3, dtype=either), op=hvd.Sum), "allreduce of sum of"),
             (lambda: hvd.allreduce(torch.ones(3), op=hvd.Sum if odd else hvd.Max), "allreduce of"),
             (lambda: hvd.allreduce(torch.ones(4 if odd else 5), name="unequal"), "allreduce 'unequal' of average of float32"),
             (lambda: hvd.allgather(torch.ones(2, 3 if odd else 4)), r"allgather of float32 \['\*', .\]"),
             (lambda: hvd.allgather(torch.ones(2, dtype=either)), "allgather of"),
             (lambda: hvd.allgather(torch.ones(2), name="one" if odd else "other"), "allgather 'o.*' of"),
             (lambda: hvd.alltoall(torch.ones(size, 3 if odd else 4)), "alltoall of float32"),
             (lambda: hvd.alltoall(torch.ones(size, dtype=either)), "alltoall of"),
             (lambda: hvd.reducescatter(torch.ones(size, 3 if odd else 4)), "reducescatter of average of float32"),
             (lambda: hvd.reducescatter(torch.ones(size, dtype=either), op=hvd.Sum), "reducescatter"),
             (lambda: hvd.reducescatter(torch.ones(5, 0)) if odd else hvd.allreduce(torch.ones(5)), "float32"),
             (lambda: hvd.reducescatter(torch.ones(5, 0 if odd else 2)), "reducescatter of average of float32"),
             (lambda: hvd.broadcast(torch.ones(3 if odd else 4)), "broadcast of float32"),
             (lambda: hvd.broadcast(torch.ones(3, dtype=either)), "broadcast of"),
             (lambda: hvd.broadcast(torch.ones(3), rank), "broadcast of float32 .*from rank"),
             (lambda: hvd.allgather(torch.ones(3)) if odd else hvd.allreduce(torch.ones(3)), "all.* of .*float32")]
    for call, pattern in ranks:
        hvd.barrier()  # what a slow rank still waits for would fail, too
        refused(hvd.Code.CONFIGURATION, pattern, call)
        same(hvd.allreduce(torch.tensor([rank + 1]), op=hvd.Sum), torch.tensor([size * (size + 1) // 2]))
        same(hvd.allreduce(torch.ones(5), name="unequal", op=hvd.Sum), torch.full((5,), float(size)))
    # A name that all have used alike, and a new one; a rank whose call is longer, of another type, without elements.
    mine = {"longer": torch.ones(6 if odd else 5), "shorter": torch.ones(4 if odd else 5),
            "of another type": torch.ones(5, dtype=either),
            "empty": torch.ones(0 if odd else 5), "empty elsewhere": torch.ones(5 if odd else 0)}
    for which, tensor in mine.items():
        same(hvd.allreduce(torch.ones(5), name=f"used, {which}", op=hvd.Sum), torch.full((5,), float(size)))
        for late in (0, 1):
            for name in (f"used, {which}", f"new, {which}, {late}"):
                hvd.barrier()
                if rank == late:
                    threading.Event().wait(0.2)  # the others have called before
                refused(hvd.Code.CONFIGURATION, which, lambda: hvd.allreduce(tensor, name=name))
                same(hvd.allreduce(torch.ones(5), name=name, op=hvd.Sum), torch.full((5,), float(size)))
                same(hvd.allreduce(torch.ones(7), name=name, op=hvd.Sum), torch.full((7,), float(size)))
        hvd.join()
        same(hvd.allreduce(torch.ones(5), name=name, op=hvd.Sum), torch.full((5,), float(size)))
    several(odd)
    handle = hvd.allreduce_async(torch.ones(4 if odd else 5))  # nobody waits for it
    refused(hvd.Code.CONFIGURATION, "allreduce", handle.synchronize)
    refused(hvd.Code.CONFIGURATION, "allreduce", handle.synchronize)
    if size > 2:
        pair = hvd.add_process_set([0, 1])
        if rank < 2:
            refused(hvd.Code.CONFIGURATION, "allreduce", lambda: hvd.allreduce(torch.ones(4 if odd else 5), process_set=pair))
            assert hvd.allreduce(torch.tensor([1]), op=hvd.Sum, process_set=pair).item() == 2
        assert hvd.allreduce(torch.tensor([1]), op=hvd.Sum).item() == size


def several(odd):
    """Calls that are made of several, at different places of the program."""
    model, larger = torch.nn.Linear(3, 3), torch.nn.Linear(300, 300)

    def optimizer(one):
        return lambda: hvd.DistributedOptimizer(torch.optim.SGD(one.parameters(), lr=0.1), one.named_parameters())

    for this, other in (
            (lambda: hvd.broadcast_parameters(model.state_dict()), lambda: hvd.allgather(torch.ones(2))),
            (lambda: hvd.broadcast_parameters(model.state_dict()), lambda: hvd.broadcast_object("an object")),
            (lambda: hvd.broadcast_object("one"), lambda: hvd.broadcast_parameters(larger.state_dict())),
            (lambda: hvd.broadcast_parameters(larger.state_dict()), lambda: hvd.broadcast_parameters(larger.state_dict(), 1)),
            (optimizer(model), lambda: hvd.allreduce(torch.ones(3)))):
        hvd.barrier()
        refused(hvd.Code.CONFIGURATION, "(broadcast|exchange|allgather|allreduce).* of ", other if odd else this)
        hvd.broadcast_parameters(model.state_dict())
        assert hvd.broadcast_object(hvd.rank()) == 0


def late():
    """The others do not wait for rank 1. What they call afterwards does not meet what it calls when it comes."""
    model = torch.nn.Linear(3, 3)
    hvd.broadcast_parameters(model.state_dict())
    if hvd.rank() == 1:
        hvd.client().barrier(60)
        refused(hvd.Code.DEADLINE, "ranks? 0", lambda: hvd.broadcast_parameters(model.state_dict()))
    else:
        refused(hvd.Code.DEADLINE, "ranks? 1", lambda: hvd.broadcast_parameters(model.state_dict()))
        hvd.client().barrier(60)
    refused(hvd.Code.DEADLINE, "an earlier .* of l[a-z]* of", lambda: hvd.broadcast_object(hvd.rank()))
    if hvd.client().info().local_group == "off":
        refused(hvd.Code.DEADLINE, "an earlier broadcast", lambda: hvd.allgather(torch.ones(3)))
    hvd.client().barrier(60)


def under_way():
    """Ranks have made different numbers of calls when one is refused: all is refused until they join."""
    rank, size = hvd.rank(), hvd.size()
    ones = [hvd.allreduce_async(torch.ones(3 if rank == 1 else 4)) for _ in range(1 if rank == 1 else 3)]
    for one in ones:
        refused(hvd.Code.CONFIGURATION, "allreduce", one.synchronize)
    hvd.barrier()
    for _ in range(3):
        refused(hvd.Code.CONFIGURATION, "as many calls before it", lambda: hvd.allgather(torch.ones(2)))
    hvd.join()
    same(hvd.allgather(torch.ones(2)), torch.ones(2 * size))
    assert hvd.broadcast_object(rank) == 0


def killed(how):
    """Rank 1 goes inside the operation."""
    hvd.allreduce(torch.ones(3))
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.join() if how == "join" else hvd.allgather(torch.ones(3))


if __name__ == "__main__":
    main(globals())
