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


if __name__ == "__main__":
    globals()[sys.argv[1]]()
