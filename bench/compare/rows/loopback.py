"""P6: unshaped loopback against the peers and against raw TCP, in turns; a network namespace of its own, so that
everyone uses cubic."""
from context import MB, guarded
from peers import Ranks, against_the_better
from row import Median, NotMeasured, Row
from rows.links import best_peers

IDS = ("P6",)
RANKS = 4


def measure(context):
    if not context.wants("P6"):
        return []
    rows = []
    for size in (100 * MB,) if context.quick else (100 * MB, 400 * MB):
        row = Row("P6", f"loopback, speed against the better of OpenMPI and Gloo, f32, {size // MB} MB, n=k={RANKS}, "
                  "retain on", 0.9, 1.2, more=True)
        rows.append(row)
        guarded([row], lambda: run(context, size, row))
    return rows


# How many turns have to count, how many may run for that, and how few are enough then. So many that the interval leaves
# out the four lowest: a neighbour on the host costs a turn much.
TURNS, MOST, FEWEST = 18, 36, 8


def run(context, size, row):
    turns, most, fewest = (3, 6, 2) if context.quick else (TURNS, MOST, FEWEST)
    iters = 3
    ours, limits, theirs = [], [], []
    with context.loopback() as lab, context.watch_distance() as distance:
        ranks = Ranks(lab, RANKS, own_hosts=False)
        best = best_peers(context, ranks, size)
        shape = ("--workers", RANKS, "--servers", RANKS, "--bytes", size, "--iters", iters)

        def us():
            ours.append(context.bench("pushpull", *shape, lab=lab).of("pushpull")["p50_us"] / 1e6)

        def raw_tcp():
            limits.append(context.bench("floor", *shape, lab=lab).of("floor")["p50_us"] / 1e6)

        def them():
            theirs.append(context.peers.turn(best, ranks, size, iters))

        order = [us, raw_tcp, them]
        while sum(distance.near()) < turns and len(ours) < most:
            distance.begin_turn()
            for measure_one in order:
                distance.settle()
                measure_one()
                distance.sample()
            order.reverse()
            said = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in theirs[-1].items())
            context.say(f"loopback, {size // MB} MB: {ours[-1]:.3f} s, raw TCP {limits[-1]:.3f} s, {said}"
                        + ("" if distance.near()[-1] else "; CPUs far apart"))
        near = distance.near()

    # What is said of turns: our speed and that of raw TCP against the peer. Those on CPUs that are far apart do not
    # count: raw TCP that moves our bytes is below the floor there, too (bench/README.md).
    def speeds(count):
        of = lambda values: [value for value, is_near in zip(values, near) if is_near == count]
        median, others = against_the_better(of(ours), of(theirs))
        limit, _ = against_the_better(of(limits), of(theirs))
        return median, Median.of(of(ours)), others, limit

    row.wrong = context.wrong_control("bps", *best)
    if sum(near) < fewest:
        raise NotMeasured(f"CPUs were far apart ({distance.said()}) in {near.count(False)} of {len(near)} turns")
    row.median, seconds, others, limit = speeds(True)
    row.note = (f"{seconds.value:.3f} s, {sum(near)} x {iters} rounds; {others}; raw TCP that moves our bytes would have "
                f"{limit.value:.3f}; CPUs {distance.said()} apart")
    if not all(near):
        try:
            far, _, _, far_limit = speeds(False)
            said = f"{far.value:.3f} ({far.low:.3f} - {far.high:.3f}), raw TCP {far_limit.value:.3f}"
        except NotMeasured as reason:
            said = str(reason)
        row.note += f"; {near.count(False)} turns on far ones do not count: {said}"
