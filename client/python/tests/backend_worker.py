"""Calls of torch.distributed, right and wrong ones; a program of backend_test.py."""
import datetime
import os
import signal
import sys
import threading

import torch
import torch.distributed as dist

from backend_ranks import begin, check, expect_error, right, run

LENGTHS = (0, 1, 7, 1000, 100_003)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
OPS = {"SUM": torch.add, "MIN": torch.minimum, "MAX": torch.maximum, "PRODUCT": torch.mul}
BITS = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


def given(rank, length, dtype):
    """The same for all who ask; small numbers, so that sums are exact."""
    numbers = (torch.arange(length) * (rank + 2) + rank) % 5
    return numbers % 2 == 0 if dtype == torch.bool else numbers.to(dtype)


def folded(fold, parts):
    result = parts[0]
    for part in parts[1:]:
        result = fold(result, part)
    return result.to(parts[0].dtype)


def reductions():
    rank, size = begin()
    for dtype in FLOATS + INTEGERS + (torch.bool,):
        folds = dict(OPS) if dtype in FLOATS else {**OPS, **BITS}
        if dtype == torch.bool:
            folds.update(SUM=torch.logical_or, PRODUCT=torch.logical_and, MIN=torch.logical_and, MAX=torch.logical_or)
        for name, fold in folds.items():
            op = getattr(dist.ReduceOp, name)
            for length in LENGTHS:
                what = f"{name} of {length} {dtype}"
                expected = folded(fold, [given(r, length, dtype) for r in range(size)])
                tensor = given(rank, length, dtype)
                dist.all_reduce(tensor, op)
                check(tensor, expected, "all_reduce " + what)
                root = length % size
                tensor = given(rank, length, dtype)
                dist.reduce(tensor, root, op)
                check(tensor, expected if rank == root else given(rank, length, dtype), "reduce " + what)
                out = torch.empty(length, dtype=dtype)
                sources = [given(rank + 10 * part, length, dtype) for part in range(size)]
                expected = folded(fold, [given(r + 10 * rank, length, dtype) for r in range(size)])
                dist.reduce_scatter(out, sources, op)
                check(out, expected, "reduce_scatter " + what)
                out = torch.empty(length, dtype=dtype)
                dist.reduce_scatter_tensor(out, torch.cat(sources), op)
                check(out, expected, "reduce_scatter_tensor " + what)
    for dtype in FLOATS:
        tensor = given(rank, 1000, dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        check(tensor, folded(torch.add, [given(r, 1000, dtype) for r in range(size)]) / size, f"average of {dtype}")
        tensor = given(rank, 1000, dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        check(tensor, folded(torch.add, [given(r, 1000, dtype) for r in range(size)]) * 0.5, f"half the sum of {dtype}")
    pair = torch.complex(given(rank, 9, torch.float32), given(rank + 1, 9, torch.float32))
    for call in (dist.all_reduce, lambda t: dist.reduce(t, 0)):
        tensor = pair.clone()
        call(tensor)
        if rank == 0:
            check(tensor, sum(torch.complex(given(r, 9, torch.float32), given(r + 1, 9, torch.float32)) for r in range(size)),
                  "complex sum")
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
        tensor = given(rank, 1000, dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        total = sum(given(r, 1000, dtype).long() for r in range(size))
        check(tensor, torch.div(total, size, rounding_mode="trunc").to(dtype), f"average of {dtype}")
    for op, dtype in ((dist.ReduceOp.AVG, torch.bool), (dist.ReduceOp.BAND, torch.float32)):
        try:
            dist.all_reduce(torch.ones(3, dtype=dtype), op)
        except TypeError as error:
            assert str(dtype) in str(error), error
        else:
            raise AssertionError(f"{op} of {dtype} was not refused")
    for dtype in (torch.float32, torch.int16):
        expect_error(lambda: dist.reduce(torch.ones(2, dtype=dtype), -1), "is no rank of group", 1.0, ValueError)
    right("reductions")


def sparse():
    """Sums of tensors that have other places on each rank, some of them twice; dense dimensions, none at all."""
    rank, size = begin()
    for dtype in FLOATS + (torch.int64,):
        for dense in ((), (3,)):
            def one(r):
                places = torch.tensor([[r, 2 * r, r], [0, r, 0]])
                return torch.sparse_coo_tensor(places, given(r, 3 * max(sum(dense), 1), dtype).view(3, *dense), (2 * size, size, *dense))
            tensor = one(rank)
            dist.all_reduce(tensor)
            total = one(0).to_dense()
            for r in range(1, size):
                total = total + one(r).to_dense()
            check(tensor.to_dense(), total, f"sparse {dtype}")
    empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), (4,))
    dist.all_reduce(empty)
    check(empty.to_dense(), torch.zeros(4), "an empty sparse tensor")
    expect_error(lambda: dist.all_reduce(empty, dist.ReduceOp.MAX), "to_dense", 1.0, TypeError)
    other = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), (4 if rank == 0 else 5,))
    expect_error(lambda: dist.all_reduce(other), "rank 1 calls all_reduce of sparse", 5.0)
    shape = (1_000_000, 2560, 1024, 16, 16, 3 if rank == 0 else 4)
    other = torch.sparse_coo_tensor(torch.empty(6, 0, dtype=torch.int64), torch.empty(0, dtype=torch.bfloat16), shape)
    expect_error(lambda: dist.all_reduce(other), "rank 1 calls all_reduce of sparse", 5.0)
    right("sparse")


def copies():
    rank, size = begin()
    for dtype in FLOATS + INTEGERS + (torch.bool, torch.complex64):
        for length in LENGTHS:
            what = f"{length} {dtype}"
            root = length % size
            tensor = given(rank, length, dtype)
            dist.broadcast(tensor, root)
            check(tensor, given(root, length, dtype), "broadcast " + what)
            parts = [given(r, length, dtype) for r in range(size)]
            outs = [torch.empty(length, dtype=dtype) for _ in range(size)]
            dist.all_gather(outs, given(rank, length, dtype))
            for r in range(size):
                check(outs[r], parts[r], "all_gather " + what)
            out = torch.empty(size * length, dtype=dtype)
            dist.all_gather_into_tensor(out, given(rank, length, dtype))
            check(out, torch.cat(parts), "all_gather_into_tensor " + what)
            uneven = [torch.empty(length + r, dtype=dtype) for r in range(size)]
            dist.all_gather(uneven, given(rank, length + rank, dtype))
            for r in range(size):
                check(uneven[r], given(r, length + r, dtype), "uneven all_gather " + what)
            outs = [torch.empty(length, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(given(rank, length, dtype), outs, root)
            for r in range(size if rank == root else 0):
                check(outs[r], parts[r], "gather " + what)
            out = torch.empty(length, dtype=dtype)
            dist.scatter(out, parts if rank == root else None, root)
            check(out, parts[rank], "scatter " + what)
            outs = [torch.empty(length + r, dtype=dtype) for r in range(size)]
            dist.all_to_all(outs, [given(rank * 10 + r, length + rank, dtype) for r in range(size)])
            for r in range(size):
                check(outs[r], given(r * 10 + rank, length + r, dtype), "all_to_all " + what)
    rows = [2 + r for r in range(size)]  # to each rank
    source = torch.cat([torch.full((rows[r], 3), float(rank * 100 + r)) for r in range(size)])
    out = torch.empty(rows[rank] * size, 3)
    dist.all_to_all_single(out, source, [rows[rank]] * size, rows)
    check(out, torch.cat([torch.full((rows[rank], 3), float(r * 100 + rank)) for r in range(size)]), "all_to_all_single")
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank * 1000})
    assert [one["rank"] for one in objects] == list(range(size))
    box = [("from", rank)]
    dist.broadcast_object_list(box, size - 1)
    assert box == [("from", size - 1)]
    right("copies")


def strided():
    """Right, or refused before anything is sent."""
    rank, size = begin()
    whole = given(rank, 24, torch.float32).view(4, 6)
    expected = sum(given(r, 24, torch.float32).view(4, 6) for r in range(size))
    tensor = whole.clone().t()
    dist.all_reduce(tensor)
    check(tensor, expected.t(), "all_reduce of a transposed tensor")
    padded = torch.full((4, 12), 9.0)
    padded[:, ::2] = whole
    dist.all_reduce(padded[:, ::2])
    check(padded[:, ::2].contiguous(), expected, "all_reduce of columns")
    assert torch.equal(padded[:, 1::2], torch.full((4, 6), 9.0)), "what lies between was written"
    tensor = whole.clone().t()
    dist.broadcast(tensor, 1)
    check(tensor, given(1, 24, torch.float32).view(4, 6).t(), "broadcast of a transposed tensor")
    out = torch.empty(6, 4 * size).t()
    dist.all_gather_into_tensor(out, whole.clone())
    check(out, torch.cat([given(r, 24, torch.float32).view(4, 6) for r in range(size)]), "all_gather into a transposed tensor")
    for refused in (torch.ones(1).expand(5), torch.arange(10.0).as_strided((5, 3), (1, 2))):
        try:
            dist.all_reduce(refused)
        except ValueError as error:
            assert "share memory" in str(error), error
        else:
            raise AssertionError("elements that share memory were written")
    dist.all_gather_into_tensor(torch.empty(5 * size), torch.ones(1).expand(5))  # read only
    # From 2.14 on PyTorch refuses it by itself.
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    expect_error(lambda: dist.broadcast(quantised, 0), "uanti", 1.0, (ValueError, NotImplementedError))
    whole = torch.zeros(size * 4)
    part = whole[rank * 4:rank * 4 + 4]
    part.fill_(rank + 1)
    dist.all_gather_into_tensor(whole, part)
    check(whole, torch.arange(1, size + 1).repeat_interleave(4).float(), "all_gather in place")
    column = given(rank, 2 * size, torch.float32).view(size, 2)[:, 1]  # of single elements PyTorch says that they are contiguous
    singles = [column[r:r + 1] for r in range(size)]
    out = torch.empty(1)
    dist.scatter(out, singles if rank == 0 else None)
    check(out, given(0, 2 * size, torch.float32)[2 * rank + 1:2 * rank + 2], "scatter of single elements")
    outs = [torch.empty(1) for _ in range(size)]
    dist.all_to_all(outs, singles)
    check(torch.cat(outs), torch.cat([given(r, 2 * size, torch.float32)[2 * rank + 1:2 * rank + 2] for r in range(size)]), "all_to_all")
    one = torch.arange(8, dtype=torch.int16).view(4, 2)[:, 1][1:2]
    dist.all_reduce(one)
    check(one, torch.tensor([3 * size], dtype=torch.int16), "all_reduce of a single element")
    right("strided")


def messages():
    rank, size = begin()
    to, source = (rank + 1) % size, (rank - 1) % size
    for length in LENGTHS:
        got = torch.empty(length)
        works = [dist.isend(given(rank, length, torch.float32), to, tag=3), dist.irecv(got, source, tag=3)]
        for work in works:
            work.wait()
        check(got, given(source, length, torch.float32), "isend, irecv")
        first, second = torch.empty(length), torch.empty(length)
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, first, source, tag=1), dist.P2POp(dist.irecv, second, source, tag=2),
                                        dist.P2POp(dist.isend, given(7, length, torch.float32), to, tag=2),
                                        dist.P2POp(dist.isend, given(6, length, torch.float32), to, tag=1)])
        for work in works:
            work.wait()
        check(first, given(6, length, torch.float32), "tag 1")
        check(second, given(7, length, torch.float32), "tag 2")
    if rank == 0:
        dist.send(torch.ones(3), 1)
        dist.send_object_list([{"a": 1}], 1)
    elif rank == 1:
        dist.recv(torch.empty(3), 0)
        box = [None]
        dist.recv_object_list(box, 0)
        assert box == [{"a": 1}]
    whole = torch.ones(4, 3).t()
    for call in (lambda: dist.broadcast(whole, size), lambda: dist.broadcast(whole, -1), lambda: dist.reduce(torch.ones(3), -1),
                 lambda: dist.isend(torch.ones(3), -1), lambda: dist.gather(torch.ones(3), None, -1)):
        expect_error(call, "", 1.0, (ValueError,))
    check(whole, torch.ones(3, 4), "what a call that was refused has left")
    try:
        dist.recv(torch.empty(3))
    except RuntimeError as error:
        assert "a rank that is named" in str(error), error
    else:
        raise AssertionError("a receive from any rank was not refused")
    dist.barrier()
    right("messages")


def several():
    """Groups, coalesced calls, many at once, threads."""
    rank, size = begin()
    with dist._coalescing_manager(device=torch.device("cpu")):
        a, b = torch.ones(3), torch.full((5,), 2.0)
        dist.all_reduce(a)
        dist.all_reduce(b)
    check(a, torch.full((3,), float(size)), "coalesced")
    check(b, torch.full((5,), 2.0 * size), "coalesced")
    groups = [dist.new_group([r, (r + 1) % size]) for r in range(size)]
    for _ in range(3):
        for r in range(size):
            if rank in (r, (r + 1) % size):
                tensor = torch.full((2,), float(rank))
                dist.all_reduce(tensor, group=groups[r])
                check(tensor, torch.full((2,), float(r + (r + 1) % size)), "group")
    tensors = [given(rank + i, 100 + i, torch.float32) for i in range(500)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    del works[::2]  # forgotten while under way
    for work in works:
        work.wait()
    dist.barrier()
    for i, tensor in enumerate(tensors):
        if i % 2 == 1:
            check(tensor, folded(torch.add, [given(r + i, 100 + i, torch.float32) for r in range(size)]), "one of many")
    own = [dist.new_group() for _ in range(4)]
    failures = []

    def work_alone(number):
        try:
            for i in range(50):
                tensor = torch.full((1000,), float(number + i))
                dist.all_reduce(tensor, group=own[number])
                check(tensor, torch.full((1000,), float(size * (number + i))), "of a thread")
        except BaseException as failure:  # noqa: told below
            failures.append(failure)

    threads = [threading.Thread(target=work_alone, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for group in own:
        dist.destroy_process_group(group)
    for number in range(60):
        group = dist.new_group()
        tensor = torch.ones(number)
        dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)
    dist.monitored_barrier()
    right("several")


def split():
    """Parts of a group, in the order that the program gives, and parts of parts."""
    rank, size = begin()
    order = list(reversed(range(size)))
    whole = dist.split_group(None, [order])
    assert dist.get_process_group_ranks(whole) == order, dist.get_process_group_ranks(whole)
    parts = [torch.empty(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(parts, torch.tensor([rank]), group=whole)
    check(torch.cat(parts), torch.tensor(order), "a group of another order")
    halves = dist.split_group(whole, [[0, 1], list(range(2, size))], timeout=datetime.timedelta(seconds=2))
    mine = order[:2] if rank in order[:2] else order[2:]
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=halves)
    check(tensor, torch.full((3,), float(sum(mine))), "a part of a part")
    if rank == 0:
        expect_error(lambda: dist.split_group(None, [[1, 2]]), "leaves out rank 0", 1.0, ValueError)
    if rank == order[0]:
        expect_error(lambda: dist.all_reduce(torch.ones(2), group=halves), "its timeout of 2 s is over", 10.0)
    dist.barrier()
    right("split")


def again():
    """destroy and init, with the same store."""
    for number in range(3):
        rank, size = begin()
        tensor = torch.full((4,), float(number))
        dist.all_reduce(tensor)
        check(tensor, torch.full((4,), float(number * size)), "after init")
        dist.destroy_process_group()
    right("again")


def mismatch():
    """Every rank hears which call differs; other groups go on."""
    rank, size = begin()
    for wrong in (lambda group: dist.all_reduce(torch.ones(5), group=group),
                  lambda group: dist.all_reduce(torch.ones(4, dtype=torch.float64), group=group),
                  lambda group: dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX, group=group),
                  lambda group: dist.broadcast(torch.ones(4), 0, group=group),
                  lambda group: dist.all_gather_into_tensor(torch.ones(4 * size), torch.ones(4), group=group)):
        group = dist.new_group()
        dist.all_reduce(torch.ones(4), group=group)
        call = (lambda: dist.all_reduce(torch.ones(4), group=group)) if rank == 0 else (lambda: wrong(group))
        assert "new_group" in str(expect_error(call, "calls number 2", 5.0))
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        check(tensor, torch.full((3,), float(size)), "another group after a mismatch")
    # What bps sees as bytes only.
    op = dist.ReduceOp.BAND if rank == 0 else dist.ReduceOp.BOR
    for call in (lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32), op),
                 lambda: dist.reduce_scatter_tensor(torch.ones(4, dtype=torch.int16), torch.ones(4 * size, dtype=torch.int16),
                                                    dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX)):
        expect_error(call, "rank 1 calls", 5.0)
    right("mismatch")


def killed():
    rank, size = begin()
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        print("under way", flush=True)
        signal.pause()
    error = expect_error(lambda: dist.all_reduce(torch.ones(3)), "rank 1", 30.0)
    print(f"told: {type(error).__name__}: {error}", flush=True)
    sys.exit(3)


def deadlines():
    """The group's, a wait's; and the group is of no use afterwards."""
    rank, size = begin(60)
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        expect_error(lambda: work.wait(datetime.timedelta(seconds=0.5)), "not done within 0.5 s", 2.0)
        assert not work.is_completed()
        expect_error(work.wait, "its timeout of 2 s is over", 5.0)
        expect_error(lambda: work.get_future().wait(), "its timeout of 2 s is over", 5.0)
        expect_error(lambda: dist.all_reduce(torch.ones(3), group=group), "its timeout of 2 s is over", 1.0)
    late = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if rank == 0:
        missing = "Ranks " + ", ".join(map(str, range(1, size))) if size > 2 else "Rank 1"
        expect_error(lambda: dist.monitored_barrier(late, datetime.timedelta(seconds=1), wait_all_ranks=True),
                     missing + " failed to pass", 5.0)
        expect_error(lambda: dist.all_reduce(torch.ones(3), group=late), "failed to pass", 1.0)
    dist.all_reduce(torch.ones(3))
    right("deadlines")


def forked():
    """A child of fork gets an error from each call, and the parent goes on."""
    rank, size = begin()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as error:
            os._exit(5 if "forked" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    check(tensor, torch.full((3,), float(size)), "after a fork")
    right("forked")


def leaves_a_child():
    """Of fork, which stays longer than the ranks."""
    begin()
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    dist.all_reduce(torch.ones(3))
    print(f"child {child}", flush=True)


def leaves():
    """Rank 1 ends well, before a call of the others."""
    rank, size = begin()
    dist.all_reduce(torch.ones(3))
    if rank != 1:
        expect_error(lambda: dist.all_reduce(torch.ones(3)), "rank 1", 10.0)
        error = expect_error(lambda: dist.all_reduce(torch.ones(3)), "has left the job", 10.0)
        assert "DistributedDataParallel has join" in str(error), error
    right("leaves")


def alone():
    """A job of one rank, and groups of it."""
    rank, size = begin(20)
    tensor = torch.full((3,), 2.0)
    dist.all_reduce(tensor, group=dist.new_group([0]))
    check(tensor, torch.full((3,), 2.0), f"all_reduce of {size}")
    right("alone")


def daemons_of_my_own():
    """Says who runs them, and waits to be ended."""
    rank, size = begin()
    dist.all_reduce(torch.ones(3))
    is_over = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: is_over.set())
    print("under way", flush=True)
    is_over.wait()
    try:
        dist.destroy_process_group()
    except RuntimeError as error:  # its daemons are gone
        print(error, flush=True)


def dies_as_it_begins():
    """Rank 0, when it has started a daemon that nobody holds yet, and whose keeper has not begun."""
    from bps.torch.backend import cluster

    def die(_cluster, _folder, _meeting, keeper=None):
        os.kill(keeper.pid, signal.SIGSTOP)
        print(f"keeper {keeper.pid}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    if os.environ["RANK"] == "0":
        cluster.Cluster.hold = die
    try:
        begin()
    except RuntimeError as error:
        print(f"told: {type(error).__name__}: {error}", flush=True)


def too_few():
    """With a store that does not count its ranks itself."""
    try:
        dist.init_process_group("bps", init_method=f"file://{os.environ['TMPDIR']}/store", rank=int(os.environ["RANK"]),
                                world_size=int(os.environ["WORLD_SIZE"]), timeout=datetime.timedelta(seconds=8))
    except RuntimeError as error:
        print(f"told: {error}", flush=True)


if __name__ == "__main__":
    run(globals())
