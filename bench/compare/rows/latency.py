"""P9: small push_pulls one after another, against a raw TCP echo that answers when all workers have sent; in turns."""
from context import guarded
from row import Median, Row

IDS = ("P9",)


def measure(context):
    if not context.wants("P9"):
        return []
    what = "4 KiB push_pull against a raw echo, 2 workers, 1 server: "
    rows = [Row("P9", what + "p50", 2, 1.4, more=False), Row("P9", what + "p99", 3, 1.7, more=False)]
    guarded(rows, lambda: run(context, *rows))
    return rows


def run(context, p50, p99):
    runs = 7 if context.quick else 51  # what two processes on two cores take swings by half
    with context.loopback() as lab:
        def once(watched):
            return context.bench("latency", "--workers", 2, "--servers", 1, "--bytes", 4096, "--iters", 2000, lab=lab,
                                 watched=watched)

        once(watched=True)  # does not count: a look at the connections takes as long as dozens of its rounds
        results = [once(watched=False) for _ in range(runs)]
    for row, key in ((p50, "p50_us"), (p99, "p99_us")):
        row.median = Median.of([lines.ratio("latency/echo", key).value for lines in results])
        ours, echo = (Median.of([lines.of(name)[key] for lines in results]).value for name in ("latency", "echo"))
        row.note = f"{ours:.0f} against {echo:.0f} us, {runs} x 2000 rounds"
        row.wrong = context.wrong_control("bps")
