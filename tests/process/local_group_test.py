#!/usr/bin/env python3
"""Ranks that sum on their host before their bytes cross the network: two hosts of three and two ranks, as processes of
this machine that say that they are no group.

    local_group_test.py PROGRAM-FOLDER WORKER [unittest arguments]

The worker checks every sum bit for bit, in the order of the ranks within a host and then of the hosts, which has other
bits than any other order.
"""
import re
import signal
import subprocess
import sys
import time

from daemons import DETECTION, LOST, SILENCE, SILENT, DaemonTest, main

HOSTS = (3, 2)
SIZE = sum(HOSTS)
SIZES = ("--sizes", "100000,1,300001,17")
SHAPES = (*SIZES, "--groups", "3,2")
ALONE = (*SIZES, "--groups", "1,1,1,1,1")  # the same values, rank by rank
FOR_EVER = ("--rounds", "100000000", "--announce", "3")
PEER_LOST = 75
SHRINK = {"BPS_WORKER_LOSS": "shrink", "BPS_UNEQUAL_SUMS": "1"}


def host_of(rank):
    return 0 if rank < HOSTS[0] else 1


class LocalGroupTest(DaemonTest):
    def group_workers(self, scheduler, *flags, env=None, ids=None):
        env = {"BPS_LOCAL_GROUP": "host", "BPS_PARTITION_BYTES": "64KiB", **(env or {})}
        ids = ids or [f"{self.folder}-{host_of(rank)}" for rank in range(SIZE)]
        return [self.worker(scheduler, rank, SIZE, *SHAPES, *flags, env={**env, "BPS_LOCAL_GROUP_ID": ids[rank]})
                for rank in range(SIZE)]

    def running(self, scheduler, *flags, env=None):
        workers = self.group_workers(scheduler, *flags, env=env)
        for worker in workers:
            worker.wait_line("reached 3")
        return workers

    def reference(self, rounds, shapes=SHAPES):
        out = subprocess.run([self.worker_program, *shapes, "--rounds", str(rounds), "--reference", str(SIZE)],
                             capture_output=True, text=True, check=True, env={}).stdout
        return re.search(r"^checksum .*$", out, re.M).group(0)

    def assert_all_end(self, workers, rounds, shapes=SHAPES):
        expected = self.reference(rounds, shapes)
        for worker in workers:
            self.assert_status(worker, 0, f"(?m)^{expected}$", "closed")


class Sums(LocalGroupTest):
    def test_two_hosts(self):
        scheduler, _ = self.cluster(2)
        self.assert_all_end(self.group_workers(scheduler, "--rounds", "20", "--broadcast", "--barrier"), 20)

    def test_runs_repeat_their_own_bits(self):
        self.assertNotEqual(self.reference(10), self.reference(10, ALONE))
        scheduler, _ = self.cluster(2)
        for _ in range(2):
            self.assert_all_end(self.group_workers(scheduler, "--rounds", "10"), 10)
            self.assert_all_end(self.workers(scheduler, SIZE, *ALONE, "--rounds", "10"), 10, ALONE)

    def test_over_tcp_and_without_retain(self):
        scheduler, _ = self.cluster(2)
        env = {"BPS_TRANSPORT": "tcp", "BPS_RETAIN": "0"}
        self.assert_all_end(self.group_workers(scheduler, "--rounds", "20", "--priorities", env=env), 20)

    def test_with_a_key(self):
        key = self.folder / "cluster.key"
        key.write_text("00112233445566778899aabbccddeeff" * 2 + "\n")
        key.chmod(0o600)
        scheduler = self.scheduler("--key-file", key)
        self.server(scheduler, "--key-file", key)
        self.assert_all_end(self.group_workers(scheduler, "--rounds", "10", env={"BPS_KEY_FILE": str(key)}), 10)

    def test_a_host_that_lacks_a_rank_is_named(self):
        scheduler, _ = self.cluster()
        for worker in self.group_workers(scheduler, "--rounds", "1", env={"BPS_LOCAL_SIZE": "3"}):
            self.assert_status(worker, 78, r"was told .* 3 workers, 2 have come")

    def test_ranks_that_disagree_on_it(self):
        scheduler, _ = self.cluster()
        workers = [self.worker(scheduler, rank, 2, "--rounds", "1", env={"BPS_LOCAL_GROUP": group})
                   for rank, group in enumerate(("host", "off"))]
        self.assertIn(78, [worker.end() for worker in workers])


class Death(LocalGroupTest):
    def assert_all_told(self, workers, since, limit, *patterns):
        for worker in workers:
            self.assert_status(worker, PEER_LOST, *patterns)
        self.assertLess(time.monotonic() - since, limit)

    @staticmethod
    def noticed(how):
        # Where the scheduler was too slow to say it, who shares memory with that rank has seen its end.
        return rf"({LOST}|has closed its link)" if how == signal.SIGKILL else SILENT

    def lose(self, rank, how, limit):
        """Under `fail` everybody else ends, naming it."""
        scheduler, _ = self.cluster(2)
        workers = self.running(scheduler, *FOR_EVER)
        since = time.monotonic()
        workers[rank].signal(how)
        self.assert_all_told([w for r, w in enumerate(workers) if r != rank], since, limit, rf"rank {rank} .*{self.noticed(how)}")
        workers[rank].signal(signal.SIGCONT)
        self.assertNotEqual(workers[rank].end(), 0)
        self.assert_works(scheduler)

    def test_leader_killed(self):
        self.lose(0, signal.SIGKILL, DETECTION)

    def test_member_killed(self):
        self.lose(4, signal.SIGKILL, DETECTION)

    def test_leader_that_hangs(self):
        self.lose(3, signal.SIGSTOP, SILENCE)

    def test_member_that_hangs(self):
        self.lose(2, signal.SIGSTOP, SILENCE)

    def shrink(self, rank, how, limit):
        """Its host is lost with it, and the other goes on."""
        scheduler, _ = self.cluster(2)
        workers = self.running(scheduler, "--until-told", "--announce", "3", "--may-lose", rank, env=SHRINK)
        since = time.monotonic()
        workers[rank].signal(how)
        lost = [r for r in range(SIZE) if host_of(r) == host_of(rank)]
        self.assert_all_told([workers[r] for r in lost if r != rank], since, limit, rf"rank {rank} .*{self.noticed(how)}")
        workers[rank].signal(signal.SIGCONT)
        self.assertNotEqual(workers[rank].end(), 0)
        rest = [workers[r] for r in range(SIZE) if r not in lost]
        for worker in rest:
            worker.wait_line("goes on with 3 of 5 workers")
        rest[0].say()
        ends = [worker.end() for worker in rest]
        self.assertEqual(ends, [0] * len(rest), rest[0].text())
        checksums = {re.search(r"^checksum .*$", worker.text(), re.M).group(0) for worker in rest}
        self.assertEqual(len(checksums), 1)

    def test_shrink_member_killed(self):
        self.shrink(4, signal.SIGKILL, DETECTION)

    def test_shrink_leader_killed(self):
        self.shrink(3, signal.SIGKILL, DETECTION)

    def test_shrink_leader_that_hangs(self):
        self.shrink(3, signal.SIGSTOP, SILENCE)

    def test_shrink_member_that_hangs(self):
        self.shrink(4, signal.SIGSTOP, SILENCE)

    def test_scheduler_restarted(self):
        flags = ("--state-dir", self.folder / "state")
        scheduler = self.scheduler(*flags)
        for _ in range(2):
            self.server(scheduler, "--scheduler-grace", "20s")
        workers = self.running(scheduler, "--rounds", "1000", "--announce", "3", env={"BPS_SCHEDULER_GRACE": "20s"})
        scheduler.signal(signal.SIGKILL)
        scheduler.end()
        again = self.scheduler(*flags, listen=scheduler.address)
        self.assert_all_end(workers, 1000)
        self.assert_works(again)

    def test_server_drained(self):
        scheduler, servers = self.cluster(2)
        workers = self.running(scheduler, "--rounds", "300", "--announce", "3")
        servers[1].signal(signal.SIGTERM)
        self.assert_status(servers[1], 0)
        self.assert_all_end(workers, 300)

    def test_worker_that_forks(self):
        scheduler, _ = self.cluster(2)
        workers = self.running(scheduler, "--rounds", "300", "--announce", "3", "--fork-after", "5")
        for worker in workers:
            worker.wait_line("^a child is told that its client is closed$")
        self.assert_all_end(workers, 300)

    def test_server_killed(self):
        scheduler, servers = self.cluster(2)
        workers = self.group_workers(scheduler, "--rounds", "300", "--announce", "3")
        for worker in workers:
            worker.wait_line("reached 3")
        servers[1].signal(signal.SIGKILL)
        self.assert_all_end(workers, 300)

    def test_server_that_hangs(self):
        scheduler, servers = self.cluster(2)
        workers = self.group_workers(scheduler, "--rounds", "300", "--announce", "3")
        for worker in workers:
            worker.wait_line("reached 3")
        servers[0].signal(signal.SIGSTOP)
        self.assert_all_end(workers, 300)


if __name__ == "__main__":
    main("__main__", sys.argv)
