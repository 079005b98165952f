"""P4: the time of a round against t*, the shortest that any placement allows: worker hosts that all have a server, and
k further servers on hosts of their own; a single worker; a server whose link has half the rate."""
from context import MB, Goodput, guarded, too_busy
from row import Median, Row

IDS = ("P4",)
RATE = "500mbit"
# What, and how it is told to bps-bench; the goal.
CASES = (
    *((f"n=4, k={k}, a server on every worker host", ["--workers", 4, "--servers", k, "--colocated", 4], 1.03)
      for k in (0, 1, 2, 4, 6)),
    ("n=1, k=1", ["--workers", 1, "--servers", 1], 1.03),
    ("n=4, k=4, one server at half rate", ["--workers", 4, "--servers", 4, "--slow-server", "250mbit"], 1.05),
)
# So many that the interval leaves out the slowest, which "min - max" shows.
ROUNDS = 9


def measure(context):
    if not context.wants("P4"):
        return []
    rows, goodput = [], Goodput(context, RATE)
    for what, flags, goal in CASES[1::3] if context.quick else CASES:
        row = Row("P4", f"t / t*, {what}, f32, 100 MB, {RATE} links", 1.10, goal, more=False)
        rows.append(row)
        guarded([row], lambda: run(context, flags, row, goodput))
    return rows


def run(context, flags, row, goodput):
    before = goodput.before()
    line = context.bench("pushpull", *flags, "--bytes", 100 * MB, "--iters", ROUNDS, "--warmup", 1, "--link", RATE,
                         "--goodput", f"{before * 8:.0f}bit").of("pushpull")
    # t* is inversely proportional to G, of which bps-bench was told before.
    # Of both the higher, as links.py says.
    tstar_s = line["tstar_s"] * before / max(before, goodput.after())
    tstar = tstar_s * 1e6
    row.median = Median(*(line[key] / tstar for key in ("p50_us", "p50_low_us", "p50_high_us", "min_us", "max_us")))
    row.note = f"{line['p50_us'] / 1e6:.3f} s, t* {tstar_s:.3f} s at G, CPU idle {line['idle']:.0%}"
    row.wrong = too_busy(line["idle"]) or context.wrong_control("bps")
