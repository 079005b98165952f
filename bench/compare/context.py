"""What a row needs to measure: bps-bench, the peers, hosts; and what all rows have in common."""
import json
import os
import sys
import time

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
        return Median(line["value"], line["low"], line["high"], line["low"], line["high"])


class Context:
    def __init__(self, source, build, quick, only):
        self.quick = quick
        self.only = only
        self.program = os.path.join(build, "bin", "bps-bench")
        self.netlab = os.path.join(source, "bench", "netlab")
        self.peers = Peers(os.path.join(build, "peers"), os.path.join(source, "bench", "peers", "rsh_agent"), self.saw)
        self.controls = {}  # who -> congestion controls that were seen

    def wants(self, *ids):
        return not self.only or any(id in self.only for id in ids)

    def say(self, text):
        print(f"compare: {text}", file=sys.stderr, flush=True)

    def saw(self, who, controls):
        self.controls.setdefault(who, set()).update(controls)

    def lab(self, hosts, rate):
        return Lab(self.netlab, hosts, rate)

    def loopback(self):
        """A loopback where everyone uses cubic."""
        return Lab(self.netlab, 1, "1gbit") if os.geteuid() == 0 else ThisHost()

    def bench(self, subcommand, *flags, lab=None, limit=240):
        """Runs bps-bench, on host h1 of `lab` if given. With --link it makes hosts of its own."""
        command = [self.program, subcommand, *map(str, flags), "--json", "-"]
        if lab:
            command = lab.on(1, command)
        elif "--link" in flags and os.geteuid() != 0:
            raise NotMeasured("needs root, to make hosts out of network namespaces")
        with Program(command, limit, "bps-bench") as program:
            own_host = f"bps-bench-{program.pid}-h1"

            def watch():
                if lab:
                    self.saw("bps", lab.congestion_controls())
                elif os.path.exists(f"/run/netns/{own_host}"):
                    self.saw("bps", congestion_controls(own_host))
            return Lines(json.loads(line) for line in program.output(watch).splitlines())

    def wrong_control(self, *who):
        """Why numbers do not count, if one of those was seen with connections that do not use cubic."""
        for name in who:
            if others := self.controls.get(name, set()) - {"cubic"}:
                return f"{name} ran with {', '.join(sorted(others))}"
        return ""


def guarded(rows, measure):
    """Rows whose measurement fails say why, and count as not passed."""
    start = time.monotonic()
    try:
        measure()
    except NotMeasured as reason:
        for row in rows:
            if row.median is None:
                row.missing = str(reason)
    except (OSError, KeyError, ValueError) as error:
        for row in rows:
            if row.median is None:
                row.missing = f"{type(error).__name__}: {error}"
    return time.monotonic() - start
