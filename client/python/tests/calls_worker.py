"""A worker of calls_test.py."""
import sys

import bps
import numpy

from numpy_worker import fails, gradient, summed


def calls():
    """Calls on groups, of arrays that nobody has declared: NumPy's bits, hundreds at once, and the call that differs."""
    with bps.Client() as client:
        rank, size = client.rank, client.world_size
        odd = [other for other in reversed(range(size)) if other % 2 == 1]
        groups = [(client.world, list(range(size)))]
        if rank in odd:
            groups.append((client.group("odd", odd), odd))
        for step, count in enumerate((0, 1, 1000, 70_000, 3, 2_000_000)):
            for name in ("f4", "f8", "i4", "u1", "i8"):
                for group, ranks in groups:
                    given = {other: gradient(other, step, count).astype(name) for other in ranks}
                    expected = summed([given[other] for other in ranks])
                    out = numpy.zeros(count, name)
                    handle = group.push_pull(given[rank], out, op=bps.Op.SUM)
                    handle.wait()
                    assert out.tobytes() == expected.tobytes(), (name, count, ranks)
                    assert count == 0 or handle.ranks == len(ranks), handle.ranks
                    array = given[rank].copy()
                    group.reduce(array, root=ranks[0], op=bps.Op.SUM).wait()
                    assert array.tobytes() == (expected if rank == ranks[0] else given[rank]).tobytes(), (name, count)
                    group.broadcast(array, root=ranks[0]).wait()
                    assert array.tobytes() == expected.tobytes(), (name, count)
        for group, ranks in groups:
            place = ranks.index(rank)
            for step in range(150):  # more tables of parts than are kept
                equal = step % 5 != 0
                parts = [step if equal else (step * 7 + at * 13) % 41 for at in range(len(ranks))]
                begin, mine, whole = sum(parts[:place]), parts[place], sum(parts)
                given = {other: gradient(other, step, whole).astype("i4") for other in ranks}
                expected = summed([given[other] for other in ranks])
                out = numpy.zeros(mine, "i4")
                group.reduce_scatter(given[rank], out, op=bps.Op.SUM, parts=None if equal else parts).wait()
                assert out.tobytes() == expected[begin:begin + mine].tobytes(), (step, parts)
                gathered = numpy.zeros(whole, "i4")
                group.all_gather(out, gathered, None if equal else [4 * part for part in parts]).wait()
                assert gathered.tobytes() == expected.tobytes(), (step, parts)
        arrays = [numpy.full(count * 37 % 3000, rank + 1, "f4") for count in range(500)]
        handles = [client.world.push_pull(array, op=bps.Op.SUM) for array in arrays]
        for handle in reversed(handles):
            handle.wait()
        assert all((array == size * (size + 1) / 2).all() for array in arrays)
        client.world.barrier()
        half = numpy.full(10, rank + 1, "f4")
        client.world.push_pull(half, op=bps.Op.AVERAGE, scale=bps.Scale(weight=rank + 1.0)).wait()
        assert half[0] == numpy.float32(sum(other ** 2 for other in range(size + 1))) / numpy.float32(size * (size + 1) / 2)
        fails("cannot be reduced", lambda: client.world.push_pull(numpy.zeros(3, "?")), bps.Code.INVALID_ARGUMENT)
        fails("'out' has 24 bytes, call on group 'world' has 20",
              lambda: client.world.push_pull(numpy.zeros(5, "f4"), numpy.zeros(6, "f4")), bps.Code.INVALID_ARGUMENT)
        fails("is there already", lambda: client.group("world"), bps.Code.INVALID_ARGUMENT)
        if size > 1:
            both = client.group("both")
            both.barrier()
            array = numpy.ones(5000 if rank == size - 1 else 9, "f4")
            fails("group 'both': rank .* calls number 2: sum of (9|5000) f32, rank .* calls number 2: sum of (9|5000) f32",
                  lambda: both.push_pull(array, op=bps.Op.SUM).wait())
            both.drop()
            both = client.group("both")
            both.push_pull(half, op=bps.Op.MAX).wait()
            both.drop().wait()
    print("right")


def part(giver, taker, step, count):
    return gradient(giver * 64 + taker, step, count).astype("f4")


def exchanges(group, rank, ranks, step):
    """scatter, gather and all_to_all of random lengths, of which the last two know them or not."""
    place, size = ranks.index(rank), len(ranks)
    random = numpy.random.default_rng(step)
    lengths = random.integers(0, (5, 3000, 70_000)[step % 3], (size, size))  # [giver][taker]
    if step % 4 == 0:
        lengths[:] = lengths[0][0]
    root = ranks[step % size]
    at = ranks.index(root)
    given = numpy.concatenate([part(rank, ranks[to], step, lengths[place][to]) for to in range(size)])
    expected = numpy.concatenate([part(ranks[giver], rank, step, lengths[giver][place]) for giver in range(size)])
    give, take = [4 * int(n) for n in lengths[place]], [4 * int(n) for n in lengths[:, place]]
    mine = numpy.zeros(lengths[at][place], "f4")
    out = numpy.zeros_like(expected)
    to_root = part(rank, root, step, lengths[place][at])
    gathered = numpy.zeros(lengths[:, at].sum() if rank == root else 0, "f4")
    handles = [group.scatter(given, mine, root, give), group.gather(to_root, gathered, root, take),
               group.all_to_all(given, out, give, take)]
    views = [group.all_to_all(given, source_bytes=give), group.all_gather(to_root)]
    for handle in reversed(handles + views):
        handle.wait()
    assert mine.tobytes() == part(root, rank, step, lengths[at][place]).tobytes(), step
    assert out.tobytes() == expected.tobytes(), step
    if rank == root:
        parts = [part(ranks[giver], root, step, lengths[giver][at]) for giver in range(size)]
        assert gathered.tobytes() == numpy.concatenate(parts).tobytes(), step
    whole = views[0].parts()
    assert b"".join(whole) == expected.tobytes() and [len(one) for one in whole] == take, step
    for giver, one in enumerate(views[1].parts()):
        assert bytes(one) == part(ranks[giver], root, step, lengths[giver][at]).tobytes(), step


def messages():
    """Sends and receives in any order, exchanges of any lengths, and what is refused."""
    with bps.Client() as client:
        rank, size = client.rank, client.world_size
        odd = [other for other in reversed(range(size)) if other % 2 == 1]
        groups = [(client.world, list(range(size)))] + ([(client.group("odd", odd), odd)] if rank in odd else [])
        for group, ranks in groups:
            for step in range(12):
                exchanges(group, rank, ranks, step)
        others = [other for other in range(size) if other != rank]
        handles, arrays = [], {}
        for tag in reversed(range(40)):
            for other in others:
                arrays[other, tag] = numpy.zeros(tag * tag * 37, "f4")
                handles.append(client.world.receive(arrays[other, tag], other, tag))
        for tag in range(40):
            for other in others:
                handles.append(client.world.send(part(rank, other, tag, tag * tag * 37), other, tag))
        for handle in handles:
            handle.wait()
        for (other, tag), array in arrays.items():
            assert array.tobytes() == part(other, rank, tag, tag * tag * 37).tobytes(), (other, tag)
        for count in range(3000):  # memory is used again
            peer = rank ^ 1
            if peer < size:
                client.world.send(numpy.full(3, count, "i4"), peer)
                array = numpy.zeros(3, "i4")
                client.world.receive(array, peer).wait()
                assert (array == count).all()
        many = [numpy.full(count, rank + 1, "f4") for count in (0, 5, 3000, 5)]
        client.world.push_pull_many(many, op=bps.Op.SUM).wait()
        assert all((one == size * (size + 1) / 2).all() for one in many)
        fails("the other end is this rank itself", lambda: client.world.send(b"abc", rank), bps.Code.INVALID_ARGUMENT)
        fails("destination 99 is no rank", lambda: client.world.send(b"abc", 99), bps.Code.INVALID_ARGUMENT)
        fails("tag of a call on group 'world' is -1", lambda: client.world.send(b"abc", 0, -1), bps.Code.INVALID_ARGUMENT)
        fails("cannot divide equally" if size > 1 else "have not the same sum",
              lambda: client.world.all_to_all(bytes(size + 1), bytearray(size + 1), None if size > 1 else [5]),
              bps.Code.INVALID_ARGUMENT)
        fails("give one out for each source", lambda: client.world.push_pull_many([]), bps.Code.INVALID_ARGUMENT)
        if size > 1 and rank < 2:
            array = bytearray(100_000 + rank)
            meet = client.world.send if rank == 0 else client.world.receive
            fails("messages from rank 0 to rank 1 with tag 77 in group 'world': .*of 10000[01] u8.*of 10000[01] u8",
                  lambda: meet(array, 1 - rank, 77).wait())
        client.world.barrier()
    print("right")


def joins():
    """Ranks with more and fewer batches, twice: averages divide by all, and all know who came last."""
    with bps.Client() as client:
        rank, size = client.rank, client.world_size
        for epoch in range(2):
            for step in range(3 + 2 * rank):
                array = numpy.full(1000 + step, rank + 1, "f4")
                client.world.push_pull(array, op=bps.Op.AVERAGE if step % 2 else bps.Op.SUM).wait()
                there = [other + 1 for other in range(size) if step < 3 + 2 * other]
                expected = numpy.float32(sum(there))
                assert (array == (expected / numpy.float32(size) if step % 2 else expected)).all(), (rank, step, array[0])
            join = client.world.join()
            join.wait()
            assert join.last_joined == size - 1, join.last_joined
        if size > 1:
            if rank == 0:
                fails("rank 0 has joined, and call number .*: max of 5 f32 is one which zeros would change",
                      lambda: client.world.join().wait())
            else:
                fails("rank 0 has joined, and call number .*: max of 5 f32 is one which zeros would change",
                      lambda: client.world.push_pull(numpy.zeros(5, "f4"), op=bps.Op.MAX).wait())
    print("right")


def reached(line):
    print(line, flush=True)
    sys.stdin.readline()


def many_messages():
    """Of three sizes, of which one is not copied, with five tags, in both directions."""
    with bps.Client() as client:
        peer = 1 - client.rank
        world = client.world

        def exchange(count):
            for first in range(0, count, 100):
                arrays = [numpy.zeros((16, 3000, 66_000)[step % 3], "u1") for step in range(first, first + 100)]
                handles = [world.receive(array, peer, step % 5) for step, array in enumerate(arrays, first)]
                for step, array in enumerate(arrays, first):
                    handles.append(world.send(numpy.full(len(array), (step + client.rank) % 251, "u1"), peer, step % 5))
                for handle in handles:
                    handle.wait()
                for step, array in enumerate(arrays, first):
                    assert (array == (step + peer) % 251).all(), step

        exchange(4000)
        reached("warm")
        exchange(20_000)
        reached("over")


def many_groups():
    """Each used once for a message, and dropped, also before that has been received."""
    with bps.Client() as client:
        peer = 1 - client.rank
        dropped = []

        def use(count):
            for step in range(count):
                group = client.group(f"group {step % 7}")
                array = numpy.zeros(step + 1, "i4")
                if client.rank == 0:
                    group.send(numpy.full(step + 1, step, "i4"), peer).wait()
                else:
                    group.receive(array, peer).wait()
                    assert (array == step).all(), step
                dropped.append(group.drop())
                if step % 7 == 6:
                    while dropped:
                        dropped.pop().wait()
            while dropped:
                dropped.pop().wait()

        use(1000)
        reached("warm")
        use(3000)
        reached("over")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
