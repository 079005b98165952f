#!/usr/bin/env python3
"""Every exchange of declared tensors.

    bps-run -n 4 -s 2 -- python3 exchanges.py        four workers and two servers on this host
    python3 exchanges.py                             one worker, with nothing else started
"""
import in_tree  # noqa: F401
import bps
import numpy


def main():
    with bps.Client() as client:  # rank, size and scheduler come from the environment
        rank, size, last = client.rank, client.world_size, client.world_size - 1
        tensor, = client.declare([bps.TensorSpec("values", bps.DType.F32, 100_000)])
        mine, result = numpy.full(100_000, rank + 1, "f4"), numpy.zeros(100_000, "f4")
        total = size * (size + 1) // 2

        client.push_pull(tensor, mine, result, bps.Op.SUM).wait()  # everyone gets the sum
        assert (result == total).all(), result

        result[:] = 0
        client.reduce(tensor, mine, result, root=last, op=bps.Op.SUM).wait()  # the root alone gets it
        assert (result == (total if rank == last else 0)).all(), result

        client.broadcast(tensor, mine, root=last).wait()  # everyone gets what the root has
        assert (mine == size).all(), mine

        # A tensor that is cut into parts, one for each rank.
        parted, = client.declare([bps.TensorSpec("parts", bps.DType.F32, 25_000 * size, parts=[25_000])])
        whole, own = numpy.full(25_000 * size, rank + 1, "f4"), numpy.empty(25_000, "f4")

        client.reduce_scatter(parted, whole, own, bps.Op.SUM).wait()  # everyone gets its part of the sum
        assert (own == total).all(), own

        own[:] = rank
        client.all_gather(parted, own, whole).wait()  # everyone gets the parts of all
        assert (whole.reshape(size, -1) == numpy.arange(size)[:, None]).all(), whole

        # A tensor that some ranks share: here those with an even number, and those with an odd one.
        group = list(range(rank % 2, size, 2))
        half, = client.declare([bps.TensorSpec("half", bps.DType.F32, 100_000, ranks=group)])
        mine[:] = rank + 1
        client.push_pull(half, mine, result, bps.Op.SUM).wait()
        assert (result == sum(other + 1 for other in group)).all(), result

        # An average in which a rank with more samples counts more.
        mine[:] = rank == last
        client.push_pull(tensor, mine, result, bps.Op.AVERAGE, bps.Scale(weight=rank + 1)).wait()
        assert (result == numpy.float32(size) / numpy.float32(total)).all(), result
    print(f"rank {rank} of {size}: right")


if __name__ == "__main__":
    main()
