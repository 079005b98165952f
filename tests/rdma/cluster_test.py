"""Jobs of real processes, two servers and four workers, each on a host of its own: every sum is checked, whatever dies."""
import json
import re
import signal
import socket
import time

from guest_test import STEP, GuestTest
from roce_lab import resources

SERVERS = (1, 2)  # their hosts
WORKERS = (3, 4, 5, 6)
SIZES = "200000,30000,1000"  # elements: more than one partition on each server, and one that fits in a frame
CYCLES = 50
OS, PEER_LOST = 71, 75
FALLS_BACK = "is not reached over RDMA, over TCP instead: "  # what a worker says


class Job(GuestTest):
    """Workers (self.ranks) of one job that goes on until it is told to end."""

    sizes = SIZES

    def expect_sums(self):
        """Rounds go on; then all end with the checksum of right sums only."""
        for rank, reached in [(rank, self.rounds_of(rank)) for rank in self.ranks]:
            self.wait_past(rank, reached)
        self.ranks[0].say()
        for rank in self.ranks:
            self.assert_status(rank, 0, "(?m)^closed", limit=STEP)
        checksums = {rank.wait_line("^checksum") for rank in self.ranks}
        rounds = checksums.copy().pop().split()[1]
        reference = self.run_to_end(self.worker_program, "--reference", len(self.ranks), "--rounds", rounds, "--sizes", self.sizes)
        self.assertEqual(checksums, {reference})

    @staticmethod
    def rounds_of(rank):
        return int(re.findall(r"^reached (\d+)", rank.text(), re.M)[-1])

    def wait_past(self, rank, reached):
        """Until it has done a whole round since `reached`."""
        deadline = time.monotonic() + STEP
        while self.rounds_of(rank) < reached + 2:
            alive = rank.process.poll() is None and time.monotonic() < deadline
            self.assertTrue(alive, f"{rank.name} does not go on:\n{rank.text()}")
            self.pause(0.05)


class Cluster(Job):
    def setUp(self):
        self.needs_transport()
        super().setUp()
        self.master = self.scheduler()
        self.servers = [self.server_on(host, self.master) for host in SERVERS]

    def start_job(self, *flags, env=None):
        """On all workers' hosts."""
        self.ranks = [self.worker_on(host, self.master, rank, len(WORKERS), "--sizes", SIZES, "--until-told", *flags, env=env)
                      for rank, host in enumerate(WORKERS)]
        for rank in self.ranks:
            rank.wait_line("^reached [1-9]")

    def test_sums_are_right(self):
        self.start_job("--broadcast")
        self.expect_sums()

    def test_a_server_is_killed(self):
        self.start_job()
        self.servers[1].signal(signal.SIGKILL)
        self.servers[1].end()
        self.expect_sums()

    def test_a_worker_is_killed(self):
        self.start_job()
        self.ranks[3].signal(signal.SIGKILL)
        for rank in self.ranks[:3]:
            self.assert_status(rank, PEER_LOST, "rank 3", limit=STEP)
        self.assert_serves_another_job()

    def test_a_server_s_cable_is_cut(self):
        self.needs_cables()
        self.addCleanup(self.lab.mend, SERVERS[1])
        self.start_job()
        self.lab.cut(SERVERS[1])
        self.expect_sums()

    def test_a_server_s_device_goes_away(self):
        self.needs_cables()
        self.start_job()
        self.remove_device(SERVERS[1])
        self.expect_sums()

    def test_connect_and_kill_leave_nothing(self):
        # The servers live on, and hold what they held after the first worker was gone: memory for lanes may stay, not grow.
        before = resources()
        for cycle in range(CYCLES):
            worker = self.worker_on(WORKERS[0], self.master, 0, 1, "--sizes", SIZES, "--until-told", job=f"job{cycle}")
            worker.wait_line("^reached [1-9]")
            worker.signal(signal.SIGKILL)
            worker.end()
            if cycle == 0:
                settled = self.assert_resources(before, kinds=("qp", "cq", "cm_id"))
        # A server may still have held memory of the first worker's lanes when that was counted.
        self.assert_resources(settled, may_be_fewer=("mr",))
        self.assert_serves_another_job()

    def needs_cables(self):
        if self.transport != "rdma":
            self.skipTest("only RDMA crosses the cables in one network namespace")

    def assert_serves_another_job(self):
        told = [self.worker_on(host, self.master, rank, 2, "--sizes", SIZES, "--rounds", 2, job="after")
                for rank, host in enumerate(WORKERS[:2])]
        for rank in told:
            self.assert_status(rank, 0, "(?m)^closed", limit=STEP)


class LossyCables(Job):
    """Between one server and two workers: devices repeat what is lost, after seconds, and give up at times; lanes come back."""

    sizes = "30000,1000"

    def setUp(self):
        if self.transport != "rdma":
            self.skipTest("only RDMA crosses the cables in one network namespace")
        self.needs_transport()
        super().setUp()
        self.master = self.scheduler()
        self.server_on(SERVERS[0], self.master)
        self.ranks = [self.worker_on(host, self.master, rank, 2, "--sizes", self.sizes, "--until-told")
                      for rank, host in enumerate(WORKERS[:2])]
        for rank in self.ranks:
            rank.wait_line("^reached [1-9]")

    def lose(self, share):
        for host in (SERVERS[0], *WORKERS[:2]):
            self.addCleanup(self.lab.mend, host)
            self.lab.shape(host, "netem", "loss", share)

    def test_sums_are_right(self):
        self.lose("0.1%")
        self.expect_sums()

    def test_a_worker_is_killed(self):
        self.lose("1%")
        self.ranks[1].signal(signal.SIGKILL)
        self.assert_status(self.ranks[0], PEER_LOST, "rank 1", limit=STEP)


class Bench(GuestTest):
    def test_pushpull(self):
        self.needs_transport()
        told = self.run_to_end(self.bin / "bps-bench", "pushpull", "--transport", self.transport, "--address", self.lab.address(1), "--bytes", "1MB",
                               "--workers", 2, "--servers", 1, "--iters", 2, "--warmup", 1, "--json", "-")
        self.assertEqual([json.loads(line)["transport"] for line in told.splitlines() if '"pushpull"' in line], [self.transport])

    def test_messages(self):
        """Every byte of them is checked."""
        self.needs_transport()
        for kind in ("send", "all_to_all"):
            with self.subTest(kind):
                told = self.run_to_end(self.bin / "bps-bench", "exchange", "--unnamed", "--kind", kind, "--transport", self.transport,
                                       "--address", self.lab.address(1), "--bytes", "1MB", "--workers", 2, "--servers", 1, "--iters", 2,
                                       "--warmup", 1, "--json", "-")
                rows = [json.loads(line) for line in told.splitlines() if f'"unnamed {kind}"' in line and '"bench":' in line]
                self.assertEqual([(row["transport"], row["verified"]) for row in rows], [(self.transport, True)])


class TrafficClass(GuestTest):
    """What is on the cable of a server, while a worker elsewhere uses it."""

    def test_both_directions_have_that_of_the_worker(self):
        if self.transport != "rdma":
            self.skipTest("only RDMA has one")
        self.needs_transport()
        for chosen, expected in (("104", 104), (None, 0)):
            with self.subTest(chosen), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as cable:  # all protocols
                cable.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
                cable.bind((f"p{SERVERS[0]}", 0))
                master = self.scheduler()
                self.server_on(SERVERS[0], master)
                worker = self.worker_on(WORKERS[0], master, 0, 1, "--sizes", SIZES, "--rounds", 1, env={"BPS_RDMA_TCLASS": chosen} if chosen else None)
                self.assert_status(worker, 0, "(?m)^closed", limit=STEP)
                classes = {host: set() for host in (SERVERS[0], WORKERS[0])}
                cable.setblocking(False)
                for sender, traffic_class in self.connected_packets(cable):
                    classes.setdefault(int(sender.split(".")[-1]), set()).add(traffic_class)
                self.assertEqual(classes, {SERVERS[0]: {expected}, WORKERS[0]: {expected}})

    @staticmethod
    def connected_packets(cable):
        """Sender and traffic class of each packet of RoCE v2 over IPv4 that belongs to a reliable connection."""
        while True:
            try:
                frame = cable.recv(2048)
            except BlockingIOError:
                return
            start = 14 + 4 * (frame[14] & 15) if len(frame) > 54 and frame[12:14] == b"\x08\x00" else 0
            is_roce = start > 0 and frame[23] == 17 and frame[start + 2:start + 4] == (4791).to_bytes(2, "big")
            if is_roce and frame[start + 8] < 0x20:  # the first byte of RoCE says what it is; datagrams of rdma_cm are above
                yield socket.inet_ntoa(frame[26:30]), frame[15]


class Auto(Job):
    """What `auto` makes of servers and workers that have devices: RDMA where it works, TCP where it does not, and right sums."""

    def setUp(self):
        if self.transport != "rdma":
            self.skipTest("auto is tried where there is RDMA")
        self.needs_transport()
        super().setUp()
        self.master = self.scheduler()

    def serve(self, *transports):
        for host, transport in zip(SERVERS, transports):
            server = self.server(self.master, "--transport", transport, "--insecure", "--host", f"host{host}", *self.on_host(host),
                                 listen=f"{self.lab.address(host)}:0")
            if transport == "auto":
                server.wait_line("for RDMA")

    def workers_on(self, hosts, *flags):
        return [self.worker(self.master, rank, len(hosts), "--sizes", SIZES, *flags,
                            env={"BPS_HOST": f"host{host}", "BPS_RDMA_DEVICE": self.lab.device(host), "BPS_LOG_LEVEL": "info"})
                for rank, host in enumerate(hosts)]

    def train(self, lanes, *says):
        """Two workers on hosts of their own, each with these lanes in the end."""
        for rank in self.workers_on(WORKERS[:2], "--rounds", 3, "--broadcast"):
            self.assert_status(rank, 0, f"(?m)^lanes {lanes}", "(?m)^closed", *says, limit=STEP)

    def test_rdma_where_it_is_offered(self):
        self.serve("auto", "tcp")
        self.train("2 shm 0 rdma 1 reads [1-9]")

    def limited_server(self, pinned, *flags):
        return self.start("limited server", "setpriv", "--bounding-set=-ipc_lock", "--", "prlimit", f"--memlock={pinned}", "--",
                          self.bin / "bps-server", "--scheduler", self.master.address, "--insecure", "--host", "host1",
                          "--listen", f"{self.lab.address(SERVERS[0])}:0", *flags)

    def test_refused_where_rdma_is_wanted_and_next_to_nothing_may_be_pinned(self):
        for wish in (("--transport", "rdma"), ("--rdma-device", self.lab.device(SERVERS[0]))):
            server = self.limited_server(1 << 20, *wish)
            self.assert_status(server, OS, r"cannot pin 64.0 MiB for RDMA device rxe\d .*limit of locked memory: 1.0 MiB", "raise it")

    def test_tcp_where_next_to_nothing_may_be_pinned(self):
        server = self.limited_server(8 << 20)
        server.wait_line("offers no RDMA: cannot pin 64.0 MiB .*raise it")
        server.wait_line("is server")
        doctor = self.start("doctor", self.bin / "bpsctl", "doctor", "--rdma")
        self.assert_status(doctor, 0, f"not used: RDMA by the bps-server that runs as process {server.process.pid}, which may pin 8 MiB of memory")
        self.train("1 shm 0 rdma 0 reads 0")

    def test_tcp_where_a_worker_has_no_device_and_a_warning(self):
        self.serve("auto")
        self.master.wait_line("joined: 1 shard, offers RDMA")
        hidden = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/infiniband && exec "$0" "$@"')
        worker = self.start("worker without a device", *hidden, self.worker_program, "--sizes", SIZES, "--rounds", 3, "--broadcast",
                            environment={"BPS_SCHEDULER": self.master.address, "BPS_RANK": "0", "BPS_WORLD_SIZE": "1", "BPS_HOST": "host3"})
        self.assert_status(worker, 0, "(?m)^lanes 1 shm 0 rdma 0", "(?m)^closed", limit=STEP)
        warnings = re.findall("warn .*servers offer RDMA, and this worker goes without, over TCP: .*`bpsctl doctor --rdma`", worker.text())
        self.assertEqual(len(warnings), 1, worker.text())

    def test_tcp_where_the_port_does_not_answer(self):
        self.serve("auto", "auto")
        self.addCleanup(self.lab.mend, SERVERS[1])
        self.lab.cut(SERVERS[1])  # TCP does not cross the cables
        self.train("2 shm 0 rdma 1 reads [1-9]", rf"{self.lab.address(SERVERS[1])}:\d+\) {FALLS_BACK}")

    def test_tcp_where_the_device_is_gone_since(self):
        self.serve("auto", "auto")
        self.remove_device(SERVERS[1])
        self.train("2 shm 0 rdma 1 reads [1-9]", FALLS_BACK)

    def test_devices_go_away_that_workers_over_tcp_have_open(self):
        self.serve("auto")
        self.ranks = self.workers_on(WORKERS[:3], "--until-told")
        for rank in self.ranks:
            rank.wait_line("^reached [1-9]")
        self.remove_device(SERVERS[0])
        for rank in self.ranks:
            rank.wait_line(FALLS_BACK)
        self.remove_device(WORKERS[0])
        self.remove_device(WORKERS[3])  # that nobody has chosen
        self.expect_sums()
        for rank in self.ranks:
            self.assertRegex(rank.text(), "(?m)^lanes 1 shm 0 rdma 0 ")
