"""Workers of cluster_test.py: python3 numpy_worker.py FUNCTION [ARGUMENT]. None catches its error, and they end with its exit code all the same."""
import io
import os
import random
import re
import signal
import sys
import time

import bps
import numpy

STEPS = 5


def gradient(rank, step, count):
    return numpy.random.default_rng([rank, step]).standard_normal(count).astype("f4")


def kvstore():
    """Sums of f32 are those of one process that adds in rank order, bit for bit; integers are exact."""
    with bps.KVStore() as store:
        ranks, rank = store.num_workers, store.rank
        start = numpy.full((7, 11), rank, "f4")
        out = numpy.empty_like(start)
        store.broadcast("weight", start, out)
        assert (out == 0).all() and (start == rank).all()
        store.broadcast(["a", 3], [start, start], [out, out + 1], priority=2)
        for step in range(STEPS):
            mine = gradient(rank, step, 100_003)
            expected = gradient(0, step, 100_003)
            for other in range(1, ranks):
                expected += gradient(other, step, 100_003)
            out = numpy.empty_like(mine)
            whole, total = numpy.full(9, rank + step), numpy.empty(9, int)
            store.pushpull(["gradient", 7], [mine, whole], [out, total], priority=1)
            assert out.tobytes() == expected.tobytes()
            assert (total == sum(range(ranks)) + ranks * step).all()
            store.pushpull("in place", mine)
            assert mine.tobytes() == expected.tobytes()
    print("right")


def bitwise():
    """and, or and xor of integers are NumPy's, on every rank."""
    with bps.Client() as client:
        given = [numpy.random.default_rng(rank).integers(-100, 100, 1001, "i4") for rank in range(client.world_size)]
        tensor, = client.declare([bps.TensorSpec("flags", bps.DType.I32, 1001)])
        for op, function in ((bps.Op.AND, numpy.bitwise_and), (bps.Op.OR, numpy.bitwise_or), (bps.Op.XOR, numpy.bitwise_xor)):
            out = numpy.zeros(1001, "i4")
            client.push_pull(tensor, given[client.rank], out, op).wait()
            assert (out == function.reduce(given)).all(), op
    print("right")


def exchanges():
    """Broadcast and reduce from and to every rank, in turns with push_pull, are NumPy's bit for bit, on one tensor."""
    with bps.Client() as client:
        rank, ranks = client.rank, range(client.world_size)
        tensor, = client.declare([bps.TensorSpec("weight", bps.DType.F32, 200_003)])
        for step in range(4 * len(ranks)):
            root = step % len(ranks)
            given = [gradient(other, step, 200_003) for other in ranks]
            total = given[0].copy()
            for other in given[1:]:
                total += other
            mine, out = given[rank].copy(), numpy.zeros(200_003, "f4")
            if step % 3 == 0:
                handle = client.reduce(tensor, mine, out if step % 2 == 0 else None, root, bps.Op.SUM)
                expected = total if rank == root else given[rank]
                got = mine if step % 2 == 1 or rank != root else out
            elif step % 3 == 1:
                handle = client.broadcast(tensor, mine, root)
                got, expected = mine, given[root]
            else:
                handle = client.push_pull(tensor, mine, out, bps.Op.SUM)
                got, expected = out, total
            handle.wait()
            assert got.tobytes() == expected.tobytes(), (step, root)
            assert handle.ranks == (len(ranks) if step % 3 == 2 or (step % 3 == 0 and rank == root) else 1), handle.ranks
    print("right")


def summed(arrays):
    total = arrays[0].copy()
    for other in arrays[1:]:
        total += other
    return total


def parts():
    """reduce_scatter and all_gather, apart and in place, among other rounds, are NumPy's bit for bit: the owner of a part
    comes last, or all in rank order."""
    with bps.Client() as client:
        rank, size = client.rank, client.world_size
        uneven = [7_001 * (other % 2) + 60_000 * (other == size - 1) + 3 for other in range(size)]  # some packed, some cut
        ends = [0] * (size - 1) + [10_000]
        for number, cut in enumerate(([100], [90_001], uneven, ends)):
            counts = cut * size if len(cut) == 1 else cut
            starts = numpy.concatenate(([0], numpy.cumsum(counts)))
            whole, own = int(starts[-1]), slice(int(starts[rank]), int(starts[rank + 1]))
            tensor, = client.declare([bps.TensorSpec(f"parts{number}", bps.DType.F32, whole, parts=cut)])
            assert tensor.part == counts[rank]
            for step in range(6):
                given = [gradient(other, step, whole) for other in range(size)]
                total = summed(given)
                is_exact = step % 3 == 0
                expected = total.copy()
                for owner in range(0 if is_exact else size):
                    theirs = slice(int(starts[owner]), int(starts[owner + 1]))
                    expected[theirs] = summed([*(given[r][theirs] for r in range(size) if r != owner), given[owner][theirs]])
                mine = given[rank].copy()
                out = mine[own] if step % 2 else numpy.zeros(counts[rank], "f4")
                handle = client.reduce_scatter(tensor, mine, out, bps.Op.SUM, exact_order=is_exact)
                handle.wait()
                assert out.tobytes() == expected[own].tobytes(), (cut, step)
                assert handle.ranks == (size if counts[rank] else 1), handle.ranks
                gathered = numpy.full(whole, -1, "f4")
                source = gathered[own] if step % 2 else out
                source[:] = out
                client.all_gather(tensor, source, gathered).wait()
                assert gathered.tobytes() == expected.tobytes(), (cut, step)
                handle = client.push_pull(tensor, mine if step % 2 == 0 else given[rank], gathered, bps.Op.SUM)
                handle.wait()
                assert gathered.tobytes() == total.tobytes() and handle.ranks == size, (cut, step)
            client.drop(tensor).wait()
        for refused in ([1], [1] * (size + 1), [-1] + [1] * (size - 1)):
            try:
                client.declare([bps.TensorSpec("refused", bps.DType.F32, 10 * size, parts=refused)])
            except bps.Error as error:
                assert error.code == bps.Code.INVALID_ARGUMENT, error
            else:
                raise AssertionError(refused)
    print("right")


def groups():
    """Every exchange among some ranks only, which share some of their names, is NumPy's bit for bit: sums in the order of
    the group. Groups overlap, and the job goes on meanwhile."""
    with bps.Client() as client:
        rank, everyone = client.rank, list(range(client.world_size))
        lists = {"backwards": everyone[::-1], "half": everyone[rank % 2::2], "ends": [everyone[-1], 0], f"alone{rank}": [rank]}
        job, = client.declare([bps.TensorSpec("job", bps.DType.F32, 100_003)])
        tensors = {}
        for name, ranks in lists.items():
            if rank in ranks:
                cut = [3 + 70_001 * (place % 2) for place in range(len(ranks))]
                tensors[name], = client.declare([bps.TensorSpec(name, bps.DType.F32, sum(cut), parts=cut, ranks=ranks)])
        for step in range(6):
            whole = gradient(rank, step, job.count)
            everywhere = client.push_pull(job, whole, op=bps.Op.SUM)
            for name, tensor in tensors.items():
                ranks, place = lists[name], lists[name].index(rank)
                given = [gradient(other, step, tensor.count) for other in ranks]
                total, mine, out = summed(given), given[place], numpy.zeros(tensor.count, "f4")
                handle = client.push_pull(tensor, mine, out, bps.Op.SUM)
                handle.wait()
                assert out.tobytes() == total.tobytes() and handle.ranks == len(ranks), (name, step)
                root = ranks[step % len(ranks)]
                client.reduce(tensor, mine, out if rank == root else None, root, bps.Op.MAX).wait()
                assert rank != root or out.tobytes() == numpy.maximum.reduce(given).tobytes(), (name, step)
                out[:] = mine
                client.broadcast(tensor, out, root).wait()
                assert out.tobytes() == given[ranks.index(root)].tobytes(), (name, step)
                begin = sum(3 + 70_001 * (before % 2) for before in range(place))
                own = slice(begin, begin + tensor.part)
                part = numpy.zeros(tensor.part, "f4")
                client.reduce_scatter(tensor, mine, part, bps.Op.SUM, exact_order=step % 2 == 0).wait()
                others = [total[own], summed([*(g[own] for g in given[:place] + given[place + 1:]), mine[own]])]
                assert part.tobytes() == others[step % 2].tobytes(), (name, step)
                client.all_gather(tensor, mine[own].copy(), out).wait()
                starts = numpy.cumsum([0] + [3 + 70_001 * (other % 2) for other in range(len(ranks))])
                gathered = numpy.concatenate([g[a:b] for g, a, b in zip(given, starts, starts[1:])])
                assert out.tobytes() == gathered.tobytes(), (name, step)
            everywhere.wait()
            assert whole.tobytes() == summed([gradient(other, step, job.count) for other in everyone]).tobytes(), step
        for ranks in ([other for other in everyone if other != rank], [rank, rank], [rank, len(everyone)], [], [-1, rank]):
            try:
                client.declare([bps.TensorSpec("refused", bps.DType.F32, 10, ranks=ranks)])
            except bps.Error as error:
                assert error.code == bps.Code.INVALID_ARGUMENT, error
            else:
                raise AssertionError(ranks)
        if len(everyone) > 1:
            try:
                client.broadcast(tensors[f"alone{rank}"], numpy.zeros(3, "f4"), root=(rank + 1) % len(everyone))
            except bps.Error as error:
                assert error.code == bps.Code.INVALID_ARGUMENT and "does not share" in error.message, error
            else:
                raise AssertionError("a root outside the group")
        for handle in [client.drop(tensor) for tensor in tensors.values()]:
            handle.wait()
    print("right")


def group_names():
    """A name goes from one group to another. Who is only in the second one may be there first."""
    with bps.Client() as client:
        order, ones = random.Random(5), numpy.ones(50_000, "f4")
        for step in range(300):
            ranks = order.sample(range(client.world_size), order.randint(1, client.world_size))
            if client.rank in ranks:
                tensor, = client.declare([bps.TensorSpec(f"name{step % 3}", bps.DType.F32, 50_000, ranks=ranks)])
                total = numpy.zeros_like(ones)
                client.push_pull(tensor, ones, total, bps.Op.SUM).wait()
                assert (total == len(ranks)).all(), (step, ranks)
                client.drop(tensor)
    print("right")


def scales():
    """Weighted averages, prescales and postscales are NumPy's bit for bit; what cannot be used is an error on all ranks."""
    with bps.Client() as client:
        rank, size = client.rank, client.world_size
        for dtype, name in ((bps.DType.F32, "f4"), (bps.DType.F64, "f8")):
            tensor, = client.declare([bps.TensorSpec(f"weight {name}", dtype, 150_001, parts=[1] * (size - 1) + [150_002 - size])])
            kind = numpy.dtype(name).type
            for step in range(4):
                given = [gradient(other, step, tensor.count).astype(name) for other in range(size)]
                weights = [float(other * step + 0.1) for other in range(size)]
                factors = [kind(weight) for weight in weights]
                total = summed([factor * array for factor, array in zip(factors, given)])
                scale, out = bps.Scale(weight=weights[rank], postscale=3.0), given[rank].copy()
                handle = client.push_pull(tensor, out if step % 2 else given[rank], out, scale=scale)
                handle.wait()
                expected = total / kind(sum(weights)) * kind(3.0)
                assert out.tobytes() == expected.tobytes() and handle.ranks == size, (name, step)
                part = numpy.zeros(tensor.part, name)
                client.reduce_scatter(tensor, given[rank], part, exact_order=True, scale=scale).wait()
                assert part.tobytes() == expected[rank:rank + tensor.part].tobytes(), (name, step)
                client.reduce(tensor, given[rank], out, root=0, op=bps.Op.SUM, scale=bps.Scale(prescale=weights[rank])).wait()
                assert rank != 0 or out.tobytes() == total.tobytes(), (name, step)
            bad = bps.Scale(weight=-1.0 if rank == size - 1 else 1.0)
            fails(f"what rank {size - 1} gives has a weight of -1", lambda: client.push_pull(tensor, out, scale=bad).wait(),
                  bps.Code.INVALID_ARGUMENT)
            fails("the weights of the average add up to 0",
                  lambda: client.push_pull(tensor, out, scale=bps.Scale(weight=0.0)).wait(), bps.Code.INVALID_ARGUMENT)
            for op, scale in ((bps.Op.MAX, bps.Scale(prescale=2.0)), (bps.Op.SUM, bps.Scale(weight=2.0))):
                try:
                    client.push_pull(tensor, out, op=op, scale=scale)
                except bps.Error as error:
                    assert error.code == bps.Code.INVALID_ARGUMENT, error
                else:
                    raise AssertionError(op)
    print("right")


def any_type():
    """Arrays of types that cannot be reduced are copied as their bytes."""
    with bps.Client() as client:
        rank, size = client.rank, client.world_size
        for name in ("?", "i2", "u4", "c8", "f4", "S3", "f8,u1"):
            width = numpy.dtype(name).itemsize
            given = [numpy.frombuffer(gradient(other, width, 1000).tobytes()[:100 * width], name) for other in range(size)]
            tensor, = client.declare([bps.TensorSpec(f"bytes of {name}", bps.DType.U8, 100 * width * size, parts=[100 * width])])
            out = numpy.zeros(100 * size, name)
            client.all_gather(tensor, given[rank], out).wait()
            assert out.tobytes() == b"".join(array.tobytes() for array in given), name
            array = given[rank].copy()
            client.broadcast(tensor, array, root=size - 1).wait()
            assert array.tobytes() == given[size - 1].tobytes(), name
            if name not in ("f4", "S3", "f8,u1"):
                fails("can be copied, with a tensor of u8", lambda: client.push_pull(tensor, array), bps.Code.INVALID_ARGUMENT)
    print("right")


def short_calls():
    """Calls of the first elements of a tensor: NumPy's bits, whatever the call before had, and an error where ranks differ."""
    with bps.Client() as client:
        rank, size = client.rank, client.world_size
        tensor, = client.declare([bps.TensorSpec("buffer", bps.DType.F32, 150_001)])
        for step, count in enumerate((150_001, 1, 0, 70_000, 16_384, 150_000, 0, 5)):
            given = [gradient(other, step, count) for other in range(size)]
            expected = summed(given)
            out = numpy.zeros(count, "f4")
            handle = client.push_pull(tensor, given[rank], out, op=bps.Op.SUM)
            handle.wait()
            assert out.tobytes() == expected.tobytes() and handle.ranks == size, (count, handle.ranks)
            array = given[rank].copy()
            client.reduce(tensor, array, root=size - 1, op=bps.Op.SUM).wait()
            assert array.tobytes() == (expected if rank == size - 1 else given[rank]).tobytes(), count
            client.broadcast(tensor, array, root=size - 1).wait()
            assert array.tobytes() == expected.tobytes(), count
        fails("'out' has 24 bytes, this call of tensor 'buffer' has 20",
              lambda: client.push_pull(tensor, numpy.zeros(5, "f4"), numpy.zeros(6, "f4")), bps.Code.INVALID_ARGUMENT)
        for array in (numpy.zeros(150_002, "f4"), numpy.zeros(5, "f8")):
            fails("declared were 150001 of f32", lambda: client.push_pull(tensor, array), bps.Code.INVALID_ARGUMENT)
        client.barrier()
        if size > 1:
            odd = numpy.ones(9 + (rank == size - 1), "f4")
            fails("rank .* calls sum of (9|10)", lambda: client.push_pull(tensor, odd, op=bps.Op.SUM).wait())
    print("right")


KINDS = ((bps.DType.F32, "f4"), (bps.DType.I64, "i8"), (bps.DType.F64, "f8"))


def checked(client, count, kind=0, op=bps.Op.SUM):
    """A tensor of the one name that is declared now, and has been summed."""
    dtype, name = KINDS[kind]
    tensor, = client.declare([bps.TensorSpec("weight", dtype, count)])
    array = numpy.full(count, client.rank + 1, name)
    handle = client.push_pull(tensor, array, op=op)
    handle.wait()
    assert (array == sum(range(client.world_size + 1))).all() and handle.ranks == client.world_size, array
    return tensor


def fails(pattern, function, code=bps.Code.CONFIGURATION):
    """Mostly because the ranks differ."""
    try:
        function()
    except bps.Error as error:
        assert error.code == code and re.search(pattern, str(error)), error
    else:
        raise AssertionError("it went well")


def drops():
    """The servers have no room for two of the tensors."""
    with bps.Client() as client:
        for step in range(200):
            dtype = KINDS[step % 3][0]
            client.drop(checked(client, 4_000_000 // dtype.bytes - step, step % 3)).wait()
            if step in (20, 199):
                print("step", step)
                sys.stdin.readline()


def drops_without_waiting():
    """Ranks are at different tensors of the name, and some have the same one twice in a row."""
    with bps.Client() as client:
        handles = []
        for step in range(200):
            tensor = checked(client, 50_000 + step, step % 3)
            if step % 5 == client.rank:
                assert client.declare([bps.TensorSpec("weight", tensor.dtype, tensor.count)]) == [tensor]
            handles.append(client.drop(tensor))
        for handle in handles:
            handle.wait()


def quarrel():
    """Whatever ranks disagree about, they drop the tensor, declare it once more, and go on."""
    with bps.Client() as client:
        for step in range(10):
            tensor = checked(client, 100_000)
            client.barrier()  # a tensor fails on all ranks, also for one that waits for the round before
            op = bps.Op.MAX if client.rank == step % client.world_size else bps.Op.SUM
            fails("rank . calls (sum|max).*rank . calls (sum|max)",
                  lambda: client.push_pull(tensor, numpy.zeros(100_000, "f4"), op=op).wait())
            client.drop(tensor)
            client.drop(checked(client, 70_000, 1))

            # Rank 0 has a tensor to drop, and the others have none.
            tensor = None
            if client.rank == 0:
                tensor, = client.declare([bps.TensorSpec("weight", bps.DType.F32, 12)])
            client.barrier()
            if client.rank == 0:
                client.barrier()
                fails("weight.*(12|10).*(12|10)", lambda: client.push_pull(tensor, numpy.zeros(12, "f4")).wait())
                client.drop(tensor)
            else:
                fails("weight.*(12|10).*(12|10)", lambda: client.declare([bps.TensorSpec("weight", bps.DType.F32, 10)]))
                client.barrier()
            client.drop(checked(client, 20, 2)).wait()


def one_drops():
    """A push_pull of another rank fails, and names the rank that dropped. The drop ends when all ranks have dropped."""
    with bps.Client() as client:
        for step in range(10):
            tensor, who = checked(client, 100_000), step % client.world_size
            client.barrier()
            if client.rank == who:
                handle = client.drop(tensor)
                client.barrier()
                assert not handle.poll()
            else:
                fails(f"rank {who}.*dropped", lambda: client.push_pull(tensor, numpy.zeros(100_000, "f4")).wait())
                client.barrier()
            client.barrier()
            if client.rank != who:
                handle = client.drop(tensor)
            client.drop(checked(client, 70_000, 1))
            handle.wait()


def mismatch():
    with bps.Client() as client:
        count = 10 if client.rank else 12
        tensor, = client.declare([bps.TensorSpec("weight", bps.DType.F32, count)])
        client.push_pull(tensor, numpy.zeros(count, "f4")).wait()


def half_declared():
    """Both ranks declare and push; rank 1 never ends its step."""
    client = bps.Client()
    tensors = client.declare([bps.TensorSpec(name, bps.DType.F32, 100_000) for name in ("first", "second")])
    array = numpy.zeros(100_000, "f4")
    client.push_pull(tensors[0], array).wait()
    return client, tensors[1], array


def lost():
    client, second, array = half_declared()
    if client.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    client.push_pull(second, array).wait()


def raises():
    client, second, array = half_declared()
    if client.rank == 1:
        raise ValueError("a bug of the program")
    client.push_pull(second, array).wait()


def raises_in_with():
    """Between two rounds, when nothing is under way."""
    client, second, array = half_declared()
    with client:
        if client.rank == 1:
            raise ValueError("a bug of the program")
        client.push_pull(second, array).wait()


def raised_again():
    """With a hook of its own, which is called as ever, and an error that is only the cause."""
    def shown(kind, exception, trace):
        print("hook of the program:", exception, flush=True)

    sys.excepthook = shown
    try:
        lost()
    except bps.Error as problem:
        raise ValueError("the program's own words") from problem


def lost_inside_a_hook():
    """A hook of later that collects what the one before it prints, as torch.distributed's does."""
    client, second, array = half_declared()
    inner = sys.excepthook

    def collect(kind, exception, trace):
        stderr, sys.stderr = sys.stderr, io.StringIO()
        try:
            inner(kind, exception, trace)
        finally:
            collected, sys.stderr = sys.stderr.getvalue(), stderr
        print("collected:", collected.splitlines()[-1], flush=True)

    sys.excepthook = collect
    if client.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    client.push_pull(second, array).wait()


def lost_on_another_thread():
    """Only an error that ends the main thread ends the program."""
    import threading
    threads = [threading.Thread(target=lost)]
    for thread in threads:
        thread.start()
        thread.join()
    print("the main thread goes on")


def exits_well_in_with():
    client, second, array = half_declared()
    with client:
        client.push_pull(second, array).wait()
        sys.exit(0)


def exits(code, way=None):
    """Without a `with`, between two rounds; a SystemExit that is caught ends nothing."""
    client, second, array = half_declared()
    try:
        sys.exit(9)
    except SystemExit as caught:
        assert caught.code == 9
    if client.rank == 1:
        (way or sys.exit)(code)
    client.push_pull(second, array).wait()


def exits_badly():
    exits(3)


def exits_with_a_text():
    exits("a text of the program")


def exits_by_exit():
    exits(3, lambda status: exit(status))


def exits_by_quit():
    exits(3, lambda status: quit(code=status))


def ends_after_an_error_in_a_shell():
    """Where it is looked at after its end (pdb.pm)."""
    client, second, array = half_declared()
    try:
        raise ValueError("seen and dealt with")
    except ValueError:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
    if client.rank != 1:
        client.push_pull(second, array).wait()


def exits_well():
    exits(0)


def exits_on_another_thread():
    import threading
    client, second, array = half_declared()
    thread = threading.Thread(target=sys.exit, args=(5,))
    thread.start()
    thread.join()
    client.push_pull(second, array).wait()


def interrupted():
    client, second, array = half_declared()
    print("waiting")
    if client.rank == 0:
        client.push_pull(second, array).wait(float(sys.argv[2]))
    client.barrier()


def expired():
    """A wait that expires names who is missing, and may be tried again."""
    client, second, array = half_declared()
    handle = None
    if client.rank == 0:
        handle = client.push_pull(second, array)
        said, deadline = "", time.monotonic() + 60
        while "missing" not in said and time.monotonic() < deadline:  # the scheduler's answer may have been too late for it
            try:
                handle.wait(0.3)
            except bps.Error as error:
                assert error.code == bps.Code.DEADLINE, error
                said = str(error)
        print(said)
    client.barrier()
    if client.rank == 1:
        handle = client.push_pull(second, array)
    handle.wait()
    client.close()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
