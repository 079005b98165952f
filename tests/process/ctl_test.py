#!/usr/bin/env python3
"""bpsctl against real daemons and workers: who is waited for, what there is, and servers that are sent away.

    ctl_test.py PROGRAM-FOLDER WORKER [unittest arguments]
"""
import json
import re
import signal
import subprocess
import sys
import time
import unittest

from daemons import LIMIT, DaemonTest, main


class Ctl(DaemonTest):
    def ctl(self, scheduler, *words, status=0, environment=None):
        done = subprocess.run([str(self.bin / "bpsctl"), "--scheduler", getattr(scheduler, "address", scheduler),
                               *map(str, words)], capture_output=True, text=True, env=environment or {}, timeout=LIMIT)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stderr

    def ask(self, scheduler, *words):
        return json.loads(self.ctl(scheduler, *words, "--json"))

    def until(self, question, good):
        deadline = time.monotonic() + LIMIT
        while True:
            answer = question()
            if good(answer):
                return answer
            self.assertLess(time.monotonic(), deadline, answer)
            self.pause()

    def test_a_server_that_hangs_and_goes(self):
        # Time enough to ask about it before it is gone.
        scheduler = self.scheduler("--heartbeat-deadline", "10s")
        servers = [self.server(scheduler) for _ in range(2)]
        workers = self.workers(scheduler, 2, "--elements", "300000", "--rounds", "4", "--announce", "2", "--hold-after", "2")
        for worker in workers:
            worker.wait_line("reached 2")
        self.assertEqual(self.ask(scheduler, "status")["gone_servers"], [])
        servers[0].signal(signal.SIGSTOP)
        answer = self.ask(scheduler, "why")
        wait, = (wait for wait in answer["waits"] if wait["kind"] == "server")
        self.assertEqual((wait["job"], wait["missing"][0]["server"]), ("job", 1))
        self.assertRegex(wait["text"], r"^\d partitions? at server 1 \(host \S+, last seen \d+\.\d s ago\), which does not answer$")
        state = self.until(lambda: self.ask(scheduler, "status"), lambda state: state["gone_servers"])
        gone, = state["gone_servers"]
        self.assertEqual((gone["server"], gone["endpoint"]), (1, servers[0].address))
        self.assertRegex(gone["how"], r"^no heartbeat for \d")
        self.assertRegex(self.ctl(scheduler, "status"), r"\n  server 1  host \S+  \S+  gone for \d+\.\d s: no heartbeat for")
        for worker in workers:
            worker.say()
        for worker in workers:
            self.assert_status(worker, 0, "closed")

    def test_the_cluster_of_a_process(self):
        scheduler = self.scheduler()
        self.server(scheduler)
        worker = self.worker(scheduler, 0, 1, "--hold-after", "1", "--announce", "1")
        worker.wait_line("reached 1")
        ctl = [str(self.bin / "bpsctl"), "status", "--pid"]
        shown = subprocess.run([*ctl, str(worker.process.pid)], capture_output=True, text=True, env={}, timeout=LIMIT)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn(f"scheduler {scheduler.address} ", shown.stdout)
        # What the command line says comes first.
        shown = subprocess.run([*ctl, str(worker.process.pid), "--scheduler", "127.0.0.1:1"], capture_output=True, text=True, env={},
                               timeout=LIMIT)
        self.assertEqual((shown.returncode, "127.0.0.1:1" in shown.stderr), (69, True), shown.stderr)
        refused = subprocess.run([*ctl, str(scheduler.process.pid)], capture_output=True, text=True, env={}, timeout=LIMIT)
        self.assertEqual(refused.returncode, 64)
        self.assertIn("has BPS_SCHEDULER in its environment", refused.stderr)
        worker.say()
        self.assert_status(worker, 0, "closed")

    def test_a_server_of_bps_run_has_one_number(self):
        command = (f"ctl={self.bin}/bpsctl; $ctl status --scheduler $BPS_SCHEDULER --key-file $BPS_KEY_FILE; "
                   "$ctl drain 2 --scheduler $BPS_SCHEDULER --key-file $BPS_KEY_FILE")
        run = self.start("bps-run", self.bin / "bps-run", "-n", "1", "-s", "5", "--verbose", "--", "sh", "-c", command)
        self.assert_status(run, 0, r"(?m)^\[server 2\] .* drained$", "server 2 has gone")
        named = dict(re.findall(r"^bps-run: (server \d) listens on (\S+)$", run.text(), re.M))
        self.assertEqual(named, dict(re.findall(r"^\[worker 0\]   (server \d)  host \S+  (\S+)  ", run.text(), re.M)))
        self.assertEqual(len(named), 5)

    def test_a_bps_run_whose_server_is_lost_before_its_job_has_started_ends(self):
        script = f"[ $BPS_RANK = 0 ] && exec {self.worker_program}; pkill -KILL -P $PPID -x bps-server; exec tail -f /dev/null"
        run = self.start("bps-run", self.bin / "bps-run", "-n", "2", "--grace", "100ms", "--", "sh", "-c", script)
        self.assert_status(run, 75, "server 1 ended: signal 9", r"job default: 1 of 2 workers joined; no server has been there for 2")
        self.assertRegex(run.text(), r"(?m)^bps-run: worker 0 failed first: exit status 75$")

    def test_why_names_the_rank_that_does_not_come(self):
        scheduler = self.scheduler()
        server = self.server(scheduler, "--stall-warn", "300ms")
        workers = [self.worker(scheduler, rank, 4, "--rounds", "4", "--announce", "2",
                               *(("--hold-after", "2") if rank == 2 else ()), env={"BPS_STALL_WARN": "300ms"})
                   for rank in range(4)]
        for worker in workers:
            worker.wait_line("reached 2")
        answer = self.until(lambda: self.ask(scheduler, "why", "--older-than", "100ms"),
                            lambda answer: answer["waits"] and answer["waits"][0]["absent"] == 1)
        wait = answer["waits"][0]
        self.assertEqual((wait["job"], wait["kind"], wait["number"], wait["expected"]), ("job", "round", 2, 4))
        self.assertGreaterEqual(wait["age_seconds"], 0.1)
        missing = wait["missing"]
        self.assertEqual([(party["rank"], party["state"]) for party in missing], [(2, "alive")])
        self.assertLess(missing[0]["silent_seconds"], 60)
        text = self.ctl(scheduler, "why", wait["tensor"], "--older-than", "0s")
        self.assertRegex(text, r"^job: for \d+\.\d s: round 2 of \S+: 3 of 4 pushed, missing rank 2 "
                               r"\(host \S+, last seen \d+\.\d s ago\)\n$")
        # Each rank says it once, and asks the scheduler first, who has a second; the server says it once.
        line = r"rank \d: has waited \d+\.\d s for round 2 of .*: \d of 4 pushed, missing .*rank 2 \(host \S+, last seen \d+\.\d s ago\)"
        self.until(lambda: "\n".join(worker.text() for worker in workers), lambda text: re.search(line, text))
        server.wait_line(r"round 2 of \S+ waits for \d+\.\d s: \d of 4 pushed, missing .*rank 2 \(host ")
        state = self.ask(scheduler, "status")
        self.assertEqual([(job["job"], job["phase"], job["joined"]) for job in state["jobs"]], [("job", "running", 4)])
        self.assertEqual(len(state["servers"]), 1)
        self.assertRegex(self.ctl(scheduler, "status"), r"(?s)^scheduler .*1 server\n  server 1 .*1 job\n  job  run ")
        workers[2].say()
        for worker in workers:
            self.assert_status(worker, 0, "closed")
        self.assertIn("nothing waits", self.ctl(scheduler, "why"))

    def test_drain_sends_a_server_away_and_nothing_fails(self):
        scheduler, servers = self.cluster(2)
        workers = self.workers(scheduler, 2, "--until-told", "--elements", "400000", "--tensors", "3")
        for worker in workers:
            worker.wait_line("reached")
        text = self.ctl(scheduler, "drain", "1")
        self.assertRegex(text, r"server 1 drains: 1 job to move away from it\n"
                               r"server 1 has gone: [1-9]\d* partitions moved to others, nothing failed\n")
        self.assert_status(servers[0], 0, r"job 'job' \(run \w+\) goes on at other servers", "drained")
        workers[0].say()
        for worker in workers:
            self.assert_status(worker, 0, "done", "closed")
        servers[1].wait_line(r"job 'job' \(run \w+\) has ended$")
        self.assertEqual([server["server"] for server in self.ask(scheduler, "status")["servers"]], [2])
        self.assertIn("is the last one", self.ctl(scheduler, "drain", "2", status=64))
        self.assertIn("there is no server 7", self.ctl(scheduler, "drain", "7", status=64))

    def test_a_server_stays_while_the_others_have_no_room_for_what_it_has(self):
        scheduler, servers = self.cluster(2, "--memory-max", "8MiB")
        workers = self.workers(scheduler, 2, "--until-told", "--elements", "400000", "--tensors", "3")
        for worker in workers:
            worker.wait_line("reached")
        ctl = self.start("bpsctl", self.bin / "bpsctl", "--scheduler", scheduler.address, "drain", "1")
        ctl.wait_line(r"job keeps it for now: server 2 .*need .*reserved")
        scheduler.wait_line("server 1 .* stays in job job until another server comes or the job ends: server 2")
        self.server(scheduler)
        self.assert_status(ctl, 0, r"server 1 has gone: [1-9]\d* partitions moved to others, nothing failed")
        self.assert_status(servers[0], 0, "drained")
        workers[0].say()
        for worker in workers:
            self.assert_status(worker, 0, "done", "closed")

    def test_an_interrupted_drain_goes_on(self):
        scheduler, servers = self.cluster(2)
        worker = self.worker(scheduler, 0, 1, "--hold-after", "1", "--announce", "1", env={"BPS_RETAIN": "false"})
        worker.wait_line("reached 1")
        ctl = self.start("bpsctl", self.bin / "bpsctl", "--scheduler", scheduler.address, "drain", "1")
        ctl.wait_line("job keeps it for now: .*without retain")
        ctl.signal(signal.SIGINT)
        self.assert_status(ctl, 75, "the drain goes on")
        worker.say()
        self.assert_status(worker, 0)
        self.assert_status(servers[0], 0, "drained")

    def test_shutdown_ends_everything(self):
        scheduler, servers = self.cluster(2)
        workers = self.workers(scheduler, 2, "--rounds", "1000000000", "--announce", "3")
        for worker in workers:
            worker.wait_line("reached 3")
        self.assertEqual(self.ctl(scheduler, "shutdown"), "the cluster has ended: 1 job, 2 servers and the scheduler\n")
        self.assert_status(scheduler, 0, "shuts down: .*; 1 job, 2 servers")
        for worker in workers:
            self.assert_status(worker, 75, r"has ended the cluster: bpsctl shutdown, from 127\.0\.0\.1:\d+; start the job again")
        for server in servers:
            self.assert_ended_well(server)
        self.assertIn("does not answer", self.ctl(scheduler, "shutdown", status=69))

    def test_shutdown_of_a_bps_run_is_answered(self):
        run = self.start("bps-run", self.bin / "bps-run", "-n", "2", "--", self.worker_program, "--rounds", "1000000000",
                         "--announce", "3")
        for rank in range(2):
            run.wait_line(rf"^\[worker {rank}\] reached 3")
        ctl = self.start("bpsctl", self.bin / "bpsctl", "shutdown", "--pid", run.process.pid)
        self.assert_status(ctl, 0, "(?m)^the cluster has ended: 1 job, 1 server and the scheduler$")
        self.assert_status(run, 75, "has ended the cluster: bpsctl shutdown")

    def test_a_scheduler_that_ends_its_cluster_answers_before_it_heeds_sigterm(self):
        scheduler, _ = self.cluster()
        ctl = self.start("bpsctl", self.bin / "bpsctl", "--scheduler", scheduler.address, "shutdown")
        scheduler.wait_line("shuts down: ")
        scheduler.signal(signal.SIGTERM)
        self.assert_status(ctl, 0, "(?m)^the cluster has ended: 0 jobs, 1 server and the scheduler$")
        self.assert_status(scheduler, 0)

    def assert_ended_well(self, server):
        # bpsctl has waited for it.
        self.assert_status(server, 0, " info  server: the scheduler at .* has ended the cluster: bpsctl shutdown, from ", limit=1)
        self.assertNotRegex(server.text(), " error ")

    def test_shutdown_after_a_restart_of_the_scheduler_ends_who_comes_back(self):
        scheduler, servers = self.cluster(2)
        workers = self.workers(scheduler, 2, "--rounds", "1000000000", "--announce", "3")
        for worker in workers:
            worker.wait_line("reached 3")
        # Nobody has noticed yet that it is another one: those that hang notice it when they go on.
        for process in (*servers, *workers):
            process.signal(signal.SIGSTOP)
        scheduler.signal(signal.SIGKILL)
        scheduler.end()
        scheduler = self.scheduler(listen=scheduler.address)
        shutdowns = [self.start("bpsctl", self.bin / "bpsctl", "--scheduler", scheduler.address, "shutdown") for _ in range(2)]
        scheduler.wait_line("shuts down: .*; 0 jobs, 0 servers")
        for process in (*servers, *workers):
            process.signal(signal.SIGCONT)
        for shutdown in shutdowns:  # the second one gets the same answer
            self.assert_status(shutdown, 0, "waits until all servers have ended",
                               r"(?m)^the cluster has ended: 1 job, 2 servers and the scheduler$")
        self.assert_status(scheduler, 0)
        for server in servers:
            self.assert_ended_well(server)
        for worker in workers:
            self.assert_status(worker, 75, "has ended the cluster: bpsctl shutdown")

    def test_shutdown_returns_when_servers_with_a_worker_that_hangs_are_gone(self):
        scheduler, servers = self.cluster(2)
        workers = self.workers(scheduler, 2, "--rounds", "1000000000", "--announce", "3")
        for worker in workers:
            worker.wait_line("reached 3")
        workers[1].signal(signal.SIGSTOP)
        self.assertIn("1 job, 2 servers", self.ctl(scheduler, "shutdown"))
        for server in servers:
            self.assert_ended_well(server)
        self.assert_status(scheduler, 0)

    def test_shutdown_of_nothing_and_of_who_does_not_listen(self):
        self.assertEqual(self.ask(self.scheduler(), "shutdown"), {"jobs": 0, "servers": 0})
        scheduler, servers = self.cluster()
        servers[0].signal(signal.SIGSTOP)
        self.assertIn("0 jobs, 1 server", self.ctl(scheduler, "shutdown"))
        self.assert_status(scheduler, 0)

    def test_keys(self):
        key, wrong = self.folder / "key", self.folder / "wrong"
        for path, digits in ((key, "01" * 32), (wrong, "02" * 32)):
            path.write_text(digits + "\n")
            path.chmod(0o600)
        scheduler = self.scheduler("--key-file", key)
        self.assertIn("no server", self.ctl(scheduler, "status", "--key-file", key))
        self.assertIn("no server", self.ctl(scheduler, "status", environment={"BPS_KEY_FILE": str(key)}))
        self.assertIn("key", self.ctl(scheduler, "status", "--key-file", wrong, status=77))
        self.assertIn("key", self.ctl(scheduler, "status", status=77))
        self.assertIn("key", self.ctl(scheduler, "shutdown", "--key-file", wrong, status=77))
        self.assertIn("no job", self.ctl(scheduler, "status", "--key-file", key))
        self.ctl(scheduler, "shutdown", "--key-file", key)
        self.assert_status(scheduler, 0)

    def test_wrong_words(self):
        nobody = f"127.0.0.1:{self.free_port()}"
        self.assertIn("does not answer", self.ctl(nobody, "status", status=69))
        self.assertIn("did you mean status?", self.ctl(nobody, "statsu", status=64))
        self.assertIn("which command?", self.ctl(nobody, status=64))
        self.assertIn("drain which server?", self.ctl(nobody, "drain", status=64))
        self.assertIn("shutdown takes no argument 'now'", self.ctl(nobody, "shutdown", "now", status=64))
        self.assertIn("--json", self.ctl(nobody, "status", "--jsn", status=64))
        self.assertIn("what is doctor to look at?", self.ctl(nobody, "doctor", status=64))
        self.assertIn("takes no argument 'mlx5_0'", self.ctl(nobody, "doctor", "--rdma", "mlx5_0", status=64))
        self.assertIn("is no RDMA device", self.ctl(nobody, "doctor", "--rdma", "--rdma-device", "mlx5_0:x", status=64))
        doctor = self.start("doctor", self.bin / "bpsctl", "doctor", "--rdma", environment={"BPS_RDMA_DEVICE": "nobodys0"})
        self.assert_status(doctor, 78, "wrong: this (host|machine) has no RDMA device nobodys0")


if __name__ == "__main__":
    main(__name__, sys.argv)
