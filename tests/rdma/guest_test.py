"""What the suite's tests share: real programs spread over RoCE hosts, and the promise that nothing of a device is left behind."""
import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "process"))

from daemons import DaemonTest  # noqa: E402
from roce_lab import RoceLab, resources  # noqa: E402

SETTLE = 20  # seconds within which a device's resources are those of before: the kernel frees them after their process
STEP = 90  # seconds that one program may take in the emulated guest
LET_GO = 60  # seconds within which emulated processes let go of a device that is removed


class GuestTest(DaemonTest):
    """A test on the hosts of `lab`. Each ends with a look at all devices: what it made there must be gone."""

    lab: RoceLab
    transport = "rdma"
    build: pathlib.Path

    def setUp(self):
        # Added first, so done last: processes are gone by then.
        self.addCleanup(self.assert_resources, resources())
        self.removals = {}
        self.addCleanup(self.return_devices)
        super().setUp()

    def assert_resources(self, expected, kinds=(), may_be_fewer=()):
        """All devices soon hold what is expected, if only some kinds count, of those; or less of the kinds that may be fewer.
        Returns what they hold then."""
        def counted(held):
            return {device: {kind: max(count, expected.get(device, {}).get(kind, 0)) if kind in may_be_fewer else count
                             for kind, count in of.items() if not kinds or kind in kinds} for device, of in held.items()}

        deadline = time.monotonic() + SETTLE
        while counted(held := resources()) != counted(expected) and time.monotonic() < deadline:
            self.pause(0.1)
        self.assertEqual(counted(held), counted(expected), "left behind on the devices")
        return held

    # ---- devices that go away ----

    def remove_device(self, host):
        self.begin_removal(host)
        self.end_removal(host)

    def begin_removal(self, host):
        self.removals[host] = subprocess.Popen(["rdma", "link", "delete", self.lab.device(host)])

    def end_removal(self, host):
        """The kernel ends it when nobody has the device open any more, whether or not it is used."""
        try:
            self.assertEqual(self.removals[host].wait(timeout=LET_GO), 0)
        except subprocess.TimeoutExpired:
            self.fail(f"somebody still has {self.lab.device(host)} open, {LET_GO} s after it was removed")

    def return_device(self, host):
        self.assertEqual(self.removals.pop(host).wait(timeout=STEP), 0)
        self.lab.add_device(host)

    def return_devices(self):
        for host in list(self.removals):
            self.return_device(host)

    # ---- programs ----

    def run_to_end(self, *command, environment=None, limit=STEP):
        """Output of a program that must succeed."""
        process = self.start(str(command[0]), *command, environment=environment)
        self.assert_status(process, 0, limit=limit)
        return process.text()

    # ---- a cluster: scheduler on loopback, servers and workers on hosts ----

    def needs_transport(self):
        """Skips where the programs were built without it."""
        told = subprocess.run([self.bin / "bps-server", "--help"], capture_output=True, text=True, timeout=STEP).stdout
        choices = re.search(r"--transport (\S+)", told).group(1)
        if self.transport not in choices.split("|"):
            self.skipTest(f"bps-server has no --transport {self.transport}, only {choices}")

    def on_host(self, host):
        """Flags and settings of programs there."""
        return ("--rdma-device", self.lab.device(host)) if self.transport == "rdma" else ()

    def server_on(self, host, scheduler, *flags):
        return self.server(scheduler, "--transport", self.transport, "--insecure", *self.on_host(host), *flags,
                           listen=f"{self.lab.address(host)}:0")

    def worker_on(self, host, scheduler, rank, size, *flags, job="job", env=None):
        settings = {"BPS_TRANSPORT": self.transport}
        if self.transport == "rdma":
            settings["BPS_RDMA_DEVICE"] = self.lab.device(host)
        return self.worker(scheduler, rank, size, *flags, job=job, env=settings | (env or {}))
