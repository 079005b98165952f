"""P10: an urgent tensor behind bulk, against the same on two raw sockets."""
from context import guarded
from row import Median, Row

IDS = ("P10",)
RATE = "1gbit"


def measure(context):
    if not context.wants("P10"):
        return []
    rows = []
    for servers in (1, 4):
        what = (f"64 KiB urgent tensor behind 64 MiB of bulk, 2 workers, {servers} server{'s' * (servers > 1)}, {RATE} "
                "links: ")
        pair = [Row("P10", what + "p99 added over two raw sockets", 5, 2, more=False, unit="ms"),
                Row("P10", what + "bulk slowed by", 5, 2, more=False, unit="%")]
        guarded(pair, lambda: run(context, servers, *pair))
        rows += pair
    return rows


def run(context, servers, added, slowed):
    lines = context.bench("priority", "--workers", 2, "--servers", servers, "--link", RATE, "--iters",
                          100 if context.quick else 400)
    difference = lines.of("difference", between="urgent+bulk-raw urgent+bulk", of="p99_us")
    added.median = Median(*(difference[key] / 1e3 for key in ("value", "low", "high", "low", "high")))
    ratio = lines.ratio("urgent+bulk/bulk", "bulk_GBps")
    slowed.median = Median(*(100 * (1 - v) for v in (ratio.value, ratio.high, ratio.low, ratio.high, ratio.low)))
    ours, raw = lines.of("urgent+bulk"), lines.of("raw urgent+bulk")
    p99, p50 = (f"{key[:3]} {ours[key] / 1e3:.1f} against {raw[key] / 1e3:.1f} ms" for key in ("p99_us", "p50_us"))
    over_alone = lines.of("difference", between="urgent+bulk-urgent", of="p99_us")["value"] / 1e3
    added.note = f"{p99}, {p50}; p99 {over_alone:.1f} ms over the urgent tensor alone; CPU idle {ours['idle']:.0%}"
    # The row counts them: a user's bulk waits for those bytes, too.
    beyond = 100 * (1 - lines.ratio("urgent+bulk/bulk", "GBps").value)
    alone, beside = lines.of("bulk")["bulk_GBps"] * 8e3, raw["bulk_GBps"] * 8e3
    slowed.note = (f"{beyond:.1f} % beyond what the urgent bytes take of the link; {alone:.0f} Mbit/s alone; raw beside the "
                   f"urgent {beside:.0f}")
    added.wrong = slowed.wrong = context.wrong_control("bps")
