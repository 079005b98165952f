"""P16: FSDP's exchange (an all-gather, then another one beside a reduce-scatter), and each of the two alone, over links.

Beside Gloo, in turns: its all-gather is a ring, its reduce-scatter halves what is left from step to step. Each rank has an
equal part of the tensor, and every worker host a server host. A turn is one timed round after a warm-up, of ours as of theirs.
Alone, each of the two moves as much over the links as Gloo's, so the limit is 1.
"""
from context import MB, guarded, too_busy
from peers import Ranks, against_the_better
from row import Median, Row

IDS = ("P16",)
SIZE = 100 * MB
# n = k, the rate of the links, and the limits.
CASES = ((4, "500mbit", (1.10, 1.25)), (8, "200mbit", (1.20, 1.35)))
ALONE = (0.90, 0.97)
KINDS = {"fsdp": "Gloo fsdp", "all_gather": "Gloo all-gather", "reduce_scatter": "Gloo reduce-scatter"}


def measure(context):
    if not context.wants(*IDS):
        return []
    rows = []
    for hosts, rate, limits in CASES[:1] if context.quick else CASES:
        for kind in ("fsdp",) if context.quick else KINDS:
            row = Row("P16", f"speed-up of {kind} over Gloo, f32, {SIZE // MB} MB, n=k={hosts}, {rate} links",
                      *(limits if kind == "fsdp" else ALONE), more=True)
            rows.append(row)
            guarded([row], lambda: run(context, hosts, rate, kind, row))
    return rows


def run(context, hosts, rate, kind, row):
    peer = KINDS[kind]
    ours, theirs, idle = [], [], []
    with context.lab(hosts, rate) as lab:
        ranks = Ranks(lab, hosts, own_hosts=True)
        def us():
            line = context.bench("exchange", "--kind", kind, "--workers", hosts, "--servers", hosts, "--bytes", SIZE,
                                 "--iters", 1, "--warmup", 1, "--link", rate).of(kind)
            ours.append(line["p50_us"] / 1e6)
            idle.append(line["idle"])
        def them():
            theirs.append(context.peers.turn([peer], ranks, SIZE, iters=1))
        for block in range(2 if context.quick else 5 if hosts < 8 else 3):
            for turn in (them, us) if block % 2 else (us, them):
                turn()
            said = f", {peer} {theirs[-1][peer]:.3f} s" if theirs[-1] else ""
            context.say(f"n=k={hosts}, {kind}: {ours[-1]:.3f} s{said}")
    row.median, row.note = against_the_better(ours, theirs, [peer])
    row.note = f"{Median.of(ours).value:.3f} s; {row.note}"
    row.wrong = too_busy(min(idle)) or context.wrong_control("bps", peer)
