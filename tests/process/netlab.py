"""Hosts for the processes of a test or a measurement, made by bench/netlab out of network namespaces. Links between two of them can be
cut: packets vanish, nobody hears a reset, and both ends go on."""
import itertools
import os
import pathlib
import shutil
import subprocess

NETLAB = pathlib.Path(__file__).resolve().parents[2] / "bench/netlab"
_numbers = itertools.count()
NOWHERE = "02:00:00:00:00:01"  # a hardware address that no host has


def why_no_lab():
    """Empty where hosts can be made."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "there is no iproute2"
    made = subprocess.run(["ip", "netns", "add", name := f"bps-try-{os.getpid()}"], capture_output=True, timeout=20)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)
    return "network namespaces cannot be made here" if made.returncode else ""


class Lab:
    """Hosts 0 to `hosts`, with links of `rate` but for host 0; 0: not shaped. A context manager: what still runs there at its
    end is ended."""

    def __init__(self, hosts, rate="0"):
        self.hosts, self.rate = hosts, rate
        self.name = f"bps-test-{os.getpid()}-{next(_numbers)}"

    def __enter__(self):
        self.netlab("up", str(self.hosts), self.rate)
        return self

    def __exit__(self, *_):
        self.netlab("down")

    def netlab(self, command, *words):
        subprocess.run([NETLAB, command, *words, "--name", self.name], check=True, capture_output=True, timeout=60)

    @staticmethod
    def address(host):
        return f"10.88.0.{host + 1}"

    def on(self, host, command):
        """The command that runs `command` on a host."""
        return [str(NETLAB), "exec", "--name", self.name, str(host), *command]

    def cut(self, one, other):
        for here, there in ((one, other), (other, one)):
            self._neighbour(here, "replace", self.address(there), "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent")

    def mend(self, one, other):
        for here, there in ((one, other), (other, one)):
            self._neighbour(here, "del", self.address(there), "dev", "eth0")

    def _neighbour(self, host, *words):
        subprocess.run(["ip", "-n", f"{self.name}-h{host}", "neighbour", *words], check=True, capture_output=True, timeout=20)
