#!/usr/bin/env python3
"""netlab with real hosts and real TCP: netlab_test.py PATH-OF-NETLAB [unittest arguments]

Exit status 77 (skipped) where network namespaces cannot be made.
"""
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "process"))
from netlab import why_no_lab  # noqa: E402

LIMIT = 240  # seconds after which anything is considered to hang
RATE = 200e6  # bits a second
# What TCP has of a link: 1448 of the 1514 bytes of a full packet.
GOODPUT = RATE * 1448 / 1514 / 8
BYTES = 20_000_000
TRIES = 10  # of what a busy machine can make too slow, or measure late
BUSY = 0.5  # of the CPUs' time idle: below that what was too slow says nothing of the links
# Seconds until a stream has the rate that it keeps. What comes to h3 waits 84 ms in the switch when its link has
# 100 Mbit/s, and so do the acknowledgements of what h3 sends: a sender there needs 620 packets under way. cubic often
# leaves slow start at 60, as the way looks short while the switch is empty; from there it grows by 5 % each 75 ms.
WARM_UP = 5

# Receives on one connection while it sends on another, until it is told to stop. Says the congestion control and the
# goodput of what comes in, from the first bytes after the warm-up on; at the end, what it has sent and received.
PEER = """
import socket, sys, threading, time
own, other, warm_up, total = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
listener = socket.create_server((own, 7000))
print("listening", flush=True)
sys.stdin.readline()
stop = threading.Event()
sent = 0
def send():
    global sent
    block = bytes(1 << 20)
    with socket.create_connection((other, 7000), 20) as connection:
        connection.settimeout(40)
        while not stop.is_set():
            connection.sendall(block)
            sent += len(block)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
sender = threading.Thread(target=send)
sender.start()
connection, _ = listener.accept()
control = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode()
connection.settimeout(40)
received = 0
def receive_until(enough):
    global received
    while not enough() and (data := connection.recv(1 << 20)):
        received += len(data)
warm = time.monotonic() + warm_up
receive_until(lambda: received > 0 and time.monotonic() >= warm)
start, before = time.monotonic(), received
receive_until(lambda: received >= before + total)
print(control, (received - before) / (time.monotonic() - start), flush=True)
def wait_for_stop():
    sys.stdin.readline()
    stop.set()
threading.Thread(target=wait_for_stop).start()
receive_until(lambda: False)
connection.close()
sender.join()
print(sent, received, flush=True)
"""

# The shortest of ten ways there and back: a connection that is refused.
ROUND_TRIP = """
import socket, sys, time
def once():
    start = time.monotonic()
    try:
        socket.create_connection((sys.argv[1], 7000), 30)
    except ConnectionRefusedError:
        return time.monotonic() - start
print(min(once() for _ in range(10)))
"""
# How many of so many datagrams come. "hello" is sent until it is answered: then each knows where the other is. "end" is sent until
# one of those has come, which is behind all others.
COUNT = """
import socket
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(("10.88.0.3", 7000))
own.settimeout(100)
print("listening", flush=True)
count = 0
while True:
    word, sender = own.recvfrom(100)
    if word == b"end":
        break
    if word == b"hello":
        own.sendto(b"hello", sender)
    else:
        count += 1
print(count)
"""
SEND = """
import socket
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.settimeout(0.1)
def is_answered(word):
    try:
        own.sendto(word, ("10.88.0.3", 7000))
        return own.recv(10) == b"hello"
    except OSError:
        return False
while not is_answered(b"hello"):
    pass
for _ in range(200):
    own.sendto(b"one", ("10.88.0.3", 7000))
while True:  # until this is killed
    is_answered(b"end")
"""


def namespaces(lab):
    folder = pathlib.Path("/run/netns")
    return [entry.name for entry in folder.glob(f"{lab}-*")] if folder.exists() else []


def relays(lab):
    commands = []
    for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(process.read_bytes().replace(bytes(1), b" ").decode(errors="replace"))
        except OSError:
            pass  # it has ended
    return [command for command in commands if f"netlab-relay {lab} " in command]


def cpu_times():
    """Idle, and all of it."""
    times = [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return times[3] + times[4], sum(times)


def own_links():
    return {link.name for link in pathlib.Path("/sys/class/net").iterdir()}


class NetlabTest(unittest.TestCase):
    netlab = None  # path of the script under test
    lab = f"nt{os.getpid()}"

    def setUp(self):
        self.links = own_links()
        self.addCleanup(self.run_netlab, "down")

    def run_netlab(self, command, *arguments, status=0):
        run = subprocess.run([self.netlab, command, "--name", self.lab, *arguments], stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(run.returncode, status, run.stderr)
        return run.stdout if status == 0 else run.stderr

    def peer(self, host, own, other, warm_up):
        command = [self.netlab, "exec", "--name", self.lab, host, sys.executable, "-c", PEER, own, other, str(warm_up),
                   str(BYTES)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate, timeout=LIMIT)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "listening\n")
        return process

    def goodput(self, first, second, warm_up=WARM_UP):
        """Bytes a second that each of two hosts received from the other, both at once."""
        addresses = [f"10.88.0.{int(host.strip('h')) + 1}" for host in (first, second)]
        peers = [self.peer(first, *addresses, warm_up), self.peer(second, *reversed(addresses), warm_up)]

        def tell_all(word):
            for peer in peers:
                peer.stdin.write(word)
                peer.stdin.flush()

        tell_all("go\n")
        rates = []
        for peer in peers:
            control, rate = peer.stdout.readline().split()
            self.assertEqual(control, "cubic")
            rates.append(float(rate))
        tell_all("stop\n")
        totals = [[int(total) for total in peer.communicate(timeout=LIMIT)[0].split()] for peer in peers]
        self.assertEqual(totals[0], totals[1][::-1])
        self.assertGreaterEqual(min(totals[0]), BYTES)
        return rates

    def tried(self, good, *arguments, **named):
        """Goodputs up to the first good ones, and whether those that were not could have been."""
        rates, was_idle = [], False
        while len(rates) < TRIES and not (rates and good(rates[-1])):
            before = cpu_times()
            rates.append(self.goodput(*arguments, **named))
            idle, total = (now - then for now, then in zip(cpu_times(), before))
            was_idle = was_idle or idle > BUSY * total
        return rates, was_idle

    def assert_goodput(self, expected, first, second):
        """No more than the link allows; and as much, when no one else has the CPU."""
        rates, was_idle = self.tried(lambda received: 0.97 * expected < min(received) <= max(received) < 1.03 * expected,
                                     first, second)
        self.assertLess(min(map(max, rates)), 1.03 * expected, rates)
        if min(rates[-1]) <= 0.97 * expected:
            self.assertFalse(was_idle, f"expected {expected:.0f} bytes a second, was {rates}")
            print(f"this machine is too busy to tell if links have their goodput: {rates}")

    def assert_nothing_left(self):
        self.assertEqual(namespaces(self.lab), [])
        deadline = time.monotonic() + LIMIT
        while relays(self.lab) and time.monotonic() < deadline:
            pass  # a process that has been killed goes when it has its turn
        self.assertEqual(relays(self.lab), [])
        self.assertEqual(own_links(), self.links)

    def test_three_hosts(self):
        self.run_netlab("up", "3", "200mbit")
        self.assertEqual(sorted(namespaces(self.lab)),
                         [f"{self.lab}-{host}" for host in ("h0", "h1", "h2", "h3", "sw")])

        # One stream each way at once, through the same two links.
        self.assert_goodput(GOODPUT, "h1", "2")

        # Half the rate for one host is half the rate for who sends to it.
        self.run_netlab("rate", "h3", "100mbit")
        self.assert_goodput(GOODPUT / 2, "h1", "h3")

        # Without shaping on either end the rate is what the CPU makes it.
        self.run_netlab("rate", "h2", "0")
        rates, was_idle = self.tried(lambda received: received[0] > 2 * GOODPUT, "h0", "h2", warm_up=0)
        self.assertTrue(rates[-1][0] > 2 * GOODPUT or not was_idle, rates)

        for line in self.run_netlab("stat").splitlines():
            host, direction, *counters = line.split()
            self.assertIn(direction, ("up", "down"))
            self.assertEqual([counter.split("=")[0] for counter in counters],
                             ["bytes", "packets", "dropped", "waiting"])
            if host == "h1":
                self.assertGreater(int(counters[0].split("=")[1]), 2 * BYTES)

        # Who pulls the cable cuts connections; who puts it back has them again.
        for state, seconds, said in (("down", 1, "timed out"), ("up", 20, "refused")):
            self.run_netlab("link", "h1", state)
            connect = f"import socket; socket.create_connection(('10.88.0.1', 7000), {seconds})"
            run = subprocess.run([self.netlab, "exec", "--name", self.lab, "h1", sys.executable, "-c", connect],
                                 capture_output=True, text=True)
            self.assertIn(said, run.stderr)

        # A program that still runs on a host ends with it.
        last = self.peer("h2", "10.88.0.3", "10.88.0.1", 0)
        self.run_netlab("down")
        self.assertEqual(last.wait(timeout=LIMIT), -signal.SIGKILL)
        self.assert_nothing_left()

    def on_host(self, host, program, *arguments):
        return subprocess.Popen([self.netlab, "exec", "--name", self.lab, host, sys.executable, "-c", program, *arguments],
                                stdout=subprocess.PIPE, text=True)

    def test_delay(self):
        self.run_netlab("up", "2", "100mbit", "--delay", "20ms")
        for address, least in (("10.88.0.3", 0.08), ("10.88.0.1", 0.04)):  # h0's own link has none
            took = float(self.on_host("h1", ROUND_TRIP, address).communicate(timeout=LIMIT)[0])
            self.assertGreaterEqual(took, least)
            self.assertLess(took, 20)
        # Frames of any size pass whole, both ways at once, and no faster than the link; what a busy relay has kept comes at once.
        rates, _ = self.tried(lambda received: max(received) < 1.3 * GOODPUT / 2, "h1", "h2")
        self.assertLess(max(rates[-1]), 1.3 * GOODPUT / 2, rates)
        self.assertEqual(len(relays(self.lab)), 1)
        self.run_netlab("down")
        self.assert_nothing_left()

    def test_loss(self):
        self.run_netlab("up", "2", "100mbit", "--loss", "20%")
        receiver = self.on_host("h2", COUNT)
        self.assertEqual(receiver.stdout.readline(), "listening\n")
        sender = self.on_host("h1", SEND)
        try:
            came = int(receiver.communicate(timeout=LIMIT)[0])
        finally:
            sender.kill()
            sender.communicate()
        self.assertTrue(50 < came < 180, came)  # of 200, by two links: 128 +- 7
        self.run_netlab("down")
        self.assert_nothing_left()

    def test_up_that_is_interrupted_leaves_nothing(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            up = subprocess.Popen([self.netlab, "up", "--name", self.lab, "200", "1gbit"], stdin=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, start_new_session=True)
            deadline = time.monotonic() + LIMIT
            while len(namespaces(self.lab)) < 5 and time.monotonic() < deadline:
                self.assertIsNone(up.poll())
            os.killpg(up.pid, number)  # as a terminal does it
            self.assertEqual(up.wait(timeout=LIMIT), status)
            self.assert_nothing_left()

    def test_up_that_fails_leaves_nothing(self):
        said = self.run_netlab("up", "2", "1gbit", "--congestion-control", "nonsense", status=71)
        self.assertIn("could not be made", said)
        self.assert_nothing_left()

    def test_labs_do_not_disturb_each_other(self):
        other = self.lab + "x"
        self.run_netlab("up", "1", "1gbit")
        try:
            subprocess.run([self.netlab, "up", "1", "1gbit", "--name", other], check=True, timeout=LIMIT)
            self.run_netlab("down")
            self.assertEqual(len(namespaces(other)), 3)
        finally:
            subprocess.run([self.netlab, "down", "--name", other], check=True, timeout=LIMIT)
        self.assert_nothing_left()

    def test_bad_input(self):
        self.run_netlab("up", "1", "1gbit")
        self.assertIn("is up already", self.run_netlab("up", "1", "1gbit", status=71))
        for arguments, said in ((["up", "0", "1gbit"], "'0' hosts"), (["up", "3", "fast"], "'fast' is no rate"),
                                (["up", "3", "1gbit", "--delay", "2"], "'2' is no delay"),
                                (["up", "3", "1gbit", "--loss", "0.5"], "--loss 0.5: no percentage"),
                                (["up", "3", "1gbit", "--loss", "101%"], "--loss 101%: no percentage from 0% to 100%"),
                                (["up", "3", "1gbit", "--delay"], "--delay needs a value"),
                                (["up", "3"], "other arguments"), (["up", "1", "2", "3"], "other arguments"),
                                (["exec", "h7", "true"], "no host 'h7'"), (["exec", "h1"], "other arguments"),
                                (["rate", "h1", "3parsec"], "no rate"), (["link", "h1", "sideways"], "up, or link"),
                                (["rate", "h1", "1gbit", "--delay", "2ms"], "--delay is for netlab up"),
                                (["stat", "--speed"], "unknown option '--speed'"),
                                (["frobnicate"], "no command 'frobnicate'")):
            with self.subTest(arguments):
                self.assertIn(said, self.run_netlab(*arguments, status=64))
        run = subprocess.run([self.netlab, "exec", "--name", self.lab, "1", "sh", "-c", "exit 5"], timeout=LIMIT)
        self.assertEqual(run.returncode, 5)


if __name__ == "__main__":
    if reason := why_no_lab():
        print(f"netlab_test: skipped: network namespaces cannot be made here ({reason})")
        sys.exit(77)
    NetlabTest.netlab = sys.argv.pop(1)
    unittest.main(verbosity=2)
