"""P8 and P14: the server's arithmetic, in one process: against memcpy, and in rank order against as contributions arrive."""
from context import guarded
from row import Median, Row

IDS = ("P8", "P14")
LARGE = "round of 8 x 64MiB"


def measure(context):
    rows = []
    if context.wants("P8"):
        rows += sums(context)
    if context.wants("P14"):
        for workers in (4, 8):
            rows += orders(context, workers)
    return rows


def sums(context):
    f32 = Row("P8", "f32 sum of 8 inputs of 64 MiB, input GB/s against memcpy", 1.5, 1.75, more=True)
    bf16 = Row("P8", "bf16 sum of 8 inputs of 64 MiB, bytes/s against f32", 0.7, 0.9, more=True)
    iters = 21 if context.quick else 61

    def run(row, dtype, between):
        lines = context.bench("reduce", "--dtype", dtype, "--iters", iters)
        row.median = lines.ratio(between, LARGE)
        line = lines.of("reduce", of=LARGE)
        row.note = f"{line['GBps']:.1f} GB/s, memcpy {line['memcpy_GBps']:.1f} GB/s, {iters} pairs"

    guarded([f32], lambda: run(f32, "f32", "f32 sum/memcpy"))
    guarded([bf16], lambda: run(bf16, "bf16", "bf16 sum/f32 sum"))
    return [f32, bf16]


def orders(context, workers):
    total = Row("P14", f"rank order against order of arrival, no skew, {workers} workers: time of a tensor", 1.05, 1.03,
                more=False)
    late = Row("P14", f"rank 0 late by a partition, {workers} workers: aggregate later by", 1, 0.5, more=False,
               unit="partitions")
    iters = 11 if context.quick else 31

    def run():
        lines = context.bench("order", "--workers", workers, "--iters", iters)
        between = f"rank/arrival order, {workers} workers"
        # Without skew lanes take turns, by rank or in any order: the worse counts.
        total.median = max((lines.ratio(between, f"seconds, {skew}") for skew in ("no skew", "random order")),
                           key=lambda median: median.high)
        difference = lines.of("difference", between=between, of="partitions until complete, rank 0 late")
        late.median = Median(difference["value"], difference["low"], difference["high"], difference["low"],
                             difference["high"])
        rank, arrival = (lines.of("order", order=order, skew="rank 0 late") for order in ("rank", "arrival"))
        total.note = f"of 32 MiB in partitions of 256 KiB, {8 * iters} pairs"
        late.note = f"{rank['after_last_us']:.1f} against {arrival['after_last_us']:.1f} us after the last byte"

    guarded([total, late], run)
    return [total, late]
