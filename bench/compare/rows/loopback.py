"""P6: unshaped loopback against the peers; a network namespace of its own, so that everyone uses cubic."""
from context import MB, guarded, who_is_bound
from peers import Ranks, against_the_better
from row import Median, Row
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


def run(context, size, row):
    # As many blocks as it takes for the interval to leave out the nine lowest: a neighbour on the host costs a block much.
    blocks = 3 if context.quick else 30
    iters = 3
    ours, theirs = [], []
    before = context.distance()
    with context.loopback() as lab:
        ranks = Ranks(lab, RANKS, own_hosts=False)
        best, far = best_peers(context, ranks, size)

        def us():
            line = context.bench("pushpull", "--workers", RANKS, "--servers", RANKS, "--bytes", size, "--iters", iters,
                                 lab=lab).of("pushpull")
            ours.append(line["p50_us"] / 1e6)

        def them():
            theirs.append(context.peers.turn(best, ranks, size, iters))

        for block in range(blocks):
            for turn in (them, us) if block % 2 else (us, them):
                turn()
            said = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in theirs[-1].items())
            context.say(f"loopback, {size // MB} MB: {ours[-1]:.3f} s, {said}")
    row.median, others = against_the_better(ours, theirs, best)
    row.note = (f"{Median.of(ours).value:.3f} s, {blocks} x {iters} rounds; {others}{far}; CPUs {before} apart before, "
                f"{context.distance()} after{who_is_bound(RANKS, 'peers are')}")
    row.wrong = context.wrong_control("bps", *best)
