"""P6: unshaped loopback against the peers and against raw TCP, in turns; a network namespace of its own, so that
everyone uses cubic."""
import dataclasses

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


@dataclasses.dataclass
class Side:
    """One of those that are compared, turn by turn."""
    values: list = dataclasses.field(default_factory=list)  # seconds; of peers {name: seconds}
    near: list = dataclasses.field(default_factory=list)  # whether CPUs were near each other

    def pick(self, turns):
        return [self.values[turn] for turn in turns]


def run(context, size, row):
    turns, most, fewest = (3, 6, 2) if context.quick else (TURNS, MOST, FEWEST)
    iters = 3
    ours, limits, theirs = sides = [Side(), Side(), Side()]
    with context.loopback() as lab, context.watch_distance() as distance:
        ranks = Ranks(lab, RANKS, own_hosts=False)
        best = best_peers(context, ranks, size)
        shape = ("--workers", RANKS, "--servers", RANKS, "--bytes", size, "--iters", iters)
        seconds_of = lambda bench: context.bench(bench, *shape, lab=lab).of(bench)["p50_us"] / 1e6
        measure_side = [lambda: seconds_of("pushpull"), lambda: seconds_of("floor"),
                        lambda: context.peers.turn(best, ranks, size, iters)]

        order = []  # of the sides in all runs so far
        while sum(counted(ours, theirs)) < turns and len(ours.values) < most:
            turn = [0, 1, 2]
            for side in turn if len(ours.values) % 2 == 0 else reversed(turn):
                distance.settle()
                distance.begin_run()
                distance.sample()
                sides[side].values.append(measure_side[side]())
                distance.sample()
                order.append(side)
            for number, side in enumerate(sides):
                side.near = [near for near, of in zip(distance.near(), order) if of == number]
            said = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in theirs.values[-1].items())
            context.say(f"loopback, {size // MB} MB: {ours.values[-1]:.3f} s, raw TCP {limits.values[-1]:.3f} s, {said}; "
                        "CPUs " + ", ".join("near" if side.near[-1] else "far" for side in sides))
    row.wrong = context.wrong_control("bps", *best)
    judge(row, ours, limits, theirs, fewest)
    row.note += f"; CPUs {distance.said()} apart"


def counted(ours, theirs):
    """Of each turn, whether CPUs were near each other both while we ran and while the peers did."""
    return [both == (True, True) for both in zip(ours.near, theirs.near)]


def judge(row, ours, limits, theirs, fewest):
    """Sets the row's number.

    Turns in which CPUs were far apart do not count if raw TCP that moves our bytes is itself below the floor there: then
    nobody can keep it (proto/decisions/0021). Else all do.
    """
    def speed(side, turns):
        return against_the_better(side.pick(turns), theirs.pick(turns))

    def use(turns):
        row.median, others = speed(ours, turns)
        limit, _ = speed(limits, turns)
        row.note = (f"{Median.of(ours.pick(turns)).value:.3f} s, {len(turns)} turns; {others}; raw TCP that moves our "
                    f"bytes has {limit.value:.3f}")

    every = range(len(ours.values))
    near = [turn for turn, counts in enumerate(counted(ours, theirs)) if counts]
    use(every)
    all_turns = row.median
    try:
        limit, _ = speed(limits, [turn for turn in every if not limits.near[turn]])
        far, _ = speed(ours, [turn for turn in every if not ours.near[turn]])
    except NotMeasured:  # we or raw TCP met no far CPUs, or no peer ended well in those turns: all turns count
        return
    beside = f"{far.value:.3f} ({far.low:.3f} - {far.high:.3f}) on far CPUs, where raw TCP has {limit.value:.3f}"
    if limit.value >= row.floor:
        row.note += f"; {beside}"
    elif len(near) < fewest:
        row.wrong = row.wrong or f"CPUs were far apart in {len(every) - len(near)} of {len(every)} turns"
        row.note += f"; {beside}"
    else:
        use(near)
        row.note += (f"; {len(every) - len(near)} further turns do not count: {beside}; all {all_turns.value:.3f} "
                     f"({all_turns.low:.3f} - {all_turns.high:.3f})")
