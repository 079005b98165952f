"""What the transport makes of a device, against perftest on the same devices in the same minutes."""
import re
import statistics

from guest_test import GuestTest

TURNS = 3
BYTES = 256 * 1024  # of a payload, and of perftest's requests: a partition
COUNT = 200
IPV4_GID = 1  # index of the address in the device's table: rxe has its link-local one before
LEAST = 0.3  # far below what is wanted: emulation is uneven
FLOOR, GOAL = 0.7, 0.9


class Speed(GuestTest):
    def test_goodput_against_perftest(self):
        measured = {"bps": [], "ib_write_bw": [], "ib_read_bw": []}
        for _ in range(TURNS):
            measured["bps"].append(self.goodput())
            for tool in ("ib_write_bw", "ib_read_bw"):
                measured[tool].append(self.perftest(tool))
        median = {what: statistics.median(values) for what, values in measured.items()}
        print(f"\n| {self.transport}, {BYTES // 1024} KiB one way, {TURNS} turns | median MB/s | all | bps by it | floor {FLOOR}, goal {GOAL} |")
        print("| --- | --- | --- | --- | --- |")
        for what, values in measured.items():
            ratio = median["bps"] / median[what]
            verdict = "goal" if ratio >= GOAL else "floor" if ratio >= FLOOR else "missed"
            judged = f"{ratio:.2f} | {verdict}" if what != "bps" else " | "
            print(f"| {what} | {median[what]:.1f} | {', '.join(f'{value:.1f}' for value in values)} | {judged} |")
        self.assertGreater(median["bps"], LEAST * median["ib_read_bw"])

    def goodput(self):
        program = self.build / "tests/rdma/goodput"
        receiver = self.start("goodput receive", program, "receive", self.transport, self.lab.address(1))
        try:
            address = receiver.wait_line("^listening").split()[1]
        except AssertionError:
            if receiver.end() == 64:
                self.skipTest(f"bps was built without {self.transport}")
            raise
        self.run_to_end(program, "send", self.transport, address, BYTES, COUNT)
        self.assert_status(receiver, 0)
        speed, moved = receiver.wait_line("^goodput").split()[1:]
        self.assertEqual(int(moved), BYTES * COUNT)
        return float(speed)

    def perftest(self, tool):
        """MB/s on average, from host 2 to host 1."""
        words = ("stdbuf", "-oL", tool, "-x", IPV4_GID, "-s", BYTES, "-n", COUNT, "-F", "--report_gbits", "-d")
        server = self.start(tool, *words, self.lab.device(1))
        server.wait_line("Waiting for client")
        told = self.run_to_end(*words, self.lab.device(2), self.lab.address(1))
        server.end()
        average = re.search(rf"^ *{BYTES} +{COUNT} +\S+ +(\S+)", told, re.M).group(1)
        return float(average) * 1000 / 8
