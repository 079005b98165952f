#!/usr/bin/env python3
"""A network device that flips bits, between real workers and a real server.

    checksum_test.py PROGRAM-FOLDER WORKER [unittest arguments]
"""
import socket
import sys
import threading

from daemons import DaemonTest, main

# Bytes from the beginning of a lane: behind hello and first headers, in the middle of a partition of 252 KiB.
PLACE = 100_000
OUTSIDE = "127.0.0.2"  # where workers believe the server to be


class Device:
    """Carries connections on to the server; in the first ones, one bit of the byte at PLACE is flipped."""

    def __init__(self, port, up, down):
        self.flips = {"up": up, "down": down}  # that are still to be made
        self.made = 0
        self.lock = threading.Lock()
        self.listener = socket.create_server((OUTSIDE, port))
        self.inside = ("127.0.0.1", port)
        self.sockets = [self.listener]
        self.threads = []
        self.run(self.accept)

    def run(self, function, *arguments):
        self.threads.append(threading.Thread(target=function, args=arguments, daemon=True))
        self.threads[-1].start()

    def accept(self):
        while True:
            try:
                outside, _ = self.listener.accept()
            except OSError:
                return
            inside = socket.create_connection(self.inside)
            self.sockets += [outside, inside]
            self.run(self.carry, outside, inside, "up")
            self.run(self.carry, inside, outside, "down")

    def carry(self, source, sink, way):
        done = 0
        try:
            while chunk := source.recv(65536):
                if done <= PLACE < done + len(chunk) and self.may_flip(way):
                    at = PLACE - done
                    chunk = chunk[:at] + bytes([chunk[at] ^ 4]) + chunk[at + 1:]
                done += len(chunk)
                sink.sendall(chunk)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def may_flip(self, way):
        with self.lock:
            if self.flips[way] == 0:
                return False
            self.flips[way] -= 1
            self.made += 1
            return True

    def close(self):
        for end in self.sockets:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
        for thread in self.threads:
            thread.join(timeout=60)


class Checksum(DaemonTest):
    def job_through(self, up, down, *server_flags, **variables):
        scheduler = self.scheduler()
        server = self.server(scheduler, "--advertise", OUTSIDE, *server_flags)
        device = Device(int(server.address.rsplit(":", 1)[1]), up, down)
        self.addCleanup(device.close)
        workers = self.workers(scheduler, 2, "--elements", "300000", "--rounds", "6", env={"BPS_TRANSPORT": "tcp", **variables})
        ends = [worker.end() for worker in workers]
        self.assertEqual(device.made, up + down)
        return server, workers, ends

    def test_without_it_sums_are_wrong(self):
        _, workers, ends = self.job_through(1, 0)
        self.assertNotEqual(ends, [0, 0], "the device has changed nothing that counts")

    def test_what_is_damaged_on_the_way_up_is_sent_again(self):
        server, workers, ends = self.job_through(2, 0, BPS_CHECKSUM="true")
        self.assertEqual(ends, [0, 0], workers[0].text() + workers[1].text())
        server.wait_line(r"a payload of \d+ bytes is damaged: its CRC32C is [0-9a-f]{8}, sent was [0-9a-f]{8}")

    def test_and_on_the_way_down(self):
        _, workers, ends = self.job_through(0, 2, BPS_CHECKSUM="true", BPS_LOG_LEVEL="info")
        self.assertEqual(ends, [0, 0], workers[0].text() + workers[1].text())
        self.assertRegex(workers[0].text() + workers[1].text(), r"a payload of \d+ bytes is damaged")

    def test_the_server_may_ask_for_it(self):
        server, workers, ends = self.job_through(2, 2, "--checksum")
        self.assertEqual(ends, [0, 0], workers[0].text() + workers[1].text())
        server.wait_line("is damaged")


if __name__ == "__main__":
    main(__name__, sys.argv)
