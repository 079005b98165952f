#!/usr/bin/env python3
"""Workers and daemons of this version of the protocol and of the next one, together.

    versions_test.py PROGRAM-FOLDER WORKER NEXT-FOLDER [unittest arguments]

NEXT-FOLDER has bps-scheduler, bps-server and libbpsclient.so of the next version: the same objects with another number
(bps_next_version of cmake/bps.cmake).
"""
import pathlib
import re
import signal
import sys
import unittest

from daemons import DaemonTest, main

VERSION_SOURCE = pathlib.Path(__file__).parents[2] / "proto/wire/version.cc"
THIS = int(re.search(r"kVersionOfThisCode = (\d+);", VERSION_SOURCE.read_text())[1])
NEXT = THIS + 1
PROTOCOL, CONFIGURATION = 76, 78
UNTIL_TOLD = ("--until-told", "--exchanges", "--elements", "50000", "--tensors", "2", "--announce", "3")
UPGRADE = "to upgrade, begin with scheduler and servers"


def refusal(peer, side):
    return f"the peer speaks bps protocol version {peer}, this side speaks {side}"


class VersionsTest(DaemonTest):
    next_folder = None

    def next_worker(self, scheduler, rank, size, *flags, job="job"):
        return self.worker(scheduler, rank, size, *flags, job=job, env={"LD_LIBRARY_PATH": str(self.next_folder)})


class NextDaemons(VersionsTest):
    def setUp(self):
        super().setUp()
        self.this_folder, self.bin = self.bin, self.next_folder
        self.key = self.folder / "cluster.key"
        self.key.write_text("00112233445566778899aabbccddeeff" * 2 + "\n")
        self.key.chmod(0o600)

    def a_server_dies(self, transport, *flags, lanes):
        """Sums of every exchange are checked by the workers, before and after."""
        scheduler = self.scheduler("--key-file", self.key)
        servers = [self.server(scheduler, "--key-file", self.key, "--transport", transport, *flags) for _ in range(2)]
        workers = self.workers(scheduler, 2, *UNTIL_TOLD,
                               env={"BPS_KEY_FILE": str(self.key), "BPS_TRANSPORT": transport})
        for worker in workers:
            worker.wait_line("reached 3")
        servers[1].signal(signal.SIGKILL)
        servers[1].end()
        self.go_on(workers)
        workers[0].say()
        for worker in workers:
            self.assert_status(worker, 0, "done", lanes, "closed")

    def test_workers_of_this_version_over_tcp(self):
        self.a_server_dies("tcp", "--checksum", lanes=r"lanes \d+ shm 0 ")

    def test_workers_of_this_version_over_shared_memory(self):
        self.a_server_dies("shm", lanes=r"lanes \d+ shm [1-9]")

    def test_workers_of_the_next_version(self):
        scheduler, _ = self.cluster()
        for worker in [self.next_worker(scheduler, rank, 2, "--rounds", "2") for rank in range(2)]:
            self.assert_status(worker, 0, "closed")
        self.assert_works(scheduler)  # another job, of this version

    def test_the_workers_of_a_job_are_of_one_version(self):
        scheduler, _ = self.cluster()
        older = self.worker(scheduler, 0, 2)
        scheduler.wait_line("job job created")
        newer = self.next_worker(scheduler, 1, 2)
        for worker in (older, newer):
            self.assert_status(worker, CONFIGURATION, f"rank 0 .* has {THIS}, rank 1 .* has {NEXT}",
                               "install the same bps version for all ranks")
        self.assert_works(scheduler)

    def test_scheduler_servers_and_bpsctl_are_of_one_version(self):
        scheduler, _ = self.cluster()
        for program, *flags in (("bps-server", "--listen", "127.0.0.1:0", "--scheduler"), ("bpsctl", "status", "--scheduler")):
            older = self.start(program, self.this_folder / program, *flags, scheduler.address)
            self.assert_status(older, PROTOCOL, refusal(THIS, f"version {NEXT}"), UPGRADE)
        self.assert_works(scheduler)


class NextPeersOfOlderDaemons(VersionsTest):
    def test_a_worker(self):
        scheduler, _ = self.cluster()
        accepts = f"versions? ({THIS - 1} to )?{THIS};"  # none before the first promised one
        self.assert_status(self.next_worker(scheduler, 0, 1), PROTOCOL, refusal(NEXT, accepts), UPGRADE)
        self.assert_works(scheduler)

    def test_a_server(self):
        scheduler = self.scheduler()
        newer = self.start("server", self.next_folder / "bps-server", "--listen", "127.0.0.1:0", "--scheduler",
                           scheduler.address)
        self.assert_status(newer, PROTOCOL, refusal(NEXT, f"version {THIS}"), UPGRADE)


if __name__ == "__main__":
    VersionsTest.next_folder = pathlib.Path(sys.argv.pop(3)).resolve()
    main(__name__, sys.argv)
