"""Workers of horovod_test.py: python3 horovod_worker.py FUNCTION[:ARGUMENT...] ... as torch_worker.py. What comes out is compared
with what plain PyTorch makes of the tensors of all ranks, which each rank can compute."""
import re
import threading

import torch
from torch_worker import main, refused

import bps.torch as hvd

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64)
COPIED = (*DTYPES, torch.bool, torch.int16, torch.complex64)


def on_rank(rank, dtype=torch.float32, rows=5, row=(3,)):
    values = torch.randn((rows, *row), generator=torch.Generator().manual_seed(100 + rank)) * 10
    return values.to(torch.float64).to(dtype)


def of_all(ranks=None, **how):
    return [on_rank(rank, **how) for rank in (range(hvd.size()) if ranks is None else ranks)]


def close(one, other):
    torch.testing.assert_close(one, other)


def same(one, other):
    assert one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other), (one, other)


# ---- operations ----


def gathers():
    rank, size = hvd.rank(), hvd.size()
    for dtype in COPIED:
        for row in ((3,), (), (2, 2), (0,)):
            parts = [on_rank(r, dtype, rows=r * 2, row=row) for r in range(size)]  # rank 0 has no rows
            kept = parts[rank].clone()
            same(hvd.allgather(parts[rank]), torch.cat(parts))
            same(parts[rank], kept)
    parts = of_all(rows=4, row=(6,))
    same(hvd.allgather(parts[rank].t()), torch.cat([part.t() for part in parts]))
    handles = [hvd.allgather_async(parts[rank] + number, name=f"several.{number}") for number in range(10)]
    for number, handle in reversed(list(enumerate(handles))):
        assert isinstance(handle, hvd.Handle)
        same(hvd.synchronize(handle), torch.cat([part + number for part in parts]))
        assert hvd.poll(handle)
        same(handle.synchronize(), torch.cat([part + number for part in parts]))
    refused(hvd.Code.INVALID_ARGUMENT, "allgather: the tensor is a number", lambda: hvd.allgather(torch.tensor(1.0)))
    objects = [{"rank": r, "much": b"x" * (r * 100_000)} for r in range(size)]
    assert hvd.allgather_object(objects[rank]) == objects


def scatters():
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        for rows in (1, size, 2 * size + 1):  # the first ranks get one more, if rows do not come out even
            begin = sum(rows // size + (r < rows % size) for r in range(rank))
            mine = slice(begin, begin + rows // size + (rank < rows % size))
            total = sum(part.to(torch.float64) for part in of_all(dtype=dtype, rows=rows))
            if dtype.is_floating_point:
                close(hvd.reducescatter(on_rank(rank, dtype, rows)), (total / size).to(dtype)[mine])
            exact = torch.stack(of_all(dtype=dtype, rows=rows)).sum(0).to(dtype)
            (close if dtype.is_floating_point else same)(hvd.reducescatter(on_rank(rank, dtype, rows), op=hvd.Sum), exact[mine])
    largest = torch.stack(of_all(rows=size)).amax(0)
    same(hvd.reducescatter(on_rank(rank, rows=size), op=hvd.Max), largest[rank:rank + 1])
    halves = sum(part.half().float() for part in of_all(rows=size)) / size
    close(hvd.reducescatter(on_rank(rank, rows=size), compression=hvd.Compression.fp16), halves.half().float()[rank:rank + 1])
    refused(hvd.Code.INVALID_ARGUMENT, "is a number", lambda: hvd.reducescatter(torch.tensor(1.0)))
    refused(hvd.Code.INVALID_ARGUMENT, "Adasum is not there", lambda: hvd.reducescatter(torch.ones(4), op=hvd.Adasum))
    refused(hvd.Code.INVALID_ARGUMENT, "Adasum is not there", lambda: hvd.allreduce(torch.ones(4), op=hvd.Adasum))
    refused(hvd.Code.INVALID_ARGUMENT, "give op only", lambda: hvd.allreduce(torch.ones(4), average=True, op=hvd.Sum))


def exchanges():
    rank, size = hvd.rank(), hvd.size()
    counts = [[(giver + 2 * taker) % 4 for taker in range(size)] for giver in range(size)]
    for dtype in COPIED:
        for row in ((), (3,), (0,)):
            given = [on_rank(r, dtype, sum(counts[r]), row) for r in range(size)]
            parts = [given[r].split(counts[r])[rank] for r in range(size)]
            for splits in (counts[rank], torch.tensor(counts[rank], dtype=torch.int32), torch.tensor(counts[rank])):
                whole, received = hvd.alltoall(given[rank], splits)
                same(whole, torch.cat(parts))
                assert received.tolist() == [len(part) for part in parts]
                assert received.dtype == (splits.dtype if isinstance(splits, torch.Tensor) else torch.int32)
    given = of_all(rows=2 * size)
    expected = torch.cat([one[2 * rank:2 * rank + 2] for one in given])
    same(hvd.alltoall(given[rank]), expected)
    whole, received = hvd.synchronize(hvd.alltoall_async(given[rank]))
    same(whole, expected)
    assert received.tolist() == [2] * size
    invalid = hvd.Code.INVALID_ARGUMENT
    refused(invalid, "rows, which . ranks cannot share equally", lambda: hvd.alltoall(torch.ones(size + 1)))
    refused(invalid, "splits are .*has 4 rows", lambda: hvd.alltoall(torch.ones(4), [5] * size))
    refused(invalid, "whole numbers", lambda: hvd.alltoall(torch.ones(size), torch.ones(size)))
    try:  # as programs of Horovod expect
        hvd.alltoall(torch.ones(4), [5] * size)
    except ValueError:
        pass


def broadcasts():
    rank, size = hvd.rank(), hvd.size()
    for root in range(size):
        for dtype in COPIED:
            given = of_all(dtype=dtype)
            mine = given[rank].clone()
            same(hvd.broadcast(mine, root), given[root])
            same(mine, given[rank])
            handle = hvd.broadcast_async_(mine, root, name="in place")
            same(hvd.synchronize(handle), given[root])
            same(mine, given[root])
        transposed = of_all()[rank].t()
        hvd.broadcast_(transposed, root)
        same(transposed, of_all()[root].t())
        same(hvd.synchronize(hvd.broadcast_async(of_all()[rank], root)), of_all()[root])
    parameters = [torch.full((3,), float(rank)), torch.full((2, 2), float(rank))]
    hvd.broadcast_parameters(parameters, 1)
    assert all((one == 1).all() for one in parameters)
    refused(hvd.Code.INVALID_ARGUMENT, "root_rank is 9, which is no rank", lambda: hvd.broadcast(torch.ones(3), 9))


def grouped():
    rank, size = hvd.rank(), hvd.size()
    lists = [[on_rank(r, dtype, rows) for dtype, rows in ((torch.float32, 1), (torch.float64, 4), (torch.float32, 0))]
             for r in range(size)]
    totals = [sum(column) for column in zip(*lists)]
    for one, total in zip(hvd.grouped_allreduce(lists[rank], op=hvd.Sum), totals):
        close(one, total)
    for one, total in zip(hvd.grouped_allreduce(lists[rank], name="named", compression=hvd.Compression.fp16), totals):
        torch.testing.assert_close(one, total / size, atol=0.1, rtol=0.01)
    handle = hvd.grouped_allreduce_async(lists[rank], op=hvd.Average)
    for one, total in zip(hvd.synchronize(handle), totals):
        close(one, total / size)
    changed = [one.clone() for one in lists[rank]]
    results = hvd.grouped_allreduce_(changed, op=hvd.Sum)
    for one, result, total in zip(changed, results, totals):
        close(one, total)
        assert result.data_ptr() == one.data_ptr()
    for one, column in zip(hvd.grouped_allgather(lists[rank]), zip(*lists)):
        same(one, torch.cat(column))
    for one, total in zip(hvd.grouped_reducescatter([on_rank(rank, rows=size), on_rank(rank, rows=2 * size)], op=hvd.Sum),
                          (sum(of_all(rows=size))[rank:rank + 1], sum(of_all(rows=2 * size))[2 * rank:2 * rank + 2])):
        close(one, total)
    assert hvd.grouped_allreduce([]) == [] and hvd.grouped_allgather([]) == []
    refused(hvd.Code.INVALID_ARGUMENT, "give a list of tensors", lambda: hvd.grouped_allreduce(torch.ones(3)))


def factors():
    """Integers are scaled in f64, halves in f32, and what comes out is what it was."""
    rank, size = hvd.rank(), hvd.size()
    for name in (None, "with factors"):
        for dtype in DTYPES:
            given = of_all(dtype=dtype)
            wide = torch.float64 if not dtype.is_floating_point or dtype == torch.float64 else torch.float32
            if not dtype.is_floating_point:
                before = sum((one.to(wide) * 0.3).to(dtype) for one in given)
                after = (sum(given).to(wide) * 0.5).to(dtype)
                check = same
            else:
                before = (sum(one.to(wide) for one in given) * 0.3).to(dtype)
                after = (sum(one.to(wide) for one in given) * 0.5).to(dtype)
                check = close
            check(hvd.allreduce(given[rank], name=name, op=hvd.Sum, prescale_factor=0.3), before)
            check(hvd.allreduce(given[rank], name=name, op=hvd.Sum, postscale_factor=0.5), after)
            mine = given[rank].clone()
            check(hvd.allreduce_(mine, name=name, op=hvd.Sum, postscale_factor=0.5), after)
            check(mine, after)
    close(hvd.allreduce(on_rank(rank), op=hvd.Max, prescale_factor=2.0), torch.stack(of_all()).amax(0) * 2)
    share = hvd.reducescatter(on_rank(rank, rows=size), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    close(share, sum(of_all(rows=size))[rank:rank + 1] * 1.5)
    close(hvd.grouped_allreduce([on_rank(rank)], prescale_factor=2.0)[0], sum(of_all()) * 2 / size)


def gradients():
    """Those that Horovod defines. Each rank has another loss."""
    rank, size = hvd.rank(), hvd.size()

    def gradient_of(function, rows, weight):
        given = on_rank(rank, rows=rows).requires_grad_()
        result = function(given)
        return torch.autograd.grad((result * weight).sum(), given)[0]

    # allgather: the average, over all ranks, of the gradients of the own rows.
    total = sum(r + 1 for r in range(size))
    begin = sum(range(rank + 1))
    losses = [on_rank(60 + r, rows=total) for r in range(size)]
    expected = (sum(losses) / size)[begin:begin + rank + 1]
    close(gradient_of(hvd.allgather, rank + 1, losses[rank]), expected)
    close(gradient_of(lambda one: hvd.grouped_allgather([one])[0], rank + 1, losses[rank]), expected)
    # broadcast: the root gets the average, the others zeros.
    losses = [on_rank(70 + r) for r in range(size)]
    close(gradient_of(lambda one: hvd.broadcast(one, 1), 5, losses[rank]),
          sum(losses) / size if rank == 1 else torch.zeros(5, 3))
    # reducescatter: the gradients of all shares, times the ranks for a sum.
    losses = [on_rank(80 + r, rows=2) for r in range(size)]
    for op, times in ((hvd.Sum, size), (hvd.Average, 1)):
        close(gradient_of(lambda one: hvd.reducescatter(one, op=op), 2 * size, losses[rank]), torch.cat(losses) * times)
        close(gradient_of(lambda one: hvd.grouped_reducescatter([one], op=op, prescale_factor=0.5)[0], 2 * size, losses[rank]),
              torch.cat(losses) * times * 0.5)
    # alltoall: back to where the rows came from.
    counts = [[(giver + taker) % 3 for taker in range(size)] for giver in range(size)]
    takes = [sum(counts[giver][taker] for giver in range(size)) for taker in range(size)]
    losses = [on_rank(90 + r, rows=takes[r]) for r in range(size)]
    back = torch.cat([losses[taker].split([counts[giver][taker] for giver in range(size)])[rank] for taker in range(size)])
    close(gradient_of(lambda one: hvd.alltoall(one, counts[rank])[0], sum(counts[rank]), losses[rank]), back)
    # allreduce: reduced alike.
    losses = [on_rank(95 + r) for r in range(size)]
    close(gradient_of(lambda one: hvd.allreduce(one, op=hvd.Sum, prescale_factor=0.5), 5, losses[rank]), sum(losses) * 0.5)
    close(gradient_of(lambda one: hvd.grouped_allreduce([one])[0], 5, losses[rank]), sum(losses) / size)
    for function in (hvd.reducescatter, hvd.allreduce, lambda one, op: hvd.grouped_allreduce([one], op=op)[0]):
        refused(hvd.Code.INVALID_ARGUMENT, "no gradient flows back through max",
                lambda: gradient_of(lambda one: function(one, op=hvd.Max).sum(), size, torch.ones(1)))


def sparse():
    rank, size = hvd.rank(), hvd.size()

    def given(r):
        dense = on_rank(r, rows=6)
        return torch.where(dense.abs() < 8, torch.zeros_like(dense), dense)

    total = sum(given(r) for r in range(size))
    for op, expected in ((hvd.Average, total / size), (hvd.Sum, total)):
        handle = hvd.sparse_allreduce_async(given(rank).to_sparse(), name="sparse", op=op)
        close(handle().to_dense(), expected)
        close(hvd.synchronize(handle).to_dense(), expected)
    rows = torch.sparse_coo_tensor(torch.tensor([[rank, 4]]), torch.ones(2, 3) * (rank + 1), (5, 3))  # as of an Embedding
    expected = torch.zeros(5, 3)
    for r in range(size):
        expected[[r, 4]] += r + 1
    close(hvd.sparse_allreduce_async(rows, name="rows", op=hvd.Sum)().to_dense(), expected)
    for dtype in (torch.int8, torch.uint8, torch.float16):  # the sum of 3 does not fit
        large = torch.full((2,), 100 if dtype != torch.float16 else 60000, dtype=dtype)
        full = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), large, (3,))
        for op in (None, hvd.Average):
            close(hvd.sparse_allreduce_async(full, name=f"large.{dtype}.{op}", op=op)().to_dense(), full.to_dense())
    refused(hvd.Code.INVALID_ARGUMENT, "no sparse tensor", lambda: hvd.sparse_allreduce_async(torch.ones(3)))
    without = torch.sparse_coo_tensor(torch.empty(0, 1, dtype=torch.int64), torch.ones(1, 3), (3,))
    refused(hvd.Code.INVALID_ARGUMENT, "no sparse dimension", lambda: hvd.sparse_allreduce_async(without))


def compressors():
    """Classes with compress and decompress, of ours and of the program."""
    rank, size = hvd.rank(), hvd.size()
    for kind, dtype in ((hvd.Compression.fp16, torch.float16), (hvd.Compression.bf16, torch.bfloat16)):
        sent, context = kind.compress(torch.ones(3))
        assert sent.dtype == dtype and kind.decompress(sent, context).dtype == torch.float32
        sent, context = kind.compress(torch.ones(3, dtype=torch.int16))
        assert sent.dtype == torch.int16 and kind.decompress(sent, context).dtype == torch.int16
    whole = torch.ones(3)
    assert hvd.Compression.none.compress(whole)[0] is whole

    class Half:
        """The first half of a tensor, and its length."""

        @staticmethod
        def compress(tensor):
            return tensor[:len(tensor) // 2].clone(), tensor

        @staticmethod
        def decompress(tensor, context):
            return torch.cat([tensor, torch.zeros_like(context[len(tensor):])])

    parameter = torch.nn.Parameter(torch.zeros(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("p", parameter)], compression=Half)
    for step in range(2):
        optimizer.zero_grad()
        (parameter * (rank + 1)).sum().backward()
        optimizer.step()
    close(parameter.detach(), torch.tensor([-(size + 1.0), -(size + 1.0), 0.0, 0.0]))
    for compression in (None, torch.float16, hvd.Compression.bf16):
        close(hvd.grouped_allreduce([torch.ones(3)], compression=compression, op=hvd.Sum)[0], torch.full((3,), float(size)))
    refused(hvd.Code.INVALID_ARGUMENT, "has no compress", lambda: hvd.grouped_allreduce([torch.ones(3)], compression="fp16"))
    given = of_all(rows=6)
    expected = torch.cat([(sum(given) / size)[:3], torch.zeros(3, 3)])
    for name in (None, "halved"):
        close(hvd.allreduce(given[rank], name=name, compression=Half), expected)
        close(hvd.synchronize(hvd.allreduce_async(given[rank], name=name, compression=Half())), expected)
        close(hvd.push_pull(given[rank], name, compression=Half), expected)
    close(hvd.grouped_allreduce([given[rank]], compression=Half)[0], expected)
    mine = given[rank].clone().requires_grad_()
    gradient, = torch.autograd.grad(hvd.allreduce(mine, compression=Half, op=hvd.Sum).sum(), mine)
    close(gradient, torch.cat([torch.ones(3, 3) * size, torch.zeros(3, 3)]))
    refused(hvd.Code.INVALID_ARGUMENT, "no compress", lambda: hvd.allreduce(given[rank], compression="fp16"))
    model = torch.nn.Linear(3, 3)
    for kind in (hvd.Compression.none, hvd.Compression.fp16, torch.bfloat16, None):
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), compression=kind)
        optimizer.zero_grad()
        model(torch.full((2, 3), rank + 1.0)).sum().backward()
        optimizer.step()
        close(model.bias.grad, torch.full((3,), 2.0))
        del optimizer, plain


def renamed():
    """A name whose length or type changes is another tensor."""
    rank, size = hvd.rank(), hvd.size()
    for count, dtype in ((100, torch.float32), (37, torch.float32), (100, torch.float32), (250, torch.float32),
                         (250, torch.float64), (0, torch.float64), (3, torch.int32)):
        for _ in range(2):
            given = torch.full((count,), rank + 1, dtype=dtype)
            same(hvd.allreduce(given, name="scores", op=hvd.Sum), torch.full((count,), size * (size + 1) // 2, dtype=dtype))
    slow = [hvd.allreduce_async(torch.ones(10), name="busy", op=hvd.Sum)] if rank == 0 else []
    if rank == 0:
        refused(hvd.Code.INVALID_ARGUMENT, "busy.*under way", lambda: hvd.allreduce_async(torch.ones(10), name="busy"))
        refused(hvd.Code.INVALID_ARGUMENT, "busy.*under way", lambda: hvd.allreduce_async(torch.ones(20), name="busy"))
    hvd.barrier()
    slow = slow or [hvd.allreduce_async(torch.ones(10), name="busy", op=hvd.Sum)]
    same(slow[0].synchronize(), torch.full((10,), float(size)))
    for count in (20, 30):  # what was refused on rank 0 does not count
        ended = threading.Event()
        longer = hvd.allreduce_async(torch.ones(count), name="busy", op=hvd.Sum)
        longer.then(lambda _: ended.set())
        assert ended.wait(30)
        same(longer.synchronize(), torch.full((count,), float(size)))
    for count in (1, 2):
        same(hvd.allreduce(torch.ones(count), name="\N{LATIN SMALL LETTER E WITH ACUTE}" * 250, op=hvd.Sum), torch.full((count,), float(size)))
    for kind in (hvd.allgather_async, hvd.reducescatter_async, hvd.alltoall_async, hvd.broadcast_async):
        handles = [kind(torch.ones(2 * size), name="twice")] if rank == 0 else []
        if rank == 0:
            refused(hvd.Code.INVALID_ARGUMENT, "of 'twice' is under way", lambda: kind(torch.ones(2 * size), name="twice"))
        hvd.barrier()
        (handles or [kind(torch.ones(2 * size), name="twice")])[0].synchronize()
        kind(torch.ones(2 * size), name="twice").synchronize()


# ---- process sets ----


def process_sets():
    rank, size = hvd.rank(), hvd.size()
    assert hvd.global_process_set.ranks == list(range(size)) and hvd.global_process_set.size() == size
    assert hvd.global_process_set.rank() == rank and hvd.global_process_set.included()
    unused = hvd.ProcessSet([1, 0])
    assert unused.ranks == [0, 1] and unused.size() is None and unused.rank() is None
    refused(hvd.Code.INVALID_ARGUMENT, "not in use", lambda: hvd.allreduce(torch.ones(3), process_set=unused))
    for turn in range(3):
        all_but_last = hvd.add_process_set([*range(size - 1)])
        last = hvd.add_process_set(hvd.ProcessSet([size - 1]))
        refused(hvd.Code.INVALID_ARGUMENT, "there is a process set", lambda: hvd.add_process_set([size - 1]))
        refused(hvd.Code.INVALID_ARGUMENT, "there is a process set", lambda: hvd.add_process_set(range(size)))
        refused(hvd.Code.INVALID_ARGUMENT, "ranks are 0 to", lambda: hvd.add_process_set([size]))
        mine, other = (last, all_but_last) if rank == size - 1 else (all_but_last, last)
        assert mine.included() and not other.included() and other.rank() is None
        ranks = mine.ranks
        assert mine.size() == len(ranks) and ranks[mine.rank()] == rank
        refused(hvd.Code.INVALID_ARGUMENT, "only its ranks make calls", lambda: hvd.allgather(torch.ones(3), process_set=other))
        given = of_all(ranks)
        for name in (None, f"in a set {turn}"):
            close(hvd.allreduce(on_rank(rank), name=name, process_set=mine), sum(given) / len(ranks))
            same(hvd.allgather(on_rank(rank), name=name, process_set=mine), torch.cat(given))
            same(hvd.broadcast(on_rank(rank), ranks[-1], name=name, process_set=mine), on_rank(ranks[-1]))
            close(hvd.reducescatter(on_rank(rank, rows=len(ranks)), name=name, op=hvd.Sum, process_set=mine),
                  sum(of_all(ranks, rows=len(ranks)))[mine.rank():mine.rank() + 1])
            same(hvd.alltoall(on_rank(rank, rows=len(ranks)), name=name, process_set=mine),
                 torch.cat([one[mine.rank():mine.rank() + 1] for one in of_all(ranks, rows=len(ranks))]))
            close(hvd.grouped_allreduce([on_rank(rank)], name=name, op=hvd.Sum, process_set=mine)[0], sum(given))
        close(hvd.sparse_allreduce_async(on_rank(rank).to_sparse(), op=hvd.Sum, process_set=mine)().to_dense(), sum(given))
        assert hvd.broadcast_object({"from": rank}, ranks[-1], process_set=mine) == {"from": ranks[-1]}
        assert hvd.allgather_object(rank, process_set=mine) == ranks
        doubled = on_rank(rank).requires_grad_()
        gradient, = torch.autograd.grad(hvd.allreduce(doubled, op=hvd.Sum, process_set=mine).sum(), doubled)
        same(gradient, torch.full((5, 3), float(len(ranks))))
        refused(hvd.Code.INVALID_ARGUMENT, "root_rank is .*its ranks are",
                lambda: hvd.broadcast(torch.ones(3), other.ranks[0], process_set=mine))
        hvd.barrier(mine)
        assert hvd.remove_process_set(last) and hvd.remove_process_set(all_but_last)
        assert not hvd.remove_process_set(last) and not hvd.remove_process_set(hvd.global_process_set)
        refused(hvd.Code.INVALID_ARGUMENT, "not in use", lambda: hvd.allreduce(torch.ones(3), process_set=mine))
    refused(hvd.Code.INVALID_ARGUMENT, "give it a list of ranks", lambda: hvd.ProcessSet(3))


def begun_again():
    """init() with process sets; shutdown(), and all over."""
    rank, size = hvd.rank(), hvd.size()
    for _ in range(2):
        hvd.shutdown()
        assert not hvd.is_initialized() and hvd.global_process_set.ranks is None
        one, two = hvd.ProcessSet([0]), hvd.ProcessSet(range(1, size))
        hvd.init(process_sets=[one, two])
        assert (hvd.rank(), hvd.size()) == (rank, size)
        mine = one if rank == 0 else two
        assert hvd.allreduce(torch.tensor([1]), op=hvd.Sum, process_set=mine).item() == mine.size()
        hvd.init(comm=list(range(size)), process_sets="dynamic")
        refused(hvd.Code.INVALID_ARGUMENT, "use a ProcessSet", lambda: hvd.init(comm=[0]))
        hvd.shutdown()
        assert one.process_set_id is None
        hvd.init()


# ---- the rest ----


def batch_norm():
    """As one process that has the batches of all ranks, which are not equally long."""
    rank, size = hvd.rank(), hvd.size()
    for row, momentum, affine in (((4,), 0.1, True), ((4, 3), None, True), ((4, 3, 2), 0.3, False)):
        torch.manual_seed(1)
        ours = hvd.SyncBatchNorm(4, momentum=momentum, affine=affine).double()
        plain = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[len(row) + 1](
            4, momentum=momentum, affine=affine).double()
        for step in range(3):
            parts = [on_rank(10 * step + r, torch.float64, r + 2, row) for r in range(size)]
            weights = [on_rank(40 + r, torch.float64, r + 2, row) for r in range(size)]
            mine, whole = parts[rank].clone().requires_grad_(), torch.cat(parts).requires_grad_()
            result, expected = ours(mine), plain(whole)
            begin = sum(len(part) for part in parts[:rank])
            end = begin + len(mine)
            close(result, expected[begin:end])
            (result * weights[rank]).sum().backward()
            (expected * torch.cat(weights)).sum().backward()
            close(mine.grad, whole.grad[begin:end])
            close(ours.running_mean, plain.running_mean)
            close(ours.running_var, plain.running_var)
            assert ours.num_batches_tracked == plain.num_batches_tracked == step + 1
            if affine:  # their gradients are those of this rank's loss: an optimizer adds them up
                close(hvd.allreduce(ours.weight.grad, op=hvd.Sum), plain.weight.grad)
                close(hvd.allreduce(ours.bias.grad, op=hvd.Sum), plain.bias.grad)
                ours.zero_grad()
                plain.zero_grad()
        ours.eval(), plain.eval()
        close(ours(parts[rank]), plain(parts[rank]))
        half = hvd.SyncBatchNorm(4)
        assert half(parts[rank].to(torch.bfloat16)).dtype == torch.bfloat16
    refused(hvd.Code.INVALID_ARGUMENT, "at least two", lambda: hvd.SyncBatchNorm(4)(torch.ones(4)))


def of_byteps():
    """Its modules and names, besides those of Horovod."""
    from bps.torch import cross_barrier, parallel

    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(1)
    model, reference = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    reference.load_state_dict(model.state_dict())
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = cross_barrier.CrossBarrier(model, own, model.named_parameters(), num_steps=3)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((1, 4), rank + 1.0)).square().sum().backward()
        optimizer.step()
        plain.zero_grad()
        sum(reference(torch.full((1, 4), r + 1.0)).square().sum() / size for r in range(size)).backward()
        plain.step()
    optimizer.synchronize()
    close(model.state_dict(), reference.state_dict())
    assert cross_barrier.rank() == rank and hvd.declare("later") == 0
    close(hvd.push_pull(on_rank(rank), name="later", average=False), sum(of_all()))
    changed = on_rank(rank)
    close(hvd.push_pull_inplace(changed, name="later", version=1, priority=2), sum(of_all()) / size)
    close(hvd.synchronize(hvd.push_pull_async_inplace(changed, average=True)), sum(of_all()) / size)
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        ours = parallel.DistributedDataParallel(torch.nn.Linear(4, 3), device_ids=[0], compression=compression)
        ours(torch.full((1, 4), rank + 1.0)).sum().backward()
        close(ours.module.weight.grad, torch.full((3, 4), (size + 1) / 2))


def answers():
    """What programs ask."""
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    for name in ("mpi_built", "mpi_enabled", "gloo_built", "gloo_enabled", "ddl_built", "ccl_built", "rocm_built",
                 "mpi_threads_supported", "nccl_built"):
        assert not getattr(hvd, name)(), name
    assert hvd.cuda_built() == (torch.version.cuda is not None)
    refused(hvd.Code.CONFIGURATION, "no timeline", lambda: hvd.start_timeline("file"))
    refused(hvd.Code.CONFIGURATION, "no timeline", hvd.stop_timeline)
    refused(hvd.Code.CONFIGURATION, "bps.torch.elastic.run is not there", lambda: hvd.elastic.run(answers))
    refused(hvd.Code.CONFIGURATION, "bps.torch.elastic.State is not there", lambda: type("Mine", (hvd.elastic.State,), {}))
    assert not hasattr(hvd.elastic, "walk")
    model = torch.nn.Linear(2, 2)
    for pattern, call in (("3 is no handle", lambda: hvd.synchronize(3)), ("None is no handle", lambda: hvd.poll(None)),
                          ("op='sum'.*bps.torch.Sum", lambda: hvd.allreduce(torch.ones(2), op="sum")),
                          ("is empty", lambda: hvd.allreduce(torch.ones(2), name="")), ("is empty", lambda: hvd.allgather(torch.ones(2), name="")),
                          ("named_parameters()", lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model)),
                          ("state_dict()", lambda: hvd.broadcast_parameters(model))):
        refused(hvd.Code.INVALID_ARGUMENT, re.escape(pattern) if pattern.endswith("()") else pattern, call)
    assert issubclass(hvd.HorovodInternalError, RuntimeError)


def hosts(layout):
    """Two hosts, as the launcher says it."""
    size = hvd.size()
    first = int(layout)
    mine = hvd.rank() < first
    local = hvd.rank() if mine else hvd.rank() - first
    assert hvd.local_rank() == local and hvd.local_size() == (first if mine else size - first)
    both = local < min(first, size - first)
    assert hvd.cross_size() == (2 if both else 1) and hvd.cross_rank() == (1 if both and not mine else 0)
    assert hvd.is_homogeneous() == (2 * first == size)


if __name__ == "__main__":
    main(globals())
