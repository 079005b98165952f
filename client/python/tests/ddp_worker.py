"""Workers of ddp_test.py, as torch_worker.py: python3 ddp_worker.py FUNCTION[:ARGUMENT...] ..."""
import functools
import os
import pathlib
import re
import signal
import sys

import torch
import torch_models as models
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import bps
import bps.torch


def hooked(model, bucket_mb=0.1, hook=bps.torch.comm_hook, **options):
    """Small buckets, so that there are several."""
    wrapped = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, **options)
    if hook is not None:
        wrapped.register_comm_hook(bps.torch.state(), hook)
    return wrapped


def check_alike(model):
    mine = models.digest(model)
    assert bps.torch.broadcast_object(mine) == mine, "the parameters differ between ranks"


class Pair:
    """A model under DDP, and what one process computes."""

    def __init__(self, kind, **options):
        self.model = hooked(models.seeded(kind), **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.reference = models.seeded(kind)
        self.plain = torch.optim.SGD(self.reference.parameters(), lr=0.1, momentum=0.9)

    def step(self, loss_of, passes=1):
        """loss_of(model, rank, part)"""
        self.optimizer.zero_grad(set_to_none=True)
        for part in range(passes - 1):
            with self.model.no_sync():
                loss_of(self.model, bps.torch.rank(), part).backward()
        loss_of(self.model, bps.torch.rank(), passes - 1).backward()
        self.optimizer.step()

        def on_reference(one, rank):
            for part in range(passes):
                loss_of(one, rank, part).backward()

        models.averaged_gradients(self.reference, bps.torch.size(), on_reference)
        for parameter in self.reference.parameters():  # DDP leaves alone what no rank has used
            if parameter.grad is not None and not parameter.grad.any():
                parameter.grad = None
        self.plain.step()
        assert models.digest(self.model) == models.digest(self.reference)
        check_alike(self.model)


def several_buckets():
    pair = Pair(models.WithBatchNorm, find_unused_parameters=True)
    for step in range(6):
        pair.step(lambda model, rank, part: models.square_loss(model, rank, step))


def unused_on_some_ranks():
    pair = Pair(models.WithBatchNorm, find_unused_parameters=True)
    for step in range(6):
        pair.step(lambda model, rank, part: models.square_loss(model, rank, step, use_unused=rank % 2 == 1))


def accumulation():
    pair = Pair(models.Mixed)
    for step in range(4):
        pair.step(lambda model, rank, part: models.language_loss(model, rank, 3 * step + part), passes=3)


def two_models():
    first, second = Pair(models.Mixed), Pair(models.Mixed, bucket_mb=25)
    for step in range(4):
        first.step(lambda model, rank, part: models.language_loss(model, rank, step))
        second.step(lambda model, rank, part: models.language_loss(model, rank, step + 50))
    assert models.digest(first.model) != models.digest(second.model)


def two_types():
    """DDP's second set of buckets has one of another type at the same place, for one of these models at least."""
    class TwoTypes(torch.nn.Module):
        def __init__(self, defined, used):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(20, 20).to(dtype) for dtype in defined)
            self.used = [defined.index(dtype) for dtype in used]

        def forward(self, x):
            for layer in (self.layers[number] for number in self.used):
                x = layer(x.to(layer.weight.dtype))
            return x

    orders = ((torch.float32, torch.float64), (torch.float64, torch.float32))
    for pair in (Pair(functools.partial(TwoTypes, defined, used)) for defined in orders for used in orders):
        for step in range(3):
            pair.step(lambda model, rank, part: models.square_loss(model, rank, step))


def another_process_group():
    """Buckets are averaged over all ranks, so a model of some of them is refused."""
    for ranks in ([0, 1], [1, 2, 3]):
        group = torch.distributed.new_group(ranks)
        try:
            bps.torch.state(group)
        except bps.Error as error:
            assert error.code == bps.Code.CONFIGURATION and "is not the job" in str(error), error
        else:
            raise AssertionError("not refused")
    DistributedDataParallel(models.seeded(models.Mixed)).register_comm_hook(
        bps.torch.state(torch.distributed.new_group(range(bps.torch.size()))), bps.torch.comm_hook)


def as_the_readme_says():
    """Its lines, in a program that uses DistributedDataParallel."""
    readme = pathlib.Path(__file__).resolve().parent.parent / "README.md"
    lines, = re.findall(r"DistributedDataParallel joins and gets one line:\n\n```python\n(.*?)```", readme.read_text(), re.DOTALL)
    pair = Pair(models.Mixed, hook=None)
    exec(lines, {"bps": bps, "ddp": pair.model})
    for step in range(3):
        pair.step(lambda model, rank, part: models.language_loss(model, rank, step))


def unequally_many():
    """Under Join a rank without batches counts as zeros."""
    def count(rank):
        return 2 + 2 * rank

    model, reference = hooked(models.seeded(models.Mixed)), models.seeded(models.Mixed)
    optimizer, plain = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, reference))
    with Join([model]):
        for step in range(count(bps.torch.rank())):
            optimizer.zero_grad()
            models.language_loss(model, bps.torch.rank(), step).backward()
            optimizer.step()
    for step in range(count(bps.torch.size() - 1)):
        models.averaged_gradients(reference, bps.torch.size(), lambda one, rank: step < count(rank) and models.language_loss(
            one, rank, step).backward())
        plain.step()
    assert bps.torch.rank() < bps.torch.size() - 1 or models.digest(model) == models.digest(reference)
    check_alike(model)


def close_to_gloo():
    mine, theirs = hooked(models.seeded(models.Mixed)), DistributedDataParallel(models.seeded(models.Mixed))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (mine, theirs)]
    for step in range(10):
        for model, optimizer in zip((mine, theirs), optimizers):
            optimizer.zero_grad()
            models.language_loss(model, bps.torch.rank(), step).backward()
            optimizer.step()
    for left, right in zip(mine.parameters(), theirs.parameters()):
        torch.testing.assert_close(left, right)


def killed_in_a_step():
    model = hooked(models.seeded(models.Mixed))
    for step in range(1000):
        loss = models.language_loss(model, bps.torch.rank(), step)
        if step == 3 and bps.torch.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()


def telling_hook(state, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = bps.torch.comm_hook(state, bucket)
    if bucket.is_last():
        print("waiting", flush=True)
    return future


def alone_in_a_step():
    """Rank 1 never takes part, and rank 0 waits for it in backward()."""
    model = hooked(models.seeded(models.Mixed), hook=telling_hook)
    if bps.torch.rank() == 0:
        models.language_loss(model, 0, 0).backward()
    sys.stdin.readline()
    bps.torch.barrier()


def killed_at_a_barrier_of_the_process_group():
    if bps.torch.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    bps.torch.world._LOSS_IS_KNOWN_S = 60  # in which a busy scheduler notices it, too
    torch.distributed.barrier()


def own_mistake():
    raise RuntimeError("a bug of the program")


if __name__ == "__main__":
    torch.set_num_threads(1)
    bps.torch.init()
    bps.torch.init_process_group()
    for case in sys.argv[1:]:
        function, *arguments = case.split(":")
        globals()[function](*arguments)
        print("right:", case, flush=True)
    torch.distributed.destroy_process_group()
