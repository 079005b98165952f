"""Hosts with shaped links (bench/netlab), for what is not started by bps-bench itself."""
import itertools
import json
import os
import pathlib
import subprocess

from process import Program, output_of
from row import NotMeasured

_numbers = itertools.count()


def known_congestion_controls():
    text = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
    return {"cubic", "reno", "bbr", *text.split()}


def congestion_controls(namespace):
    """Those of all connections that a network namespace has now."""
    return controls_in(["ip", "netns", "exec", namespace])


def controls_in(prefix):
    run = subprocess.run([*prefix, "ss", "-tniH", "state", "established"], capture_output=True, text=True, timeout=20)
    if run.returncode != 0:
        raise NotMeasured(f"ss failed ({run.returncode}): {run.stderr.strip()[:200]}")
    # The second line of a connection lists what it uses: "ts sack cubic wscale:10,10 ...".
    words = {word for line in run.stdout.splitlines() if line[:1].isspace() for word in line.split()}
    return words & known_congestion_controls()


class ThisHost:
    """The loopback of this machine, for who may not make hosts: whoever uses it has the system's congestion control."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def on(self, _host, command):
        return command

    def congestion_controls(self):
        return controls_in([])


class Lab:
    def __init__(self, netlab, hosts, rate):
        self.netlab, self.hosts, self.rate = netlab, hosts, rate
        self.name = f"cmp{os.getpid()}-{next(_numbers)}"

    def __enter__(self):
        if os.geteuid() != 0:
            raise NotMeasured("needs root, to make hosts out of network namespaces")
        output_of([self.netlab, "up", str(self.hosts), self.rate, "--name", self.name])
        return self

    def __exit__(self, *_):
        output_of([self.netlab, "down", "--name", self.name])

    def on(self, host, command):
        return [self.netlab, "exec", "--name", self.name, f"h{host}", *command]

    @staticmethod
    def address(host):
        return f"10.88.0.{host + 1}"

    def congestion_controls(self):
        return set().union(*(congestion_controls(f"{self.name}-h{host}") for host in (0, 1)))

    def goodput(self, seconds=2):
        """G: bytes a second that iperf3 carries each way, both ways at once, between h1 and h2, after a second of
        warm-up: the mean of the two."""
        with Program(self.on(2, ["iperf3", "-s", "-1", "--forceflush"]), limit=30) as server:
            while "listening" not in (line := server.process.stdout.readline()):
                if not line:
                    server.output()
                    raise NotMeasured("iperf3 does not listen")
            text = output_of(self.on(1, ["iperf3", "-c", self.address(2), "--bidir", "-t", str(seconds), "-O", "1",
                                         "--json"]), limit=30)
        end = json.loads(text)["end"]
        if (control := end["sender_tcp_congestion"]) != "cubic":
            raise NotMeasured(f"iperf3 ran with {control}")
        both = [end[name]["bits_per_second"] / 8 for name in ("sum_received", "sum_received_bidir_reverse")]
        return sum(both) / 2
