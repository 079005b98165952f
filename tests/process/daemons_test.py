#!/usr/bin/env python3
"""The real scheduler, servers and workers: daemons_test.py PROGRAM-FOLDER WORKER [unittest arguments]"""
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

from daemons import DETECTION, LIMIT, LOST, SILENCE, SILENT, DaemonTest, main

VERSION_SOURCE = pathlib.Path(__file__).parents[2] / "proto/wire/version.cc"
VERSION = int(re.search(r"kVersionOfThisCode = (\d+);", VERSION_SOURCE.read_text())[1])
FOR_EVER = ("--rounds", "1000000000", "--elements", "50000", "--tensors", "2", "--announce", "3")
UNTIL_TOLD = ("--until-told", "--elements", "50000", "--tensors", "2", "--announce", "3")


class Join(DaemonTest):
    def test_any_order_of_start(self):
        address = f"127.0.0.1:{self.free_port()}"
        workers = self.workers(address, 3)
        server = self.start("server", self.bin / "bps-server", "--listen", "127.0.0.1:0", "--scheduler", address)
        server.wait_line("listens on")
        self.start("scheduler", self.bin / "bps-scheduler", "--listen", address)
        for worker in workers:
            self.assert_status(worker, 0, "joined", "done", "closed")

    def test_a_worker_may_come_late(self):
        scheduler, _ = self.cluster()
        first = self.worker(scheduler, 0, 2)
        self.worker(scheduler, 0, 1, job="other").wait_line("closed")  # time has passed and the first still waits
        self.assert_status(self.worker(scheduler, 1, 2), 0, "closed")
        self.assert_status(first, 0, "closed")

    def test_world_sizes_that_disagree(self):
        scheduler, _ = self.cluster()
        first = self.worker(scheduler, 0, 2)
        scheduler.wait_line("job job created")
        self.assert_status(self.worker(scheduler, 2, 3), 78, r"world.size.*\b[23]\b.*\b[23]\b")
        self.assert_status(self.worker(scheduler, 1, 2), 0, "closed")
        self.assert_status(first, 0, "closed")

    def test_both_ranks_of_a_disagreement_are_told_at_once(self):
        scheduler, _ = self.cluster()
        first = self.worker(scheduler, 0, 2, "--join-ms", str(1000 * LIMIT))
        scheduler.wait_line("job job created")
        second = self.worker(scheduler, 1, 3)
        for worker in (first, second):
            self.assert_status(worker, 78, "world-size of job job differs: rank 0 .* has 2, rank 1 .* has 3", limit=LIMIT / 2)

    def test_a_rank_that_is_taken(self):
        scheduler, _ = self.cluster()
        workers = self.workers(scheduler, 2, "--hold-first")
        for worker in workers:
            worker.wait_line("declared")
        self.assert_status(self.worker(scheduler, 1, 2), 78, "rank 1")
        for worker in workers:
            worker.say()
        for worker in workers:
            self.assert_status(worker, 0, "closed")

    def test_a_worker_that_never_comes_is_named(self):
        scheduler, _ = self.cluster()
        for worker in [self.worker(scheduler, rank, 4, "--join-ms", "8000") for rank in (0, 2)]:
            self.assert_status(worker, 75, "ranks 1 and 3|missing rank 1, 3")

    def test_no_server(self):
        scheduler = self.scheduler()
        self.assert_status(self.worker(scheduler, 0, 1, "--join-ms", "8000"), 75, "server")

    def test_tensors_that_disagree_name_both(self):
        scheduler, _ = self.cluster()
        one = self.worker(scheduler, 0, 2, "--elements", "1000")
        two = self.worker(scheduler, 1, 2, "--elements", "2000")
        for worker in (one, two):
            self.assert_status(worker, 78, "weight0", r"\b1000\b", r"\b2000\b", "rank 0", "rank 1")

    def test_a_server_without_a_scheduler_says_whom_it_waits_for(self):
        address = f"127.0.0.1:{self.free_port()}"
        server = self.start("server", self.bin / "bps-server", "--scheduler", address)
        server.wait_line(rf"waiting for the scheduler at {address}, for at most \d+ s more: .*refused")
        server.signal(signal.SIGTERM)
        self.assert_status(server, 0)

    def test_a_server_without_jobs_goes_at_once_when_the_scheduler_is_away(self):
        scheduler, servers = self.cluster()
        scheduler.signal(signal.SIGKILL)
        servers[0].wait_line("is lost")
        servers[0].signal(signal.SIGTERM)
        since = time.monotonic()
        self.assert_status(servers[0], 0, "no job uses this server; it exits without the scheduler")
        self.assertLess(time.monotonic() - since, DETECTION)

    def test_an_unreachable_scheduler(self):
        address = f"127.0.0.1:{self.free_port()}"
        self.assert_status(self.worker(address, 0, 1, "--join-ms", "400"), 69, re.escape(address))


class Death(DaemonTest):
    def running(self, scheduler, size, *flags, job="job", env=None):
        workers = self.workers(scheduler, size, *FOR_EVER, *flags, job=job, env=env)
        for worker in workers:
            worker.wait_line("reached 3")
        return workers

    def finish(self, workers):
        """They go on without the server that they have lost, and end when they are told."""
        self.go_on(workers)
        workers[0].say()
        for worker in workers:
            self.assert_status(worker, 0, "closed")

    def assert_all_told(self, workers, since, limit, *patterns):
        for worker in workers:
            self.assert_status(worker, 75, *patterns)
        self.assertLess(time.monotonic() - since, limit)

    def test_worker_killed(self):
        scheduler, _ = self.cluster(2)
        workers = self.running(scheduler, 3)
        since = time.monotonic()
        workers[1].signal(signal.SIGKILL)
        self.assert_all_told([workers[0], workers[2]], since, DETECTION, "rank 1 .*" + LOST)
        self.assert_works(scheduler)

    def test_worker_that_ends_by_an_exception(self):
        """Between two rounds; the others wait for its next one. It has not left, and a restart helps."""
        scheduler, _ = self.cluster()
        workers = [self.worker(scheduler, rank, 3, "--rounds", "9", *(("--throw-after", "4") if rank == 1 else ()))
                   for rank in range(3)]
        self.assert_status(workers[1], 1, "a bug of the program")
        for rank in (0, 2):
            self.assert_status(workers[rank], 75, "rank 1")

    def test_server_killed(self):
        scheduler, servers = self.cluster(2)
        workers = self.workers(scheduler, 3, *UNTIL_TOLD)
        for worker in workers:
            worker.wait_line("reached 3")
        servers[1].signal(signal.SIGKILL)
        self.finish(workers)
        self.assert_works(scheduler)

    def test_servers_killed_one_after_another(self):
        scheduler, servers = self.cluster(3)
        workers = self.workers(scheduler, 3, *UNTIL_TOLD)
        for worker in workers:
            worker.wait_line("reached 3")
        servers[0].signal(signal.SIGKILL)
        servers[2].signal(signal.SIGKILL)
        self.finish(workers)
        self.assert_works(scheduler)

    def test_the_last_server_killed(self):
        scheduler, servers = self.cluster(1)
        workers = self.running(scheduler, 3)
        since = time.monotonic()
        servers[0].signal(signal.SIGKILL)
        self.assert_all_told(workers, since, DETECTION, re.escape(servers[0].address) + ".*" + LOST, "no other server")

    def test_a_server_killed_under_workers_that_do_not_retain(self):
        scheduler, servers = self.cluster(2)
        workers = self.workers(scheduler, 2, *FOR_EVER, env={"BPS_RETAIN": "0"})
        for worker in workers:
            worker.wait_line("reached 3")
        since = time.monotonic()
        servers[1].signal(signal.SIGKILL)
        self.assert_all_told(workers, since, DETECTION, re.escape(servers[1].address) + ".*" + LOST, "without retain")
        self.assert_works(scheduler)

    def test_server_that_hangs(self):
        scheduler, servers = self.cluster(2)
        workers = self.workers(scheduler, 2, *UNTIL_TOLD)
        for worker in workers:
            worker.wait_line("reached 3")
        servers[0].signal(signal.SIGSTOP)
        self.finish(workers)
        self.assert_works(scheduler)
        servers[0].signal(signal.SIGCONT)
        # It is told that it is dead, and ends; what it was may start again as a new one.
        self.assertNotEqual(servers[0].end(), 0)
        self.assert_works(scheduler, "again")

    def test_worker_that_hangs(self):
        scheduler, _ = self.cluster()
        workers = self.running(scheduler, 3)
        since = time.monotonic()
        workers[2].signal(signal.SIGSTOP)
        self.assert_all_told(workers[:2], since, SILENCE, "rank 2 .*" + SILENT)
        workers[2].signal(signal.SIGCONT)
        self.assert_status(workers[2], 75)

    def test_scheduler_killed(self):
        scheduler, servers = self.cluster(1, "--scheduler-grace", "1s")
        workers = self.running(scheduler, 2, env={"BPS_SCHEDULER_GRACE": "1s"})
        since = time.monotonic()
        scheduler.signal(signal.SIGKILL)
        self.assert_all_told(workers, since, 1 + DETECTION, re.escape(scheduler.address) + " is lost.*tried for 1 s")
        self.assertGreaterEqual(time.monotonic() - since, 1)
        self.assert_status(servers[0], 69, re.escape(scheduler.address) + " is lost.*tried for 1 s")

    def test_a_state_that_cannot_be_written_ends_no_job(self):
        state = self.folder / "state"
        scheduler = self.scheduler("--state-dir", state)
        scheduler.wait_line("state did not exist, and is made")
        self.server(scheduler)
        workers = self.workers(scheduler, 2, *UNTIL_TOLD)
        for worker in workers:
            worker.wait_line("reached 3")
        scheduler.signal(signal.SIGKILL)
        scheduler.end()
        (state / "state.new").unlink(missing_ok=True)
        (state / "state.new").mkdir()
        again = self.scheduler("--state-dir", state, listen=scheduler.address)
        again.wait_line("cannot write .*state.new: Is a directory.*; a scheduler that is started after this one")
        self.finish(workers)

    def test_one_job_of_two_dies_and_the_other_does_not_notice(self):
        scheduler, _ = self.cluster(2)
        other = self.workers(scheduler, 2, "--rounds", "300", "--announce", "3", "--hold-after", "299", job="other")
        for worker in other:
            worker.wait_line("reached 3")
        dying = self.running(scheduler, 2, job="dying")
        dying[0].signal(signal.SIGKILL)
        self.assert_status(dying[1], 75, "rank 0")
        for worker in other:
            worker.say()
        for worker in other:
            self.assert_status(worker, 0, "closed")

    def test_a_killed_job_leaves_its_name_free(self):
        scheduler, _ = self.cluster()
        workers = self.running(scheduler, 2, job="again")
        for worker in workers:
            worker.signal(signal.SIGKILL)
        self.assert_works(scheduler, "again")


class Signals(DaemonTest):
    def test_server_drains(self):
        scheduler, servers = self.cluster(2)
        workers = self.workers(scheduler, 2, "--rounds", "50", "--hold-after", "3", "--announce", "3")
        for worker in workers:
            worker.wait_line("reached 3")
        servers[0].signal(signal.SIGTERM)
        servers[0].wait_line("drains")
        self.assert_status(servers[0], 0)  # what it had goes on at the other one
        self.assert_works(scheduler, "new")
        for worker in workers:
            worker.say()
        for worker in workers:
            self.assert_status(worker, 0, "closed")

    def test_idle_daemons_end_at_once(self):
        scheduler, servers = self.cluster(2)
        for daemon in (*servers, scheduler):
            daemon.signal(signal.SIGTERM)
            self.assert_status(daemon, 0)

    def unread_scheduler(self, log):
        """Its output goes to `log`; and its address."""
        ports = self.folder / "unread"
        unread = subprocess.Popen([self.bin / "bps-scheduler", "--listen", "127.0.0.1:0", "--ports-file", ports],
                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(unread.wait)
        self.addCleanup(unread.kill)
        until = time.monotonic() + LIMIT
        while not ports.exists() and time.monotonic() < until:
            self.pause()
        return unread, re.search(r"^listen (\S+)$", ports.read_text(), re.M)[1]

    def fill(self, pipe):
        """Of an open file of our own: the other writers' one stays as it is."""
        own = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
        for size in (4096, 1):
            try:
                while True:
                    os.write(own, b"." * size)
            except BlockingIOError:
                pass
        os.close(own)

    def test_a_log_that_is_not_read_for_now_stops_nobody(self):
        reader, log = os.pipe()
        self.addCleanup(os.close, log)
        self.addCleanup(os.close, reader)
        self.fill(log)
        unread, address = self.unread_scheduler(log)
        self.server(address)
        for worker in self.workers(address, 2):
            self.assert_status(worker, 0, "closed")
        text = ""
        until = time.monotonic() + LIMIT
        os.set_blocking(reader, False)
        while "job job ended" not in text and time.monotonic() < until:
            try:
                text += os.read(reader, 65536).decode()
            except BlockingIOError:
                self.pause()
        for line in ("listens on", "joined", "job job ended"):
            self.assertIn(line, text)
        self.fill(log)
        unread.terminate()
        self.assertEqual(unread.wait(LIMIT), 0)

    def test_a_log_that_nobody_reads_any_more_ends_nobody(self):
        reader, log = os.pipe()
        unread, address = self.unread_scheduler(log)
        os.close(log)
        os.close(reader)
        self.server(address)
        for worker in self.workers(address, 2):
            self.assert_status(worker, 0, "closed")
        self.assertIsNone(unread.poll())
        unread.terminate()
        self.assertEqual(unread.wait(LIMIT), 0)

    def test_a_scheduler_that_is_told_to_stop_comes_back(self):
        for number, flags in ((signal.SIGTERM, ("--state-dir", self.folder / "state")), (signal.SIGINT, ())):
            scheduler = self.scheduler(*flags)
            server = self.server(scheduler)
            workers = self.workers(scheduler, 2, *UNTIL_TOLD)
            for worker in workers:
                worker.wait_line("reached 3")
            scheduler.signal(number)
            since = time.monotonic()
            self.assert_status(scheduler, 0, "stops .*: 1 job and 1 server go on for their --scheduler-grace")
            self.assertLess(time.monotonic() - since, DETECTION)
            for process in (server, *workers):
                process.wait_line("is lost.*goes on, and tries for")
            self.go_on(workers)
            again = self.scheduler(*flags, listen=scheduler.address)
            again.wait_line(r"job job came back, run \w{16}: 2 workers")
            again.wait_line(r"job job goes on: 2 workers and 1 server have come back; it began \d+\.?\d* s ago")
            self.assertNotIn("created", again.text())
            workers[0].say()
            for worker in workers:
                self.assert_status(worker, 0, "closed")
            self.assert_works(again, "new")
            server.signal(signal.SIGTERM)
            self.assert_status(server, 0)

    def test_restarts_do_not_keep_the_name_of_a_job_that_is_over(self):
        flags = ("--state-dir", self.folder / "state", "--heartbeat-deadline", "2s")  # nodes have 4 s to come back
        scheduler = self.scheduler(*flags)
        self.server(scheduler)
        workers = self.workers(scheduler, 2, *FOR_EVER)
        for worker in workers:
            worker.wait_line("reached 3")
        scheduler.signal(signal.SIGSTOP)  # it does not notice
        for worker in workers:
            worker.signal(signal.SIGKILL)
        workers = []
        for _ in range(30):
            scheduler.signal(signal.SIGKILL)
            scheduler.end()
            scheduler = self.scheduler(*flags, listen=scheduler.address)
            workers = workers or self.workers(scheduler, 2, "--elements", "1000")
            self.pause(1.5)
            if workers[0].process.poll() is not None:
                break
        for worker in workers:
            self.assertIsNotNone(worker.process.poll(), worker.text())
            self.assert_status(worker, 0, "closed")

    def test_a_second_sigterm_stops_now(self):
        scheduler, servers = self.cluster()
        workers = self.workers(scheduler, 2, "--hold-after", "1", "--announce", "1")
        for worker in workers:
            worker.wait_line("reached 1")
        servers[0].signal(signal.SIGTERM)
        servers[0].wait_line("drains")
        servers[0].signal(signal.SIGTERM)
        servers[0].end()
        for worker in workers:
            worker.say()
        for worker in workers:
            self.assert_status(worker, 75, re.escape(servers[0].address))


class Refusals(DaemonTest):
    def refused(self, status, patterns, program, *flags):
        self.assert_status(self.start(program, self.bin / program, *flags), status, *patterns)

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.refused(71, [re.escape(address), "in use"], "bps-scheduler", "--listen", address)
            self.refused(71, [re.escape(address), "in use"], "bps-server", "--listen", address)

    def test_wrong_flags(self):
        for program in ("bps-scheduler", "bps-server"):
            self.refused(64, ["--lisen", "--listen"], program, "--lisen", "127.0.0.1:0")
            self.refused(64, ["listen", "nonsense"], program, "--listen", "nonsense")
        self.refused(64, ["shards", "many"], "bps-server", "--shards", "many")
        variable = self.start("server", self.bin / "bps-server", environment={"BPS_SHARDS": "banana"})
        self.assert_status(variable, 78, "^bps-server: BPS_SHARDS: 'banana' is neither auto nor")

    def test_rdma_devices_that_are_not_there(self):
        self.refused(64, ["'rxe0:x' is no RDMA device", "mlx5_0:1"], "bps-server", "--transport", "rdma", "--rdma-device", "rxe0:x")
        self.refused(64, ["rdma-gid", "from 0 to 255"], "bps-server", "--transport", "rdma", "--rdma-gid", "256")
        worker = self.worker("127.0.0.1:1", 0, 1, env={"BPS_TRANSPORT": "rdma", "BPS_RDMA_DEVICE": "rxe0:0"})
        self.assert_status(worker, 78, "'rxe0:0' is no RDMA device", "the port must be 1 to 255")
        for transport in ("rdma", "auto"):  # who names a device wants it
            server = self.start("server", self.bin / "bps-server", "--transport", transport, "--rdma-device", "nobodys0")
            worker = self.worker("127.0.0.1:1", 0, 1, env={"BPS_TRANSPORT": transport, "BPS_RDMA_DEVICE": "nobodys0"})
            for process in (server, worker):
                if process.end() == 71 and re.search("built without RDMA|RDMA libraries cannot be opened", process.text()):
                    continue  # without the libraries nobody can say which devices there are
                self.assert_status(process, 78, "this host has no RDMA device nobodys0")

    def test_what_rdma_does_not_go_with(self):
        says = "does? not cover what goes over RDMA"
        self.assert_status(self.start("server", self.bin / "bps-server", "--transport", "rdma", "--checksum"), 78, "--checksum " + says)
        worker = self.worker("127.0.0.1:1", 0, 1, env={"BPS_TRANSPORT": "rdma", "BPS_CHECKSUM": "true"})
        self.assert_status(worker, 78, r"checksums \(BPS_CHECKSUM\) do not cover what goes over RDMA", "leave out the checksums")
        scheduler = self.scheduler()
        server = self.server(scheduler, "--transport", "tcp", "--rdma-device", "nobodys0")
        server.wait_line("warn .*--rdma-device and --rdma-gid change nothing: --transport is tcp")
        worker = self.worker(scheduler, 0, 1, "--elements", "1000", env={"BPS_TRANSPORT": "tcp", "BPS_RDMA_TCLASS": "104"})
        self.assert_status(worker, 0, "rdma-tclass .*change nothing: transport is tcp", "closed")

    @unittest.skipIf(pathlib.Path("/sys/class/infiniband").exists(), "this machine has RDMA devices")
    def test_a_machine_without_rdma(self):
        scheduler, servers = self.cluster(1, "--shards", "1")
        workers = self.workers(scheduler, 2, "--elements", "1000", env={"BPS_LOG_LEVEL": "info"})
        for worker in workers:
            self.assert_status(worker, 0, "closed", r"joined job 'job' \(run [0-9a-f]{16}\) as rank [01] of 2, 1 lane\n")
            self.assertNotIn("RDMA", worker.text())
        for server in servers:  # on loopback nobody misses it
            self.assertNotIn("RDMA", server.text())
        for listen, flags in (("0.0.0.0:0", ("--advertise", "127.0.0.1", "--insecure")),
                              ("127.0.0.1:0", ("--log-level", "debug"))):
            with self.subTest(listen):
                server = self.server(scheduler, *flags, listen=listen)
                server.wait_line("offers no RDMA: ")
                server.wait_line("is server [0-9]+ of the scheduler")
                self.assertEqual(server.text().count("offers no RDMA: "), 1, server.text())
                self.assertNotRegex(server.text(), "(?m)^.*(warn|error).*RDMA")
        self.assertNotIn("RDMA", scheduler.text())
        # Who asks for a GID wants it. Without the libraries nobody can say which devices there are.
        server = self.start("server", self.bin / "bps-server", "--rdma-gid", "3")
        worker = self.worker(scheduler, 0, 1, job="gid", env={"BPS_RDMA_GID": "3"})
        for process in (server, worker):
            if process.end() == 71 and re.search("built without RDMA|RDMA libraries cannot be opened", process.text()):
                continue
            self.assert_status(process, 78, "this host has no RDMA device, so none with GID 3")

    def test_other_addresses_need_a_word(self):
        for program in ("bps-scheduler", "bps-server"):
            self.refused(78, ["0.0.0.0", "insecure"], program, "--listen", "0.0.0.0:0")

    def test_memory(self):
        scheduler, _ = self.cluster(1, "--memory-max", "8MiB")
        worker = self.worker(scheduler, 0, 1, "--elements", "10000000")
        self.assert_status(worker, 71, "weight0", "[0-9.]+ ?[KMG]i?B")
        self.assert_works(scheduler)

    def test_memory_comes_back(self):
        scheduler, servers = self.cluster(1, "--memory-max", "32MiB", "--shards", "2")
        for run in range(6):  # each alone needs more than half
            for worker in self.workers(scheduler, 2, "--elements", "2000000", "--rounds", "2", job=f"run{run}"):
                self.assert_status(worker, 0, "closed")
        self.assertIsNone(servers[0].process.poll())


class BadPeers(DaemonTest):
    REQUESTS = {
        "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "random": bytes((i * 197 + 31) % 251 for i in range(5000)),
        "truncated prefix": b"BPS1" + struct.pack("<H", VERSION),
        "huge header": struct.pack("<IHHIIQ", 0x31535042, VERSION, 0, 0xffffffff, 0, 0),
        "huge payload": struct.pack("<IHHIIQ", 0x31535042, VERSION, 0, 100, 0, 1 << 60),
        "other version": struct.pack("<IHHIIQ", 0x31535042, VERSION + 997, 0, 100, 0, 0),
        "nothing": b"",
        "zeros": bytes(100000),
    }

    def test_strangers_at_every_port(self):
        scheduler, servers = self.cluster(2)
        workers = self.workers(scheduler, 2, "--rounds", "400", "--announce", "3", "--hold-after", "399")
        for worker in workers:
            worker.wait_line("reached 3")
        for daemon in (scheduler, servers[0]):
            for name, request in self.REQUESTS.items():
                with self.subTest(daemon=daemon.name, request=name), self.connect(daemon.address) as peer:
                    try:
                        peer.sendall(request)
                        peer.shutdown(socket.SHUT_WR)
                        while peer.recv(65536):
                            pass
                    except OSError:
                        pass  # reset: fine
            idle = [self.connect(daemon.address) for _ in range(50)]
            for peer in idle:
                peer.close()
        for worker in workers:
            worker.say()
        for worker in workers:
            self.assert_status(worker, 0, "closed")
        for daemon in (scheduler, *servers):
            self.assertIsNone(daemon.process.poll())
        self.assert_works(scheduler)

    def test_a_worker_that_meets_a_stranger(self):
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.1", 0))
            stranger.listen()
            address = f"127.0.0.1:{stranger.getsockname()[1]}"
            worker = self.worker(address, 0, 1, "--join-ms", "5000")
            peer, _ = stranger.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                self.assert_status(worker, 76, "HTTP", re.escape(address))


if __name__ == "__main__":
    main(__name__, sys.argv)
