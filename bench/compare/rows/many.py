"""P12, P24 and P13: what servers hold while rank 0 is late, in f32 and where sums are wider, and hundreds of lanes."""
from context import MB, guarded
from row import Median, Row

IDS = ("P12", "P13", "P24")
NARROW = ("bf16", "f16", "u8")


def measure(context):
    rows = []
    if context.wants("P12"):
        late = [Row("P12", f"server memory beyond 256 KiB a lane and 96 MiB, rank 0 late by {late}, against its "
                    "partitions, f32, 4 workers, 1 server", 2, 1.2, more=False) for late in ("a partition", "1 s")]
        guarded(late, lambda: run_memory(context, late, "f32", 4))
        rows += late
    for dtype in NARROW if context.wants("P24") else ():
        late = [Row("P24", f"server memory beyond 256 KiB a lane and 96 MiB, rank 0 late by {late}, against its "
                    f"partitions, {dtype}, 2 workers, 1 server", 2.5, 2.1, more=False) for late in ("a partition", "1 s")]
        guarded(late, lambda late=late, dtype=dtype: run_memory(context, late, dtype, 2))
        rows += late
    if context.wants("P13"):
        lanes = [Row("P13", "8 processes x 64 clients against 4 lanes, 1 server: throughput kept", 0.8, 0.9, more=True),
                 Row("P13", "256 ranks joined in", 3, 1, more=False, unit="s")]
        guarded(lanes, lambda: run_lanes(context, *lanes))
        rows += lanes
    return rows


def run_memory(context, rows, dtype, workers):
    size = (100 if context.quick else 400) * MB
    with context.loopback() as lab:
        lines = context.bench("memory", "--workers", workers, "--servers", 1, "--bytes", size, "--dtype", dtype, "--late",
                              "1s", "--iters", 3, lab=lab)
    for row, case in zip(rows, ("late by a partition", "late by 1s")):
        line = lines.of("memory", case=case)
        row.median = Median.exactly(line["held_less_beside"])
        row.note = f"at most {line['peak_bytes'] / 2**20:.0f} MiB for {size / 2**20:.0f} MiB, {line['held']:.2f} in all"


def run_lanes(context, kept, joined):
    with context.loopback() as lab:
        lines = context.bench("lanes", "--processes", 8, "--clients", 64, "--workers", 4, "--iters",
                              6 if context.quick else 120, "--turns", 3 if context.quick else 40, lab=lab, limit=600)
    kept.median = lines.ratio("512/4 lanes", "GBps")
    many, few = (lines.of("lanes", workers=workers)["p50_us"] / 1e3 for workers in (512, 4))
    kept.note = f"a round takes {many:.0f} against {few:.0f} ms"
    line = lines.of("lanes", workers=256)
    joined.median = Median(line["join_ms"] / 1e3, *2 * (line["join_ms"] / 1e3, line["join_max_ms"] / 1e3))
    kept.wrong = context.wrong_control("bps")
