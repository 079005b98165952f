"""P7: the shared-memory transport against TCP on one host: from ordinary memory, from memory of bps_allocate, and with
answers read in place."""
from context import MB, guarded
from row import Median, Row

IDS = ("P7",)
CASES = (("user", "ordinary memory", 1.5, 2.5), ("allocated", "bps_allocate memory", 2, 3),
         ("view", "answers read in place", 3, 6))


def measure(context):
    if not context.wants("P7"):
        return []
    rows = [Row("P7", f"shared memory against TCP, {what}, f32, 100 MB, n=k=4", floor, goal, more=True)
            for _, what, floor, goal in CASES]
    guarded(rows, lambda: run(context, rows))
    return rows


def run(context, rows):
    blocks = 3 if context.quick else 7
    names = ["tcp", *(memory for memory, *_ in CASES)]
    seconds = {name: [] for name in names}

    def measure_one(name, lab):
        how = ["--transport", "tcp"] if name == "tcp" else ["--transport", "shm", "--memory", name]
        line = context.bench("pushpull", "--workers", 4, "--servers", 4, "--bytes", 100 * MB, "--iters", 5, *how,
                             lab=lab).of("pushpull")
        seconds[name].append(line["p50_us"] / 1e6)

    with context.loopback() as lab:
        for block in range(blocks):
            for name in reversed(names) if block % 2 else names:
                measure_one(name, lab)
    for row, (memory, *_) in zip(rows, CASES):
        row.median = Median.of([tcp / shm for tcp, shm in zip(seconds["tcp"], seconds[memory])])
        shm, tcp = (Median.of(seconds[name]).value * 1e3 for name in (memory, "tcp"))
        row.note = f"{shm:.1f} against {tcp:.1f} ms"
        row.wrong = context.wrong_control("bps")
