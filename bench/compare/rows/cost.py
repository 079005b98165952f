"""P5: CPU seconds per GB of worker tensors, the whole machine, against raw TCP that moves the same bytes; on a loopback
of its own, rounds of both in turns."""
from context import MB, guarded
from row import Row

IDS = ("P5",)
WORKERS = SERVERS = 4


def measure(context):
    if not context.wants("P5"):
        return []
    rows = []
    for retain, floor, goal in ((False, 1.8, 1.25), (True, 2.0, 1.4)):
        row = Row("P5", f"CPU s/GB against raw TCP, retain {'on' if retain else 'off'}, f32, 100 MB, n=k={WORKERS}",
                  floor, goal, more=False)
        rows.append(row)
        guarded([row], lambda: run(context, retain, row))
    return rows


def run(context, retain, row):
    with context.loopback() as lab:
        lines = context.bench("pushpull", "--floor", "--workers", WORKERS, "--servers", SERVERS, "--bytes", 100 * MB,
                              "--iters", 10 if context.quick else 30, "--retain" if retain else "--no-retain", lab=lab)
    row.median = lines.ratio("pushpull/floor", "cpu_s_per_GB")
    ours, floor = lines.of("pushpull"), lines.of("floor")
    own = lines.ratio("pushpull/floor", "own_cpu_s_per_GB")
    row.note = (f"{ours['cpu_s_per_GB']:.3f} against {floor['cpu_s_per_GB']:.3f} s/GB, {ours['iters']} rounds; of the "
                f"processes alone {own.value:.2f}")
    row.wrong = context.wrong_control("bps")
