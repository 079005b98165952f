"""P1, P2, P3: hosts with shaped links, a server host for every worker host.

The goodput that a link offers (G) is iperf3's both ways at once, between two hosts of a lab of the same rate, before
and after each round of ours. The higher of both counts: one that something disturbed gave too little, which must not
flatter us. A turn is one timed round after a warm-up, of ours as of the peers.
A server host for every worker host and equal links: no worker can be faster than G.
"""
from context import MB, guarded, too_busy
from peers import GLOO, Ranks, against_the_better
from row import Median, Row

IDS = ("P1", "P2", "P3")
# n = k, the rate of the links, and the limits of P2 and P3.
CASES = ((4, "500mbit", (1.40, 1.47), (1.38, 1.47)), (8, "200mbit", (1.63, 1.71), (1.60, 1.70)))
# Who takes so many times as long at first is not measured again.
FAR = 1.25


def measure(context):
    rows = []
    for hosts, rate, of_ring, of_peers in CASES:
        for size in (100 * MB,) if context.quick else (100 * MB, 400 * MB):
            rows += measure_size(context, hosts, rate, size, of_ring, of_peers if size == 100 * MB else None)
    return rows


def measure_size(context, hosts, rate, size, of_ring, of_peers):
    what = f"f32, {size // MB} MB, n=k={hosts}, {rate} links"
    goodput = Row("P1", f"goodput / G per worker, {what}", 0.93, 0.98, more=True)
    ring = Row("P2", f"speed-up over the ideal ring at G, {what}", *of_ring, more=True)
    peers = Row("P3", f"speed-up over the better of OpenMPI and Gloo, {what}", *(of_peers or (0, 0)), more=True)
    rows = [row for row in (goodput, ring, peers) if context.wants(row.id) and (row is not peers or of_peers)]
    if rows:
        guarded(rows, lambda: run(context, hosts, rate, size, goodput, ring, peers if peers in rows else None))
    return rows


def run(context, hosts, rate, size, goodput, ring, peers):
    blocks = 2 if context.quick else 3 if size > 200 * MB else 7 if hosts < 8 else 5
    ours, offered, theirs, lines = [], [], [], []
    with context.lab(hosts, rate) as lab:
        ranks = Ranks(lab, hosts, own_hosts=True)
        best, far = best_peers(context, ranks, size) if peers else ([], "")
        offered.append(lab.goodput())
        for block in range(blocks):
            def us():
                line = context.bench("pushpull", "--workers", hosts, "--servers", hosts, "--bytes", size, "--iters",
                                     1, "--warmup", 1, "--link", rate).of("pushpull")
                ours.append(line["p50_us"] / 1e6)
                lines.append(line)
            def them():
                theirs.append(context.peers.turn(best, ranks, size, iters=1))
            turns = [us, them] if best else [us]
            for turn in reversed(turns) if block % 2 else turns:
                turn()
            offered.append(lab.goodput())
            context.say(f"n=k={hosts}, {size // MB} MB: {ours[-1]:.3f} s, G {offered[-1] * 8e-6:.1f} Mbit/s"
                        + "".join(f", {name} {seconds:.3f} s" for name, seconds in (theirs[-1] if best else {}).items()))
    around = [max(both) for both in zip(offered, offered[1:])]
    shares = [size / seconds / g for seconds, g in zip(ours, around)]
    idle = min(line["idle"] for line in lines)
    goodput.median = Median.of(shares)
    goodput.note = (f"{Median.of(ours).value:.3f} s, G {Median.of(around).value * 8e-6:.1f} Mbit/s by iperf3 --bidir, "
                    f"{blocks} rounds, CPU idle {idle:.0%}")
    goodput.wrong = too_busy(idle)
    ring.median = Median.of([share * 2 * (hosts - 1) / hosts for share in shares])
    ring.note = f"the limit is {2 * (hosts - 1) / hosts:.2f}"
    for row in (goodput, ring):
        row.wrong = row.wrong or context.wrong_control("bps")
    if peers:
        peers.median, others = against_the_better(ours, theirs, best)
        peers.note = others + far
        peers.wrong = context.wrong_control("bps", *best)


def best_peers(context, ranks, size):
    """The fastest algorithm of Gloo and that of OpenMPI, by a round of each over links, which take long and are all alike, else
    by the median of five after a warm-up; only one if the other is far behind, and what to say of that. It is an error if no
    algorithm of one works: it might have been the better."""
    rounds, warmup = (1, 0) if ranks.own_hosts else (5, 1)
    names = context.peers.names(context.quick)
    best = {}
    for gloo in (True, False):
        seconds = context.peers.medians([name for name in names if (name in GLOO) == gloo], ranks, size, rounds, warmup)
        context.say(", ".join(f"{name} {value:.3f} s" for name, value in seconds.items()))
        fastest = min(seconds, key=seconds.get)
        best[fastest] = seconds[fastest]
    near = [name for name in best if best[name] < FAR * min(best.values())]
    return near, "".join(f"; {name}, left out after {best[name]:.3f} s" for name in best if name not in near)
