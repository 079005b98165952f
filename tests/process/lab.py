"""Hosts for processes of a test, made by bench/netlab out of network namespaces, and links between two of them that can be cut:
packets vanish, nobody hears a reset, and both ends go on."""
import os
import pathlib
import shutil
import subprocess

NETLAB = pathlib.Path(__file__).resolve().parents[2] / "bench/netlab"
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
    """Hosts 0 to `hosts`; down() ends what still runs there."""

    def __init__(self, hosts):
        self.name = f"bps-test-{os.getpid()}"
        self._netlab("up", str(hosts), "0")

    def _netlab(self, command, *words):
        subprocess.run([NETLAB, command, *words, "--name", self.name], check=True, capture_output=True, timeout=60)

    def down(self):
        self._netlab("down")

    @staticmethod
    def address(host):
        return f"10.88.0.{host + 1}"

    def on(self, host, command):
        """The command that runs `command` on a host."""
        return [NETLAB, "exec", "--name", self.name, str(host), *command]

    def cut(self, one, other):
        for here, there in ((one, other), (other, one)):
            self._neighbour(here, "replace", self.address(there), "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent")

    def mend(self, one, other):
        for here, there in ((one, other), (other, one)):
            self._neighbour(here, "del", self.address(there), "dev", "eth0")

    def _neighbour(self, host, *words):
        subprocess.run(["ip", "-n", f"{self.name}-h{host}", "neighbour", *words], check=True, capture_output=True, timeout=20)
