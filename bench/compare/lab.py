"""Hosts with shaped links (bench/netlab), for what is not started by bps-bench itself."""
import json
import os
import pathlib
import subprocess
import sys

from process import Program, output_of
from row import NotMeasured

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "process"))
import netlab  # noqa: E402

NETLAB = str(netlab.NETLAB)


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


class Lab(netlab.Lab):
    def __enter__(self):
        if os.geteuid() != 0:
            raise NotMeasured("needs root, to make hosts out of network namespaces")
        return super().__enter__()

    def netlab(self, command, *words):
        output_of([NETLAB, command, *words, "--name", self.name])

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
