"""P8: the server's arithmetic, in one process, against memcpy."""
from context import guarded
from row import Row

IDS = ("P8",)
LARGE = "round of 8 x 64MiB"


def measure(context):
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
