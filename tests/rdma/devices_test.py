"""The guest itself: devices that are there and work, without anything of ours."""
import re

from guest_test import GuestTest

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

    def hosts(self):
        return range(1, self.lab.hosts + 1)

    def rping(self, *flags):
        """Server on host 1, and client on host 2 as soon as there is somebody at the other end."""
        server = self.start("rping -s", *RPING, "-s", "-d", "-a", self.lab.address(1), *flags)
        server.wait_line("rdma_listen")
        return server, self.start("rping -c", *RPING, "-c", "-I", self.lab.address(2), "-a", self.lab.address(1), *flags)
