#!/usr/bin/env python3
"""bps-run with fake daemons and shell scripts as workers: bps_run_test.py PATH-OF-BPS-RUN [unittest arguments]"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from cluster import LIMIT, ClusterTest, heirs_of

STAY = "tail -f /dev/null & wait 2>/dev/null"


class Output(ClusterTest):
    def test_workers_get_their_place(self):
        status, out, err = self.run_to_end(*self.shell("env | grep ^BPS_ | sort | tr '\\n' ' '; echo", "--job", "j", workers=2))
        self.assertEqual((status, err), (0, ""))
        for rank in (0, 1):
            self.assertRegex(out, rf"\[worker {rank}\] BPS_JOB=j BPS_KEY_FILE={self.temporary}/\S+/key BPS_LOCAL_RANK={rank} "
                                  rf"BPS_LOCAL_SIZE=2 BPS_RANK={rank} BPS_SCHEDULER=127.0.0.1:4999 BPS_SCHEDULER_GRACE=2s BPS_WORLD_SIZE=2 \n")
        self.assert_nothing_left()

    def test_one_server_unless_more_are_wanted(self):
        for flags, servers in (((), 1), (("-s", "3"), 3)):
            status, out, err = self.run_to_end("-n", "1", *flags, "--", "true")
            self.assertEqual((status, err), (0, ""))
            self.assertEqual(set(re.findall(r"^\[(server \d+)\]", out, re.M)), {f"server {i}" for i in range(1, servers + 1)})

    def test_how_long_to_go_on_without_a_scheduler_can_be_said(self):
        self.environment["BPS_SCHEDULER_GRACE"] = "7s"
        _, out, _ = self.run_to_end(*self.shell("echo $BPS_SCHEDULER_GRACE"))
        self.assertIn("[worker 0] 7s\n", out)

    def test_each_run_has_a_fresh_key_of_its_own(self):
        self.environment["BPS_KEY_FILE"] = "/somebody/elses"
        keys = set()
        for _ in range(2):
            status, out, _ = self.run_to_end(*self.shell('stat -c "mode %a of %U" $BPS_KEY_FILE; cat $BPS_KEY_FILE', workers=2))
            self.assertEqual(status, 0)
            self.assertEqual(out.count(f"mode 600 of {pathlib.Path(self.temporary).owner()}"), 2)
            found = set(re.findall(r"^\[worker \d\] ([0-9a-f]{64})$", out, re.M))
            self.assertEqual(len(found), 1, out)
            keys |= found
        self.assertEqual(len(keys), 2)
        self.assert_nothing_left()

    def test_lines_are_whole_and_named_and_keep_their_stream(self):
        script = 'i=0; while [ $i -lt 5000 ]; do echo "line $i"; i=$((i + 1)); done; echo oops >&2; printf unfinished'
        status, out, err = self.run_to_end(*self.shell(script, workers=2, servers=2))
        self.assertEqual(status, 0)
        for rank in (0, 1):
            name = f"[worker {rank}] "
            lines = [line[len(name):] for line in out.splitlines() if line.startswith(name)]
            self.assertEqual(lines, [f"line {i}" for i in range(5000)] + ["unfinished"])
            self.assertIn(f"[worker {rank}] oops\n", err)
        for daemon in ("[scheduler] bps-scheduler ", "[server 1] bps-server ", "[server 2] bps-server "):
            self.assertIn(daemon, out)

    def test_daemons_get_what_they_need(self):
        say = '#!/bin/sh\necho "args: $*"; echo "key: $BPS_KEY_FILE"; echo "ca: $BPS_TLS_CA"\n'
        for daemon in ("bps-scheduler", "bps-server"):
            text = (self.bin / daemon).read_text()
            self.write(f"bin/{daemon}", text.replace("#!/bin/sh\n", say))
        _, out, _ = self.run_to_end(*self.shell("true", "--shards", "3", "--tls-ca", "ca.pem"))
        self.assertRegex(out, r"\[scheduler\] key: \S+/key\n")
        self.assertRegex(out, r"\[server 1\] key: \S+/key\n")
        for daemon in ("scheduler", "server 1"):
            self.assertIn(f"[{daemon}] ca: ca.pem\n", out)
        self.assertRegex(out, r"\[scheduler\] args: --listen 127.0.0.1:0 --ports-file \S+ --log-level warn\n")
        self.assertRegex(out, r"\[server 1\] args: --listen 127.0.0.1:0 --ports-file \S+ --scheduler 127.0.0.1:4999 "
                              r"--shards 3 --log-level warn\n")
        _, out, err = self.run_to_end(*self.shell("true", "--verbose"))
        self.assertIn("--log-level info\n", out)
        self.assertIn("bps-run: scheduler listens on 127.0.0.1:4999\n", err)

    def test_a_reader_that_is_gone_stops_nothing(self):
        run = self.start(*self.shell(f"yes | head -n 100000; touch {self.folder}/done"))
        run.process.stdout.close()
        self.assertEqual(run.process.wait(timeout=LIMIT), 0)
        self.assertTrue((self.folder / "done").exists())
        self.assertIn("bps-run: nobody reads stdout any more; the run goes on without it\n", run.process.stderr.read().decode())

    def test_without_standard_descriptors(self):
        for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
            command = " ".join(["exec", self.bps_run, "--bin-dir", str(self.bin), "-n", "1", "--", "touch", f"{self.folder}/done"])
            run = subprocess.run(["sh", "-c", f"{command} {closed}"], stdout=subprocess.DEVNULL, env=self.environment, timeout=LIMIT)
            self.assertEqual(run.returncode, 0, closed)
            (self.folder / "done").unlink()

    def test_a_reader_that_sleeps_cannot_block_signals(self):
        run = self.start(*self.shell("yes"))
        run.wait_for("[worker 0] y\n")
        run.process.send_signal(signal.SIGTERM)
        run.process.send_signal(signal.SIGINT)
        # Either may arrive first; whichever comes second kills what is left.
        self.assertIn(run.process.wait(timeout=LIMIT), (128 + s for s in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)))

    def test_a_reader_that_sleeps_holds_up_no_end(self):
        run = self.start(*self.shell("yes", "--timeout", "200ms"))
        self.assertEqual(run.process.wait(timeout=LIMIT), 75)
        run = self.start(*self.shell("yes"))
        run.wait_for("[worker 0] y\n")
        run.process.send_signal(signal.SIGINT)
        self.assertEqual(run.process.wait(timeout=LIMIT), 128 + signal.SIGINT)
        self.assert_nothing_left()

    def test_a_reader_that_is_slow_gets_everything(self):
        script = f"trap 'head -c 200000 /dev/zero | tr \\\\0 z; exit 0' TERM; echo up; {STAY}"
        run = self.start(*self.shell(script))
        run.wait_for("[worker 0] up\n")
        run.process.send_signal(signal.SIGTERM)
        status, out, _ = run.end()
        self.assertEqual((status, out.count("z")), (0, 200000))

    def test_output_that_is_lost_is_no_success(self):
        with open("/dev/full", "w") as full:
            run = subprocess.run([self.bps_run, "--bin-dir", str(self.bin), *self.shell("echo hello")], stdout=full,
                                 stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=self.environment, timeout=LIMIT)
        self.assertEqual(run.returncode, 71, run.stderr)
        self.assertIn(b"what goes to stdout is lost: No space left on device", run.stderr)


class Status(ClusterTest):
    def is_last_of(self, workers):
        """Shell: whether this is rank 0, when the others have said by a file that signals find them ready."""
        others = " && ".join(f"[ -e {self.folder}/up{rank} ]" for rank in range(1, workers))
        return f"[ $BPS_RANK = 0 ] && {{ until {others}; do :; done; true; }}"

    def in_turn(self, *statuses):
        """The end of a run whose worker i ends as the i-th, once bps-run has noticed the one before it."""
        turn = "until [ -e {0}/turn$BPS_RANK ]; do :; done; ".format(self.folder)
        ends = " ".join(f"{rank}) exit {status} ;;" for rank, status in enumerate(statuses))
        run = self.start(*self.shell(f"{turn} case $BPS_RANK in {ends} esac", "--verbose", workers=len(statuses)))
        lines = []
        for rank in range(len(statuses)):
            (self.folder / f"turn{rank}").touch()
            while not (lines and lines[-1].startswith(f"bps-run: worker {rank} ended")):
                lines.append(run.process.stderr.readline().decode())
                self.assertTrue(lines[-1], lines)
        status, _, err = run.end()
        for rank in range(len(statuses)):
            (self.folder / f"turn{rank}").unlink()
        return status, "".join(lines) + err

    def test_the_worker_that_failed_first_counts(self):
        self.assertEqual(self.run_to_end(*self.shell("exit 0", workers=3))[0], 0)
        self.assertIn(self.run_to_end(*self.shell("exit $BPS_RANK", workers=4))[0], (1, 2, 3))
        for statuses, first in (((1, 75, 75), 0), ((64, 75), 0), ((3, 7), 0), ((7, 3), 0), ((0, 6, 75), 1),
                                ((75, 1, 3), 1), ((75, 75, 137), 2)):  # 75: a peer was lost, and that one is noticed later
            status, err = self.in_turn(*statuses)
            self.assertEqual(status, statuses[first], statuses)
            self.assertEqual(err.splitlines()[-1], f"bps-run: worker {first} failed first: exit status {statuses[first]}")

    def test_who_left_the_job_before_the_others_failed_is_named(self):
        for statuses, first, left in (((0, 75, 0), 1, "worker 0"), ((0, 0, 0, 75), 3, "worker 0 and 2 more")):
            status, err = self.in_turn(*statuses)
            self.assertEqual(status, 75)
            self.assertEqual(err.splitlines()[-1], f"bps-run: worker {first} failed first: exit status 75; "
                                                   f"{left} had ended before, with status 0")

    def test_what_daemons_say_of_a_failure_does_not_hide_it(self):
        text = (self.bin / "bps-server").read_text()
        for end, shown in ((0, False), (3, True)):  # one that ends badly shows it all the same
            self.write("bin/bps-server", text.replace("trap 'exit 0' TERM", f"trap 'echo a worker is gone; exit {end}' TERM"))
            status, out, err = self.run_to_end(*self.shell("[ $BPS_RANK = 1 ] && exit 6; exit 0", workers=2))
            self.assertEqual((status, "a worker is gone" in out + err), (6, shown))
            self.assertEqual(err.splitlines()[-1], "bps-run: worker 1 failed first: exit status 6")

    def test_a_world_of_one_is_blamed_once(self):
        self.assertEqual(self.run_to_end(*self.shell("exit 6"))[::2], (6, "bps-run: worker 0 ended: exit status 6\n"))

    def test_a_death_by_signal_is_128_and_its_number(self):
        status, _, err = self.run_to_end(*self.shell("[ $BPS_RANK = 0 ] || kill -9 $$", workers=2))
        self.assertEqual(status, 137)
        self.assertIn("bps-run: worker 1 ended: signal 9 (Killed)", err)

    def test_the_others_may_end_with_their_own_error(self):
        script = f"{self.is_last_of(3)} && exit 7; trap 'echo told; exit 3' TERM; : > {self.folder}/up$BPS_RANK; {STAY}"
        status, out, err = self.run_to_end(*self.shell(script, "--grace", "300ms", workers=3))
        self.assertEqual(status, 7)  # what the grace period ended does not hide the cause
        self.assertEqual(out.count("told"), 2)
        self.assertIn("worker 0 ended: exit status 7; the others have 300ms to end", err)
        self.assert_nothing_left()

    def test_who_ignores_sigterm_is_killed(self):
        script = f"{self.is_last_of(2)} && exit 7; trap '' TERM; : > {self.folder}/up$BPS_RANK; while :; do {STAY}; done"
        status, _, err = self.run_to_end(*self.shell(script, "--grace", "10ms", workers=2))
        self.assertEqual(status, 7)
        self.assertIn("killed", err)
        self.assert_nothing_left()

    def test_a_job_that_shrinks_goes_on(self):
        self.environment["BPS_WORKER_LOSS"] = "shrink"
        # The others end only after bps-run has heard of the death.
        heard = f"until [ -e {self.folder}/heard ]; do :; done"
        run = self.start(*self.shell(f"[ $BPS_RANK = 1 ] && kill -9 $$; {heard}; exit 0", "--grace", "10ms", workers=3))
        line = run.process.stderr.readline().decode()
        self.assertEqual(line, "bps-run: worker 1 ended: signal 9 (Killed); the others go on, if the job has started (BPS_WORKER_LOSS=shrink)\n")
        (self.folder / "heard").touch()
        self.assertEqual(run.end()[0], 0)
        # Who ends last decides.
        status, err = self.in_turn(3, 4, 5)
        self.assertEqual((status, err.splitlines()[-1]), (5, "bps-run: worker 2 ended last: exit status 5"))

    def test_timeout(self):
        status, _, err = self.run_to_end(*self.shell(STAY, "--timeout", "200ms", workers=2))
        self.assertEqual(status, 75)
        self.assertIn("--timeout 200ms is over", err)
        self.assert_nothing_left()


class Refusals(ClusterTest):
    def refused(self, status, text, *arguments):
        got, out, err = self.run_to_end(*arguments)
        self.assertEqual((got, out), (status, ""), err)
        self.assertIn(text, err)
        self.assert_nothing_left()

    def test_usage(self):
        self.refused(64, "--workers", "-n", "0", "-s", "1", "--", "true")
        self.refused(64, "--workers", "-n", "x", "-s", "1", "--", "true")
        self.refused(64, "how many workers", "-s", "1", "--", "true")
        self.refused(64, "--servers", "-n", "1", "-s", "0", "--", "true")
        self.refused(64, "which program", "-n", "1", "-s", "1")
        self.refused(64, "--grace", "-n", "1", "-s", "1", "--grcae", "1s", "--", "true")

    def test_rdma(self):
        self.environment["BPS_TRANSPORT"] = "rdma"
        self.refused(78, "listens on loopback, which no RDMA device has", "-n", "1", "-s", "1", "--", "true")

    def test_program(self):
        self.refused(127, "program 'no-such-program' not found", "-n", "1", "-s", "1", "--", "no-such-program")
        self.refused(127, "not found", "-n", "1", "-s", "1", "--", "./no/such")
        self.refused(126, "not an executable file", "-n", "1", "-s", "1", "--", "/etc/passwd")
        here = self.write("here", "#!/bin/sh\n")
        status, _, err = self.start("-n", "1", "-s", "1", "--", "here", cwd=pathlib.Path(here).parent).end()
        self.assertEqual(status, 127)
        self.assertIn("program 'here' not found in PATH; if you mean the file here, write ./here", err)
        broken = self.write("broken", "#!/no/such/interpreter\n")
        status, _, err = self.run_to_end("-n", "1", "-s", "1", "--", broken)
        self.assertEqual(status, 71)
        self.assertIn("cannot run " + broken, err)
        self.assert_nothing_left()

    def test_daemon_missing(self):
        (self.bin / "bps-server").unlink()
        self.refused(71, "bps-server' not found; build or install it, or name its folder with --bin-dir",
                     *self.shell("true"))

    def test_daemon_that_cannot_start(self):
        self.write("bin/bps-server", "#!/bin/sh\necho 'bad --shards' >&2; exit 64\n")
        status, _, err = self.run_to_end(*self.shell("echo never"))
        self.assertEqual(status, 64)
        self.assertIn("[server 1] bad --shards\n", err)
        self.assertIn("server 1 ended before it listened: exit status 64", err)
        self.write("bin/bps-scheduler", "#!/bin/sh\nkill -SEGV $$\n")
        status, out, err = self.run_to_end(*self.shell("echo never"))
        self.assertEqual((status, out), (71, ""))
        self.assert_nothing_left()

    def test_daemon_that_never_listens(self):
        self.write("bin/bps-scheduler", f"#!/bin/sh\n{STAY}\n")
        self.refused(71, "the daemons do not listen after 200ms", *self.shell("true", "--start-timeout", "200ms"))


class Daemons(ClusterTest):
    def kill_server(self, *flags):
        run = self.start(*self.shell(f"echo up; until [ -e {self.folder}/go ]; do :; done; exit 0", *flags))
        pid = int(run.wait_for("[worker 0] up").split("[server 1] bps-server ")[1].split()[0])
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + LIMIT
        while pathlib.Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            os.sched_yield()  # until bps-run has heard of it, before its worker ends
        (self.folder / "go").touch()
        return run.end()

    def test_a_daemon_that_dies_is_reported_and_the_workers_decide(self):
        status, _, err = self.kill_server()
        self.assertEqual(status, 0)
        self.assertIn("bps-run: server 1 ended: signal 9 (Killed)\n", err)

    def test_strict(self):
        self.assertEqual(self.kill_server("--strict")[0], 70)

    def test_servers_get_their_numbers_in_order(self):
        """The scheduler numbers them as they join, which they have when their ports file is there."""
        text = (self.bin / "bps-server").read_text()
        self.write("bin/bps-server", text.replace("trap", 'echo "after $(ls "${ports%/*}" | grep -c ^server)"\ntrap', 1))
        status, out, _ = self.run_to_end(*self.shell("true", servers=4))
        self.assertEqual(status, 0)
        self.assertEqual(re.findall(r"^\[server (\d)\] after (\d)$", out, re.M), [("1", "0"), ("2", "1"), ("3", "2"), ("4", "3")])

    def test_servers_end_before_the_scheduler(self):
        for daemon in ("bps-scheduler", "bps-server"):
            text = (self.bin / daemon).read_text()
            self.write(f"bin/{daemon}", text.replace("exit 0", 'echo "${0##*/} bye"; exit 0'))
        status, out, _ = self.run_to_end(*self.shell("true", servers=2))
        self.assertEqual(status, 0)
        self.assertLess(out.rindex("bps-server bye"), out.index("bps-scheduler bye"))
        self.assertEqual(out.count("bps-server bye"), 2)


class End(ClusterTest):
    def test_ctrl_c_reaches_the_workers_once(self):
        run = self.start(*self.shell(f"trap 'echo interrupted; exit 5' INT; echo up; {STAY}", workers=2), process_group=0)
        run.wait_for("up", times=2)
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
        status, out, err = run.end()
        self.assertEqual(status, 5)
        self.assertEqual(out.count("interrupted"), 2)
        self.assertIn("SIGINT goes to the workers", err)
        self.assert_nothing_left()

    def test_sigterm_that_workers_heed_is_success(self):
        run = self.start(*self.shell(f"trap 'exit 0' TERM; echo up; {STAY}"))
        run.wait_for("up")
        run.process.send_signal(signal.SIGTERM)
        self.assertEqual(run.end()[0], 0)

    def test_the_second_signal_kills(self):
        run = self.start(*self.shell(f"trap 'echo no' INT; echo up; while :; do {STAY}; done"))
        run.wait_for("up")
        run.process.send_signal(signal.SIGINT)
        run.wait_for("no")
        run.process.send_signal(signal.SIGINT)
        self.assertEqual(run.end()[0], 128 + signal.SIGINT)  # and not the signal that we sent
        self.assert_nothing_left()

    def test_who_ignores_a_signal_has_the_grace(self):
        run = self.start(*self.shell(f"trap '' INT; trap 'echo ends; exit 4' TERM; echo up; while :; do {STAY}; done", "--grace", "100ms"))
        run.wait_for("up")
        run.process.send_signal(signal.SIGINT)
        status, out, err = run.end()
        self.assertEqual((status, out.count("ends")), (4, 1))
        self.assertIn("SIGINT goes to the workers, who have 100ms to end; once more kills them", err)

    def test_who_is_stopped_after_a_signal_ends_by_that_signal(self):
        """And not by what bps-run sent, nor by the loss of a peer: a script would start the run again."""
        for trap in ("trap '' INT", "trap 'while :; do :; done' INT", "trap '' INT; trap 'exit 143' TERM",
                     "trap 'exit 75' INT", "trap '[ $BPS_RANK = 0 ] && exit 75' INT"):
            run = self.start(*self.shell(f"{trap}; echo up; while :; do {STAY}; done", "--grace", "100ms", workers=2))
            run.wait_for("up", times=2)
            run.process.send_signal(signal.SIGINT)
            self.assertEqual(run.end()[0], 128 + signal.SIGINT, trap)

    def test_in_the_background_of_a_script(self):
        # A shell without job control has `&` ignore SIGINT and SIGQUIT.
        script = f"{self.bps_run} --bin-dir {self.bin} -n 1 -- sh -c 'kill -INT $$; echo never' & wait $!"
        run = subprocess.run(["sh", "-c", script], env=self.environment, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(run.returncode, 128 + signal.SIGINT, run.stderr)
        self.assertNotIn("never", run.stdout)

    def test_nohup(self):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        run = self.start(*self.shell(f"echo up; until [ -e {self.folder}/go ]; do :; done", "--verbose"))
        run.wait_for("up")
        run.process.send_signal(signal.SIGHUP)
        (self.folder / "go").touch()
        status, _, err = run.end()
        self.assertEqual(status, 0)
        self.assertNotIn("SIGHUP", err)

    def test_daemons_warn_of_nothing_once_the_run_is_ended(self):
        daemon = (self.bin / "bps-server").read_text().replace("trap 'exit 0' TERM", "trap 'echo a warning; exit 0' TERM")
        self.write("bin/bps-server", daemon)
        for flags, warnings in (((), 0), (("--verbose",), 1)):
            run = self.start(*self.shell(f"trap 'exit 0' INT; echo up; {STAY}", *flags))
            run.wait_for("up")
            run.process.send_signal(signal.SIGINT)
            status, out, _ = run.end()
            self.assertEqual((status, out.count("a warning")), (0, warnings))
        # One that ends badly shows what it said, and a run that ends by itself shows everything.
        self.write("bin/bps-server", daemon.replace("exit 0", "exit 3"))
        run = self.start(*self.shell(f"trap 'exit 0' INT; echo up; {STAY}"))
        run.wait_for("up")
        run.process.send_signal(signal.SIGINT)
        _, _, err = run.end()
        self.assertIn("[server 1] a warning\nbps-run: server 1 ended: exit status 3\n", err)
        self.write("bin/bps-server", daemon)
        self.assertEqual(self.run_to_end(*self.shell("exit 0"))[1].count("a warning"), 1)

    def test_a_signal_while_daemons_start(self):
        self.write("bin/bps-scheduler", f"#!/bin/sh\necho up; {STAY}\n")
        run = self.start(*self.shell("echo never"))
        run.wait_for("up")
        run.process.send_signal(signal.SIGTERM)
        status, out, err = run.end()
        self.assertEqual(status, 128 + signal.SIGTERM)
        self.assertNotIn("never", out)
        self.assertIn("interrupted", err)
        self.assert_nothing_left()

    # A grandchild that stays in its group, and one that has left group and session.
    FAMILY = f"(echo up; {STAY}) & setsid sh -c 'echo up; {STAY}' & {STAY}"

    def test_kill_9_of_bps_run_leaves_nothing(self):
        run = self.start(*self.shell(self.FAMILY, workers=2, servers=2))
        run.wait_for("up", times=4)
        self.assertGreater(len(heirs_of(self.temporary)), 10)
        run.process.send_signal(signal.SIGKILL)
        self.assertEqual(run.end()[0], -signal.SIGKILL)
        self.assert_nothing_left()

    def test_kill_9_of_the_supervisor_leaves_nothing(self):
        run = self.start(*self.shell(self.FAMILY))
        run.wait_for("up", times=2)
        pid = run.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self.assertEqual(len(children), 1)
        os.kill(int(children[0]), signal.SIGKILL)
        status, _, err = run.end()
        self.assertEqual(status, 137)
        self.assertIn("the supervisor ended: signal 9", err)
        self.assert_nothing_left()

    def test_what_a_worker_leaves_behind_ends_with_the_run(self):
        run = self.start(*self.shell("setsid tail -f /dev/null & tail -f /dev/null & echo up"))
        self.assertEqual(run.end()[0], 0)
        self.assert_nothing_left()


if __name__ == "__main__":
    ClusterTest.bps_run = sys.argv.pop(1)
    unittest.main()
