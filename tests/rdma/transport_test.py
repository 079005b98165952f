"""The transport between two processes on a device: killed peers, a device that goes away, and what it makes of the device beside perftest."""
import re
import signal
import statistics

from guest_test import STEP, GuestTest
from roce_lab import resources

BYTES = 256 * 1024  # of a payload, and of perftest's requests: a partition
COUNT = 200
FOR_EVER = 1_000_000
PEERS_LOST = 75
BATCHES, AT_ONCE = 10, 5  # 50 peers that are killed
TURNS = 3
IPV4_GID = 1  # index of the address in the device's table: rxe has its link-local one before
LEAST, FLOOR, GOAL = 0.5, 0.7, 0.9  # of ib_read_bw: below the first is a failure, though emulation is uneven
SENDS_A_SIGNAL = 16  # SENDs for each of which one completion may be asked


class Transport(GuestTest):
    def setUp(self):
        super().setUp()
        self.receive()

    def receive(self, how="receive", address=None):
        receiver = self.start(f"goodput {how}", self.program(), how, self.transport, address or self.lab.address(1))
        try:
            self.address = receiver.wait_line("^listening").split()[1]
        except AssertionError:
            if "built without" in receiver.text():
                self.skipTest(receiver.text())
            raise
        self.receiver = receiver

    def program(self):
        return self.build / "tests/rdma/goodput"

    def sender(self, count, transport=None):
        return self.start("goodput send", self.program(), "send", transport or self.transport, self.address, BYTES, count)

    def end_receiver(self):
        self.receiver.signal(signal.SIGTERM)
        self.assert_status(self.receiver, 0)

    def wait_results(self, pattern, count):
        for process_text in iter(self.receiver.text, None):
            found = re.findall(pattern, process_text, re.M)
            if len(found) >= count or self.receiver.process.poll() is not None:
                break
            self.pause(0.05)
        self.assertEqual(len(found), count, self.receiver.text())
        return found

    def test_connect_and_kill_leave_nothing(self):
        before, settled = resources(), None
        for batch in range(BATCHES):
            senders = [self.sender(FOR_EVER) for _ in range(AT_ONCE)]
            for sender in senders:
                sender.wait_line("^under way")
            for sender in senders:
                sender.signal(signal.SIGKILL)
            self.wait_results("^lost ", (batch + 1) * AT_ONCE)
            if settled is None:
                settled = self.assert_resources(before, kinds=("qp", "cq", "cm_id"))
        self.assert_resources(settled)
        self.assert_status(self.sender(COUNT), 0)  # it serves as before
        self.end_receiver()

    def test_a_receiver_is_killed(self):
        sender = self.sender(FOR_EVER)
        sender.wait_line("^under way")
        self.receiver.signal(signal.SIGKILL)
        self.assertNotEqual(sender.end(STEP), 0)
        self.assertRegex(sender.text(), "lost")

    def test_a_chosen_device_is_the_one_that_is_used(self):
        """The route to an address of this host goes by its loopback device: only the address of its own takes a connection elsewhere."""
        if self.transport != "rdma":
            self.skipTest("only RDMA has devices")
        before = resources()
        sender = self.sender(COUNT, self.lab.device(2) + ":1")
        sender.wait_line("^under way")
        held = resources()
        for host in (1, 2):
            device = self.lab.device(host)
            self.assertEqual(held[device]["qp"], before[device]["qp"] + 1, device)
        self.assert_status(sender, 0)
        self.refused("send", self.lab.device(2) + ":2", self.address, BYTES, 1, says="rxe2 has no port 2; it has port 1")
        self.refused("receive", self.lab.device(2), self.lab.address(1), says="this address is that of RDMA device rxe1, not rxe2")
        self.refused("send", "rxe", self.address, BYTES, 1, says="no RDMA device rxe; it has rxe1, rxe2")
        self.end_receiver()

    def test_over_ipv6(self):
        if self.transport != "rdma":
            self.skipTest("only RDMA crosses the cables in one network namespace")
        for host in (1, 2):
            self.lab.add_ipv6(host)
            self.addCleanup(self.lab.drop_ipv6, host)
        self.end_receiver()
        self.receive(address=self.lab.ipv6(1))
        before = resources()
        sender = self.sender(COUNT, self.lab.device(2))
        sender.wait_line("^under way")
        held = resources()
        for host in (1, 2):
            device = self.lab.device(host)
            self.assertEqual(held[device]["qp"], before[device]["qp"] + 1, device)
        self.assert_status(sender, 0)
        self.wait_results("^goodput ", 1)
        self.end_receiver()

    def refused(self, *words, says):
        self.assert_status(self.start("goodput", self.program(), *words), 78, says)

    def test_a_device_goes_away(self):
        if self.transport != "rdma":
            self.skipTest("only RDMA has a device")
        sender = self.sender(FOR_EVER)
        sender.wait_line("^under way")
        self.begin_removal(1)
        self.assert_status(sender, PEERS_LOST, " lost: ")
        self.receiver.wait_line("^lost ")
        # Both ends are on the device: whoever hears of it first hangs up, which may be all that the other hears.
        self.assertIn(f"lost: RDMA device {self.lab.device(1)} was removed", sender.text() + self.receiver.text())
        self.end_removal(1)  # though the receiver lives on
        self.return_device(1)
        self.receiver.wait_line("the RDMA device is back")
        self.assert_status(self.sender(COUNT), 0)
        self.end_receiver()

    def test_devices_go_away_that_are_open_but_not_used(self):
        if self.transport != "rdma":
            self.skipTest("only RDMA has a device")
        sender = self.sender(COUNT)
        sender.wait_line("^under way")
        for host in (3, 4, 3):  # the last is one that has come back, and was opened when the second went
            self.remove_device(host)
            self.return_device(host)
        self.assert_status(sender, 0)
        self.wait_results("^goodput ", 1)
        self.remove_device(4)  # now there is but a listener
        self.return_device(4)
        self.end_receiver()

    def test_the_only_device_goes_away(self):
        if self.transport != "rdma":
            self.skipTest("only RDMA has a device")
        self.end_receiver()
        for host in range(2, self.lab.hosts + 1):
            self.remove_device(host)
        self.receive()
        sender = self.sender(FOR_EVER)
        sender.wait_line("^under way")
        self.begin_removal(1)
        self.assert_status(sender, PEERS_LOST, " lost: ")
        self.receiver.wait_line("^lost ")
        self.end_removal(1)  # though the receiver lives on, and there is no device that librdmacm could look for
        self.return_device(1)
        self.receiver.wait_line("the RDMA device is back")
        self.assert_status(self.sender(COUNT), 0)
        self.remove_device(1)  # now there is but a listener
        self.return_device(1)
        self.end_receiver()

    def test_goodput_against_perftest(self):
        receivers = {"bps, copied as by a worker": (self.receiver, self.address)}
        self.receive("borrow")
        receivers["bps, in place as by a server"] = (self.receiver, self.address)
        tools = ("ib_write_bw", "ib_read_bw")
        measured = {what: [] for what in (*receivers, *tools)}

        def ratio(what, tool):
            """Of those that were measured one after the other: the machine is not as fast all the time."""
            return statistics.median(ours / theirs for ours, theirs in zip(measured[what], measured[tool]))

        for turn in range(2 * TURNS):
            if turn >= TURNS and all(ratio(what, "ib_read_bw") > LEAST for what in receivers):
                break  # else something else may have run in some of them
            for what, (self.receiver, self.address) in receivers.items():
                measured[what].append(self.goodput(turn))
            for tool in tools:
                measured[tool].append(self.perftest(tool))
        for self.receiver, self.address in receivers.values():
            self.end_receiver()
        median = {what: statistics.median(values) for what, values in measured.items()}
        print(f"\n| {self.transport}, {BYTES // 1024} KiB one way, {len(measured[tools[0]])} turns | median MB/s | all | by ib_write_bw | by ib_read_bw |")
        print("| --- | --- | --- | --- | --- |")
        for what, values in measured.items():
            ratios = " | ".join(f"{ratio(what, tool):.2f}" for tool in tools)
            print(f"| {what} | {median[what]:.1f} | {', '.join(f'{value:.1f}' for value in values)} | {ratios} |")
        for what in receivers:
            reached = ratio(what, "ib_read_bw")
            print(f"{what}: {'goal' if reached >= GOAL else 'floor' if reached >= FLOOR else 'missed'} ({FLOOR}, {GOAL} of ib_read_bw)")
            self.assertGreater(reached, LEAST)

    def goodput(self, turn):
        """MB/s of one sender. Its payloads register nothing, and few of its requests ask for a completion."""
        sender = self.sender(COUNT)
        self.assert_status(sender, 0)
        speed, moved = self.wait_results(r"^goodput (\S+) (\d+)", turn + 1)[-1]
        self.assertEqual(int(moved), BYTES * COUNT)
        if self.transport == "rdma":
            told = sender.wait_line("^counters")
            print("\n" + told)
            counters = {name: int(value) for name, value in re.findall(r"(\w+) (\d+)", told)}
            self.assertEqual(counters["registrations"], 0)
            self.assertEqual(counters["failed_requests"], 0)
            self.assertLessEqual(counters["signalled_sends"] * SENDS_A_SIGNAL, counters["sends"])
        return float(speed)

    def perftest(self, tool):
        """MB/s on average, on the same device. By the counters of processors, which disagree at times in an emulated machine: then it says 0."""
        words = ("stdbuf", "-oL", tool, "-x", IPV4_GID, "-s", BYTES, "-n", COUNT, "-F", "--report_gbits", "-d", self.lab.device(1))
        for _ in range(3):
            server = self.start(tool, *words)
            server.wait_line("Waiting for client")
            told = self.run_to_end(*words, self.lab.address(1))
            server.end()
            average = float(re.search(rf"^ *{BYTES} +{COUNT} +\S+ +(\S+)", told, re.M).group(1))
            if average > 0:
                return average * 1000 / 8
        self.fail(f"{tool} could not measure itself:\n{told}")
