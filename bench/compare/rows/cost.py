"""P5: CPU seconds per GB of worker tensors, the whole machine, against raw TCP that moves the same bytes; on a loopback
of its own, rounds of both in turns."""
from context import MB, guarded, who_is_bound
from row import Row

IDS = ("P5",)
WORKERS = SERVERS = 4
# CPU seconds of the machine by those of the benchmark's processes: where nothing else runs 1.01 to 1.03, the kernel's.
MOST = 1.15


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
                f"processes alone {own.value:.2f}{who_is_bound(SERVERS, 'raw TCP is')}")
    row.wrong = taken(ours) or taken(floor) or context.wrong_control("bps")


def taken(line):
    """Why a ratio does not count: what something else takes on both sides brings it nearer to 1, on one side anywhere."""
    rest = line["cpu_s_per_GB"] - line["own_cpu_s_per_GB"]
    if rest <= (MOST - 1) * line["own_cpu_s_per_GB"]:
        return ""
    return f"something else took {rest:.3f} CPU s/GB beside {line['bench']}"
