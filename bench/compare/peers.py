"""Rounds of the peers (bench/peers): all-reduces of one f32 tensor, and Gloo's other exchanges of one."""
import collections
import contextlib
import dataclasses
import os
import tempfile

from lab import NETLAB
from process import Program
from row import Median, NotMeasured

# What each is asked to try, and how it is said.
GLOO = {"Gloo ring": "ring", "Gloo ring-chunked": "ring_chunked", "Gloo halving-doubling": "halving_doubling",
        "Gloo bcube": "bcube"}
# Not among those that an all-reduce is tried with.
GLOO_EXCHANGES = {"Gloo all-gather": "all_gather", "Gloo reduce-scatter": "reduce_scatter", "Gloo fsdp": "fsdp"}
_ALL_OF_GLOO = {**GLOO, **GLOO_EXCHANGES}
_TUNED = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm"]
OPENMPI = {"OpenMPI default": [], "OpenMPI ring": [*_TUNED, "4"], "OpenMPI segmented ring": [*_TUNED, "5"]}
# For --quick: what wins anyway, or nearly.
QUICK = ("Gloo ring", "Gloo ring-chunked", "OpenMPI ring")


@dataclasses.dataclass
class Ranks:
    """Where the ranks of a job run: each on a host of its own (h1, h2, ...), or all on h1 over its loopback."""
    lab: object
    count: int
    own_hosts: bool

    def host(self, rank):
        return rank + 1 if self.own_hosts else 1

    def address(self, rank):
        return self.lab.address(self.host(rank)) if self.own_hosts else "127.0.0.1"


@dataclasses.dataclass
class Peers:
    folder: str  # of the drivers
    agent: str  # peers/rsh_agent
    watch: object  # called with what is run and the congestion controls that its connections use

    def names(self, quick):
        return [name for name in (*GLOO, *OPENMPI) if not quick or name in QUICK]

    def medians(self, names, ranks, size, iters, warmup=1):
        """The median round of each, in seconds. One that fails is left out."""
        medians, reasons = {}, []
        for name in names:
            try:
                medians[name] = Median.of(self.seconds(name, ranks, size, iters, warmup)).value
            except NotMeasured as reason:
                reasons.append(str(reason))
        if not medians:
            raise NotMeasured("; ".join(reasons))
        return medians

    def turn(self, names, ranks, size, iters, warmup=1):
        """As medians(), but that all fail is no error: they may do better in the next turn."""
        try:
            return self.medians(names, ranks, size, iters, warmup)
        except NotMeasured:
            return {}

    def seconds(self, name, ranks, size, iters, warmup=1, limit=90):
        """How long each round took, from the first rank that began to the last that ended."""
        with contextlib.ExitStack() as stack:
            rounds = ["--bytes", str(size), "--iters", str(iters), "--warmup", str(warmup)]
            run = self._gloo if name in _ALL_OF_GLOO else self._openmpi
            commands = run(name, ranks, rounds, stack)
            programs = [stack.enter_context(Program(command, limit, name)) for command in commands]
            watch = lambda: self.watch(name, ranks.lab.congestion_controls())
            return self._evaluate(name, "".join(program.output(watch) for program in programs), ranks.count, iters)

    def _gloo(self, name, ranks, rounds, stack):
        store = stack.enter_context(self._folder())
        driver = os.path.join(self.folder, "peer_gloo")
        common = [driver, *rounds, "--algorithm", _ALL_OF_GLOO[name], "--store", store, "--size", str(ranks.count)]
        return [ranks.lab.on(ranks.host(rank), [*common, "--rank", str(rank), "--address", ranks.address(rank)])
                for rank in range(ranks.count)]

    def _openmpi(self, name, ranks, rounds, stack):
        lab, folder = ranks.lab, stack.enter_context(self._folder())
        # TCP only. Who waits yields: there are more ranks than cores, and it is faster with every algorithm.
        mpirun = ["mpirun", "--allow-run-as-root", "-np", str(ranks.count), "--bind-to", "none", "--oversubscribe",
                  "--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "mpi_yield_when_idle", "1"]
        network = "10.88.0.0/24" if ranks.own_hosts else "lo"
        for layer in ("btl", "oob"):
            mpirun += ["--mca", f"{layer}_tcp_if_include", network]
        if ranks.own_hosts:
            mpirun += ["--host", ",".join(f"{ranks.address(rank)}:1" for rank in range(ranks.count)), "--mca",
                       "plm_rsh_no_tree_spawn", "1", "--mca", "plm_rsh_agent",
                       f"{self.agent} {NETLAB} {lab.name} {folder}"]
        command = [*mpirun, *OPENMPI[name], os.path.join(self.folder, "peer_openmpi"), *rounds]
        return [lab.on(0 if ranks.own_hosts else 1, command)]

    @staticmethod
    def _folder():
        return tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True)

    @staticmethod
    def _evaluate(name, text, count, iters):
        rounds = collections.defaultdict(list)
        for line in text.splitlines():
            word, *numbers = line.split() or [""]
            if word == "round":
                _, number, begin, end, wrong = map(int, numbers)
                if wrong:
                    raise NotMeasured(f"{name}: {wrong} elements of a sum were wrong")
                rounds[number].append((begin, end))
        timed = [rounds[number] for number in range(iters)]
        if any(len(round) != count for round in timed):
            raise NotMeasured(f"{name}: not every rank told of every round")
        return [(max(end for _, end in round) - min(begin for begin, _ in round)) / 1e9 for round in timed]


def against_the_better(ours, theirs, names):
    """How many times as fast we are as the better of the peers `names`, from turns: our seconds, and {name: seconds} of the
    peers beside them. The better one is the one that is better on the whole: the faster of two in each turn would be a third,
    made of the luck of both. The interval's lower end holds against each. Also what to say of them. One that mostly fails might
    have been the better."""
    pairs = collections.defaultdict(list)
    for our, their in zip(ours, theirs):
        for name, seconds in their.items():
            pairs[name].append((seconds, our))
    for name in names:
        if 2 * len(pairs[name]) <= len(ours):
            raise NotMeasured(f"{name} ended well in {len(pairs[name])} of {len(ours)} turns")
    speeds = {name: Median.of([their / our for their, our in pairs[name]]) for name in names}
    better = min(speeds, key=lambda name: speeds[name].value)
    median = dataclasses.replace(speeds[better], low=min(speed.low for speed in speeds.values()))
    seconds = {name: Median.of([their for their, _ in pairs[name]]).value for name in speeds}
    said = [f"{better}: {seconds[better]:.3f} s, {len(pairs[better])} pairs"]
    said += [f"{name}: {seconds[name]:.3f} s, {speed.value:.3f} ({speed.low:.3f} - {speed.high:.3f})"
             for name, speed in speeds.items() if name != better]
    return median, "; ".join(said)
