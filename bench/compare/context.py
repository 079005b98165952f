"""What a row needs to measure: bps-bench, the peers, hosts; and what all rows have in common."""
import json
import math
import os
import sys
import traceback

from lab import Lab, ThisHost, congestion_controls
from peers import Peers
from process import Program
from row import Median, NotMeasured

MB = 1_000_000


class Lines(list):
    """What one run of bps-bench has measured: flat objects."""

    def of(self, bench, **having):
        for line in self:
            if line.get("bench") == bench and all(line.get(key) == value for key, value in having.items()):
                if line.get("verified", True) is not True:
                    raise NotMeasured(f"bps-bench: {bench} gave a wrong result")
                return line
        raise NotMeasured(f"bps-bench printed no line '{bench}' {having or ''}")

    def ratio(self, between, of):
        line = self.of("ratio", between=between, of=of)
        if not all(math.isfinite(line[key]) and line[key] > 0 for key in ("value", "low", "high")):
            raise NotMeasured(f"bps-bench: {between} of {of} is {line['value']} ({line['low']} - {line['high']})")
        return Median(line["value"], line["low"], line["high"], line["low"], line["high"])


class Context:
    def __init__(self, source, build, quick, only):
        self.quick = quick
        self.only = only
        self.program = os.path.join(build, "bin", "bps-bench")
        self.peers = Peers(os.path.join(build, "peers"), os.path.join(source, "bench", "peers", "rsh_agent"), self.saw)
        self.controls = {}  # who -> congestion controls that were seen for the present numbers
        self.blind = {}  # who -> why none could be looked for, at last
        self.all_controls = {}  # the same, for all numbers

    def wants(self, *ids):
        return not self.only or any(id in self.only for id in ids)

    def say(self, text):
        print(f"compare: {text}", file=sys.stderr, flush=True)

    def begin(self):
        """Forgets what was seen for other numbers."""
        self.controls, self.blind = {}, {}

    def saw(self, who, controls):
        for seen in (self.controls, self.all_controls):
            seen.setdefault(who, set()).update(controls)
        return bool(controls)

    def lab(self, hosts, rate):
        return Lab(hosts, rate)

    def loopback(self):
        """A loopback where everyone uses cubic."""
        return Lab(1, "1gbit") if os.geteuid() == 0 else ThisHost()

    def bench(self, subcommand, *flags, lab=None, limit=240, watched=True):
        """Runs bps-bench, on host h1 of `lab` if given. With --link it makes hosts of its own. `watched`: its connections are
        looked at, which takes some time from it."""
        command = [self.program, subcommand, *map(str, flags), "--json", "-"]
        if lab:
            command = lab.on(1, command)
        elif "--link" in flags and os.geteuid() != 0:
            raise NotMeasured("needs root, to make hosts out of network namespaces")
        with Program(command, limit, "bps-bench") as program:
            own_host = f"bps-bench-{program.pid}-h1"

            def watch():
                if lab:
                    return self.saw("bps", lab.congestion_controls())
                try:
                    return self.saw("bps", congestion_controls(own_host))
                except NotMeasured as reason:  # that is no failure while the host is being made or removed
                    self.blind["bps"] = str(reason)
                    return False
            can_be_seen = watched and (lab or "--link" in flags)
            return Lines(json.loads(line) for line in program.output(watch if can_be_seen else None).splitlines())

    def distance(self):
        """How far apart the CPUs are just now, in words."""
        try:
            return f"{self.bench('distance').of('distance')['round_trip_ns']:.0f} ns"
        except NotMeasured as reason:
            self.say(str(reason))
            return "unknown"

    def wrong_control(self, *who):
        """Why numbers do not count, if one of those was seen with connections that do not use cubic, or with none."""
        for name in who:
            seen = self.controls.get(name, set())
            if not seen:
                return f"{name} was never seen with a connection, so its congestion control is not known" + (
                    f" ({self.blind[name]})" if name in self.blind else "")
            if others := seen - {"cubic"}:
                return f"{name} ran with {', '.join(sorted(others))}"
        return ""

    def seen_controls(self):
        """What all were seen with, in words."""
        users = {}
        for who, controls in sorted(self.all_controls.items()):
            for control in controls:
                users.setdefault(control, []).append(who)
        said = "; ".join(f"{control} ({', '.join(names)})" for control, names in sorted(users.items()))
        return f"TCP congestion control, as seen: {said or 'none'}."


class Goodput:
    """G of links of one rate, just before and just after each of several rows: what it is after one is what it is before
    the next, unless that one failed."""

    def __init__(self, context, rate):
        self._context, self._rate = context, rate
        self._known = None

    def before(self):
        known, self._known = self._known, None
        return known or self._measured()

    def after(self):
        self._known = self._measured()
        return self._known

    def _measured(self):
        with self._context.lab(2, self._rate) as lab:
            return lab.goodput()


def who_is_bound(servers, others):
    """What there is to say of who keeps to CPUs, with so many servers on this host, reached over TCP: our clients' data threads
    are bound if the servers' lanes spread evenly over the CPUs (proto/decisions/0022-data-threads-that-take-turns.md)."""
    cpus = len(os.sched_getaffinity(0))
    bound = 1 < cpus <= servers and 8 * cpus * -(-servers // cpus) <= 9 * servers
    return f"; our clients' data threads are bound to CPUs, {others} placed by the kernel" if bound else ""


def too_busy(idle):
    """Why a number of links does not count, if the CPU may have been the limit: `idle` is the part that nobody used."""
    return "" if idle >= 0.25 else f"only {idle:.0%} of the CPU was idle"


def guarded(rows, measure):
    """If it fails, all of the rows say why, and none counts as passed: of one that has its median nobody may have looked yet
    whether it is wrong."""
    try:
        measure()
    except NotMeasured as failure:
        reason = str(failure)
    except Exception as failure:
        traceback.print_exc()
        reason = f"{type(failure).__name__}: {failure}"
    else:
        return
    for row in rows:
        if row.median is None:
            row.missing = reason
        else:
            row.wrong = row.wrong or reason
