"""The guest itself: devices that are there and work, and what bpsctl says of them."""
import json
import re

from guest_test import GuestTest
from roce_lab import run

RPING = ("stdbuf", "-oL", "rping")  # its lines are waited for


class Devices(GuestTest):
    def test_every_host_has_an_active_port(self):
        told = self.run_to_end("ibv_devinfo")
        self.assertEqual(sorted(re.findall(r"hca_id:\s*(\S+)", told)), [self.lab.device(host) for host in self.hosts()])
        self.assertEqual(re.findall(r"state:\s*(\S+)", told), ["PORT_ACTIVE"] * self.lab.hosts)

    def test_bytes_cross_the_cables_unchanged(self):
        server, client = self.rping("-V", "-C", "20")
        self.assert_status(client, 0)
        self.assert_status(server, 0)

    def test_a_killed_process_leaves_nothing(self):
        server, client = self.rping("-v", "-C", "1000000")
        client.wait_line("ping data")
        server.process.kill()
        client.process.kill()

    def test_doctor_tells_what_can_be_used(self):
        told = self.run_to_end(self.bin / "bpsctl", "doctor", "--rdma")
        for host in self.hosts():
            self.assertIn(f"\nusable: {self.lab.address(host)} ({self.lab.device(host)} port 1, gid 1)", told)
        doctor = json.loads(self.run_to_end(self.bin / "bpsctl", "doctor", "--rdma", "--json"))
        self.assertEqual([device["device"] for device in doctor["devices"]], [self.lab.device(host) for host in self.hosts()])
        self.assertEqual((doctor["notes"], doctor["wrong"], doctor["pinned_bytes_max"]), ([], [], None))

    def test_doctor_tells_what_is_wrong(self):
        run("ip", "link", "set", "h1", "down")
        self.addCleanup(self.lab.bring_up, 1)
        told = self.run_to_end(self.bin / "bpsctl", "doctor", "--rdma")
        self.assertIn("\nnot used: rxe1 port 1 is DOWN", told)
        limited = self.start("doctor with a limit", "setpriv", "--bounding-set=-ipc_lock", "--", "prlimit", "--memlock=65536", "--",
                             self.bin / "bpsctl", "doctor", "--rdma")
        self.assert_status(limited, 78, "\nwrong: this process may pin 64 KiB of memory", "LimitMEMLOCK=infinity")

    def test_doctor_misses_providers_and_libraries(self):
        library = run("ldconfig", "-p").split("librdmacm.so.1 ")[1].split("=> ")[1].split()[0]
        for hide, says in (("mount -t tmpfs none /etc/libibverbs.d", "libibverbs does not open rxe1: .*ibverbs-providers"),
                           (f"mount --bind /dev/null {library}", "the RDMA libraries cannot be opened: .*librdmacm.*install libibverbs1, librdmacm1")):
            doctor = self.start("doctor", "unshare", "--mount", "sh", "-c", f'{hide} && exec "$0" "$@"', self.bin / "bpsctl", "doctor", "--rdma")
            self.assert_status(doctor, 78, "\nwrong: " + says)
            self.assertNotIn("usable:", doctor.text())

    def test_what_is_asked_for_and_is_not_there_is_named(self):
        for choice, says in ((("rxe9",), "this host has no RDMA device rxe9; it has rxe1, rxe2"),
                             (("rxe2:3",), "RDMA device rxe2 has no port 3; it has port 1"),
                             (("rxe2", 77), r"RDMA device rxe2 has no GID 77; it has 10.78.0.2 \(GID 1\)"),
                             (("rxe2", 0), "RDMA device rxe2 has no address of this host at GID 0")):
            flags = [word for pair in zip(("--rdma-device", "--rdma-gid"), choice) for word in pair]
            self.assert_status(self.start("doctor", self.bin / "bpsctl", "doctor", "--rdma", *flags), 78, "\nwrong: " + says)
            self.assert_status(self.start("server", self.bin / "bps-server", "--transport", "rdma", *flags), 78, says)
            settings = {"BPS_TRANSPORT": "rdma"} | {f"BPS_{flag[2:].replace('-', '_').upper()}": str(value)
                                                    for flag, value in zip(flags[::2], flags[1::2])}
            self.assert_status(self.worker("127.0.0.1:1", 0, 1, env=settings), 78, says)
        self.assert_status(self.start("server", self.bin / "bps-server", "--transport", "rdma", "--rdma-gid", 1), 78,
                           "which RDMA device GID 1 is of has not been said; name one of these: rxe1, rxe2")

    def hosts(self):
        return range(1, self.lab.hosts + 1)

    def rping(self, *flags):
        """Server on host 1, and client on host 2 as soon as there is somebody at the other end."""
        server = self.start("rping -s", *RPING, "-s", "-d", "-a", self.lab.address(1), *flags)
        server.wait_line("rdma_listen")
        return server, self.start("rping -c", *RPING, "-c", "-I", self.lab.address(2), "-a", self.lab.address(1), *flags)
