#!/usr/bin/env python3
"""A large job beside a small one: large_job_test.py PROGRAM-FOLDER CROWD [--ranks N] [--processes N] [--p99-ms MS] [--figures]

The large job joins, pushes 3 rounds and closes, all ranks at once or one after the other, while a job of 2 workers
does small rounds. Nobody may be declared dead, and the rounds of the small job may not wait for the large one; nor if
the scheduler is killed and started again meanwhile.

--figures prints a line for each size up to --ranks: what the scheduler has used, and how long it took.
"""
import argparse
import os
import pathlib
import re
import signal
import sys
import unittest

from daemons import LIMIT, DaemonTest

PATIENCE = 5 * LIMIT  # of the largest job, on two cores that others use as well


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def run(cluster, arguments, ranks, how, restart=False):
    """One large job and its neighbour; what there is to say of it. With `restart` the scheduler is killed while the
    ranks close, and another one takes over."""
    scheduler = cluster.scheduler()
    server = cluster.server(scheduler)
    environment = {"BPS_SCHEDULER": scheduler.address, "BPS_TRANSPORT": "tcp", "BPS_LOG_LEVEL": "warn"}
    pulses = [cluster.start(f"pulse {rank}", arguments.crowd, "--pulse", "--first", rank, "--size", 2,
                            environment={**environment, "BPS_JOB": "small"}) for rank in range(2)]
    for pulse in pulses:
        pulse.wait_line("^joined")
    before = cpu_seconds(scheduler.process.pid)
    # Not more of the two cores than the daemons leave: what is measured is what these do.
    each = ranks // arguments.processes
    crowd = [cluster.start(f"crowd {i}", "nice", "-n", 19, arguments.crowd, "--first", i * each, "--clients", each, "--size", ranks,
                           environment={**environment, "BPS_JOB": "large"}) for i in range(arguments.processes)]
    for process in crowd:
        process.wait_line("^pushed", PATIENCE)
    joined = max(float(process.wait_line("^joined").split()[1]) for process in crowd)
    after_rounds = cpu_seconds(scheduler.process.pid)
    if restart:
        for process in crowd:
            process.say(how)
        scheduler.signal(signal.SIGKILL)
        scheduler.end()
        scheduler, after_rounds = cluster.scheduler(listen=scheduler.address), 0
    elif how == "one-by-one":  # also of the processes
        for process in crowd:
            process.say(how)
            process.wait_line("^closed", PATIENCE)
    else:
        for process in crowd:
            process.say(how)
    for process in crowd:
        cluster.assert_status(process, 0, "closed", limit=PATIENCE)
    closed = sum if how == "one-by-one" else max
    took = closed(float(process.wait_line("^closed").split()[1]) for process in crowd)
    figures = {
        "ranks": ranks, "closed": how, "join_s": joined, "close_s": took,
        "join_cpu_ms_each": 1e3 * (after_rounds - before) / ranks,
        "close_cpu_ms_each": 1e3 * (cpu_seconds(scheduler.process.pid) - after_rounds) / ranks,
        "scheduler_mib": peak_mib(scheduler.process.pid),
    }
    for process in (*pulses, server, scheduler):
        cluster.assertIsNone(process.process.poll(), f"{process.name} has ended:\n{process.text()}")
    pulses[0].say()
    for pulse in pulses:
        cluster.assert_status(pulse, 0, "pulse")
    words = pulses[0].wait_line("^pulse").split()
    figures.update(rounds=int(words[1]), p50_ms=float(words[3]), p99_ms=float(words[5]), max_ms=float(words[7]))
    for daemon in (server, scheduler):
        daemon.signal(signal.SIGTERM)
        cluster.assertNotRegex(daemon.text(), "gone|declared dead|failed|is dropped: ", daemon.name)
    cluster.assert_status(scheduler, 0)
    return figures


class LargeJob(DaemonTest):
    arguments = None

    def check(self, how):
        figures = run(self, self.arguments, self.arguments.ranks, how)
        print(figures, flush=True)
        self.assertLess(figures["p99_ms"], self.arguments.p99_ms)

    def test_all_close_at_once(self):
        self.check("at-once")

    def test_all_close_one_after_the_other(self):
        self.check("one-by-one")

    def test_the_scheduler_is_killed_while_all_close(self):
        for how in ("at-once", "one-by-one"):
            with self.subTest(how=how):
                print(run(self, self.arguments, self.arguments.ranks, how, restart=True), flush=True)


def print_figures(arguments):
    sizes = [size for size in (64, 512, 4096) if size <= arguments.ranks]
    for ranks in sizes:
        for how in ("at-once", "one-by-one"):
            with LargeJob.outside_of_tests(arguments.bin) as cluster:
                print(run(cluster, arguments, ranks, how), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("crowd", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--p99-ms", type=float, default=200, help="the default is for a machine ten times as slow as usual")
    parser.add_argument("--figures", action="store_true")
    arguments, rest = parser.parse_known_args()
    if arguments.figures:
        return print_figures(arguments)
    DaemonTest.bin, LargeJob.arguments = arguments.bin, arguments
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
