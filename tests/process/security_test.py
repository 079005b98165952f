#!/usr/bin/env python3
"""Real daemons and workers with keys, and what people without them can do.

    security_test.py PROGRAM-FOLDER WORKER GOLDEN-BYTES [unittest arguments]
"""
import hashlib
import hmac
import os
import pathlib
import re
import resource
import select
import socket
import struct
import subprocess
import sys
import time
import unittest

from daemons import DaemonTest, main

GOLDEN = {}  # name of a message -> its frame
PREFIX = 24
DIGITS = "00112233445566778899aabbccddeeff" * 2
UNAUTHORISED = 77


def read_golden(path):
    for name, lines in re.findall(r'\{"(\w+)",\s*((?:"[0-9a-f]+"\s*)+)\}', pathlib.Path(path).read_text()):
        GOLDEN[name] = bytes.fromhex("".join(re.findall(r"[0-9a-f]{2,}", lines)))


class KeyedTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.key = self.key_file("cluster.key", DIGITS)

    def key_file(self, name, content, mode=0o600):
        path = self.folder / name
        path.write_text(content + "\n")
        path.chmod(mode)
        return path

    def job_key_file(self, job, key=None):
        made = subprocess.run([self.bin / "bps-scheduler", "--key-file", key or self.key, "--print-job-key", job],
                              capture_output=True, text=True, check=True, env={})
        return self.key_file(f"{job}.key", made.stdout.rstrip("\n"))

    def keyed_cluster(self, servers=1):
        scheduler = self.scheduler("--key-file", self.key)
        return scheduler, [self.server(scheduler, "--key-file", self.key) for _ in range(servers)]

    def keyed_workers(self, scheduler, key, size=2, *flags, job="job"):
        return [self.worker(scheduler, rank, size, *flags, job=job, env={"BPS_KEY_FILE": str(key)}) for rank in range(size)]

    def assert_keyed_job_works(self, scheduler, key=None, job="check"):
        workers = self.keyed_workers(scheduler, key or self.key, 2, "--elements", "1000", "--rounds", "2", job=job)
        for worker in workers:
            self.assert_status(worker, 0, "closed")

    def memory(self, daemon):
        status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s*(\d+) kB", status).group(1)) * 1024


class Keys(KeyedTest):
    def test_a_cluster_with_a_key(self):
        scheduler, servers = self.keyed_cluster(2)
        self.assert_keyed_job_works(scheduler)
        self.assert_keyed_job_works(scheduler, self.job_key_file("alone"), job="alone")
        for daemon in (scheduler, *servers):
            self.assertNotIn(DIGITS, daemon.text())

    def test_who_does_not_have_it(self):
        scheduler, servers = self.keyed_cluster()
        first, second = self.keyed_workers(scheduler, self.key, 2, "--rounds", "20", "--announce", "3", "--hold-after", "19")
        for worker in (first, second):
            worker.wait_line("reached 3")
        wrong = self.key_file("wrong.key", DIGITS[::-1])
        other_job = self.job_key_file("other")
        for key in (wrong, self.job_key_file("stranger", wrong)):
            worker = self.worker(scheduler, 0, 1, job="stranger", env={"BPS_KEY_FILE": str(key)})
            self.assert_status(worker, UNAUTHORISED, "the key is not the right one", "--key-file")
        self.assert_status(self.worker(scheduler, 0, 1, job="stranger"), UNAUTHORISED, "lets nobody in without a key")
        self.assert_status(self.worker(scheduler, 0, 1, job="job", env={"BPS_KEY_FILE": str(other_job)}), 78, "another job than 'job'")
        for flags, said in ((("--key-file", wrong), "not the right one"), ((), "without a key")):
            server = self.start("server", self.bin / "bps-server", "--scheduler", scheduler.address, *flags)
            self.assert_status(server, UNAUTHORISED, said)
        for worker in (first, second):
            worker.say()
        for worker in (first, second):
            self.assert_status(worker, 0, "closed")
        self.assertRegex(scheduler.text(), "who says to be rank 0 of job 'stranger', is turned away")
        self.assertIsNone(servers[0].process.poll())

    def test_a_cluster_without_one_says_so(self):
        scheduler, _ = self.cluster()
        worker = self.worker(scheduler, 0, 1, env={"BPS_KEY_FILE": str(self.key)})
        self.assert_status(worker, UNAUTHORISED, "this scheduler has no key",
                           "start it with --key-file, or take the key away")
        server = self.start("server", self.bin / "bps-server", "--scheduler", scheduler.address, "--key-file", self.key)
        self.assert_status(server, UNAUTHORISED, "this scheduler has no key")
        self.assert_works(scheduler)

    def test_a_scheduler_that_only_pretends(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            worker = self.worker(f"127.0.0.1:{listener.getsockname()[1]}", 0, 1, env={"BPS_KEY_FILE": str(self.key)})
            peer, _ = listener.accept()
            with peer:
                peer.sendall(GOLDEN["Challenge"] + GOLDEN["Welcome"])
                self.assert_status(worker, UNAUTHORISED, "does not prove that it has the key")

    def test_key_files_that_are_refused(self):
        files = {
            "open to others": self.key_file("open.key", DIGITS, 0o640),
            "is empty": self.key_file("empty.key", ""),
            "too short": self.key_file("short.key", DIGITS[:30]),
            "damaged": self.key_file("damaged.key", DIGITS + "x"),
            "is a directory": self.folder,
            "key of a job": self.job_key_file("some"),
        }
        for said, path in files.items():
            for program in ("bps-scheduler", "bps-server"):
                with self.subTest(program=program, said=said):
                    self.assert_status(self.start(program, self.bin / program, "--key-file", path), 78, said)
        self.assert_status(self.start("bps-scheduler", self.bin / "bps-scheduler", "--key-file", self.folder / "none"), 78,
                           "No such file")

    def test_a_job_key_needs_the_name_of_a_job(self):
        for key in ((), ("--key-file", self.key)):
            self.assert_status(self.start("bps-scheduler", self.bin / "bps-scheduler", *key, "--print-job-key", ""), 64,
                               "a job name has 1" if key else "give --key-file too")

    def test_other_addresses_need_a_key(self):
        for program in ("bps-scheduler", "bps-server"):
            refused = self.start(program, self.bin / program, "--listen", "0.0.0.0:0")
            self.assert_status(refused, 78, "0.0.0.0", "--key-file", "--insecure")
        scheduler = self.start("scheduler", self.bin / "bps-scheduler", "--listen", "0.0.0.0:0", "--key-file", self.key)
        scheduler.wait_line("listens on 0.0.0.0")


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def sealed(frame):
    """With the checksum that fits what it says."""
    return frame[:12] + struct.pack("<I", crc32c(frame[:12] + frame[16:])) + frame[16:]


def with_secret(name, secret):
    """The golden frame of a Challenge or Proof with other 32 bytes at its end."""
    return sealed(GOLDEN[name][:-32] + secret)


def mac(key, *fields):
    data = b"".join(struct.pack("<Q", f) if isinstance(f, int) else struct.pack("<Q", len(f)) + f for f in fields)
    return hmac.new(key, data, hashlib.sha256).digest()


class Handshakes(KeyedTest):
    """The protocol as PROTOCOL.md says it, written a second time."""

    def read_frame(self, peer):
        frame = b""
        while len(frame) < PREFIX or len(frame) < PREFIX + struct.unpack_from("<I", frame, 8)[0]:
            chunk = peer.recv(1 if len(frame) < PREFIX else PREFIX + struct.unpack_from("<I", frame, 8)[0] - len(frame))
            self.assertTrue(chunk, f"closed after {frame!r}")
            frame += chunk
        return frame

    def test_a_recorded_handshake(self):
        # The golden hello is of a worker of an earlier scheduler: who proves the key may come back, into the run that it names.
        scheduler = self.scheduler("--key-file", self.key)
        hello = GOLDEN["HelloWorker"]
        nonce = bytes(range(0x10, 0x30))
        self.assertIn(nonce, hello)
        job_key = mac(bytes.fromhex(DIGITS), b"bps job key 1", b"resnet50")
        with self.connect(scheduler.address) as peer:
            peer.sendall(hello)
            challenge = self.read_frame(peer)
            self.assertEqual(challenge, with_secret("Challenge", challenge[-32:]))
            version = struct.unpack_from("<H", hello, 4)[0]
            proof = with_secret("Proof", mac(job_key, b"bps connecting side 1", version, nonce, challenge[-32:], hello))
            peer.sendall(proof)
            answer = self.read_frame(peer)
            self.assertIn(struct.pack("<Q", 0xb2), answer)
            self.assertIn(struct.pack("<Q", 0xa1), answer)
            self.assertNotIn(b"key", answer)
        for _ in range(2):
            with self.connect(scheduler.address) as peer:
                peer.sendall(hello + proof)
                again = self.read_frame(peer)
                self.assertNotEqual(again[-32:], challenge[-32:])
                self.assertIn(b"the key is not the right one", self.read_frame(peer))


class Strangers(KeyedTest):
    def say_and_go(self, daemon, texts, at_once=64):
        """Each on a connection of its own, which the daemon must close."""
        for first in range(0, len(texts), at_once):
            peers = []
            for text in texts[first:first + at_once]:
                peers.append(self.connect(daemon.address))
                self.quietly(lambda peer=peers[-1], text=text: (peer.sendall(text), peer.shutdown(socket.SHUT_WR)))
            for peer in peers:
                with peer:
                    while self.quietly(lambda peer=peer: peer.recv(65536)):
                        pass
        self.assertIsNone(daemon.process.poll(), daemon.text())

    @staticmethod
    def quietly(action):
        try:
            return action()
        except TimeoutError:
            raise
        except OSError:
            return None  # reset: fine

    def test_golden_frames_with_each_byte_flipped(self):
        scheduler, servers = self.keyed_cluster()
        texts = list(GOLDEN.values())
        for frame in GOLDEN.values():
            for i in range(len(frame)):
                texts.append(frame[:i] + bytes([frame[i] ^ 0xff]) + frame[i + 1:])
                if not 12 <= i < 16:  # else it is the frame as it was
                    texts.append(sealed(texts[-1]))
        for daemon in (scheduler, servers[0]):
            self.say_and_go(daemon, texts)
        self.assert_keyed_job_works(scheduler)

    def test_random_bytes(self):
        scheduler, servers = self.keyed_cluster()
        noise = [hashlib.shake_128(bytes([seed])).digest(1 + 37 * seed) for seed in range(200)]
        for daemon in (scheduler, servers[0]):
            self.say_and_go(daemon, noise)
            self.say_and_go(daemon, [GOLDEN["HelloWorker"] + more for more in noise])
        self.assert_keyed_job_works(scheduler)

    def test_a_byte_a_second(self):
        scheduler, servers = self.keyed_cluster()
        # Alone, and after a hello that has been challenged: the time is that of the whole handshake.
        peers = []
        for daemon in (scheduler, servers[0]):
            for before in (b"", GOLDEN["HelloWorker"]):
                since = time.monotonic()
                peer = self.connect(daemon.address)
                self.addCleanup(peer.close)
                peer.sendall(before)
                peers.append([peer, since, iter(GOLDEN["HelloLane"])])
        while peers:
            readable, _, _ = select.select([peer for peer, _, _ in peers], [], [], 1)
            for entry in list(peers):
                peer, since, rest = entry
                try:
                    if peer not in readable or peer.recv(65536):
                        peer.sendall(bytes([next(rest)]))
                        self.assertLess(time.monotonic() - since, 60)
                        continue
                except OSError:
                    pass
                peers.remove(entry)
                self.assertGreater(time.monotonic() - since, 4)
        self.assert_keyed_job_works(scheduler)

    def test_ten_thousand_idle_connections(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 1 << 20 if hard == resource.RLIM_INFINITY else hard
        count = min(10_000, most - 200)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        scheduler, servers = self.keyed_cluster()
        for daemon in (scheduler, servers[0]):
            before, since = self.memory(daemon), time.monotonic()
            idle = []
            for i in range(count):
                idle.append(self.connect(daemon.address))
                if i % 4 == 0:
                    idle[-1].sendall(GOLDEN["HelloWorker"])
            self.assert_keyed_job_works(scheduler)
            self.assertLess(self.memory(daemon) - before, 128 << 20)
            self.assertLess(len(os.listdir(f"/proc/{daemon.process.pid}/fd")), 2000)
            for peer in idle:
                peer.close()
            self.assertLess(len(daemon.lines), 100 + time.monotonic() - since, "one line a second is enough")


if __name__ == "__main__":
    read_golden(sys.argv.pop(3))
    assert "HelloWorker" in GOLDEN and "Proof" in GOLDEN
    main(__name__, sys.argv)
