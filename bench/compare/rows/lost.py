"""P15: a server, or a worker of a job that shrinks, is killed or stopped: how soon it is noticed, and how soon the job goes on."""
import calendar
import pathlib
import re
import signal
import time

from context import guarded
from daemons import DaemonTest
from row import Median, NotMeasured, Row

IDS = ("P15",)
WORKERS, SERVERS, ELEMENTS = 2, 3, 5_000_000
LIMIT = 30


def measure(context):
    if not context.wants("P15"):
        return []
    job = f"{WORKERS} workers, {SERVERS} servers, f32, {ELEMENTS * 4 // 10**6} MB, loopback"
    killed, moved, stopped, went_on = (Row("P15", f"{what}, {job}", floor, goal, more=False, unit="s") for what, floor, goal in (
        ("kill -9 of a server: detected in", 0.5, 0.3), ("after that, the next round is complete in", 3, 1),
        ("SIGSTOP of a server: detected in", 5, 3), ("after that, the next round is complete in", 3, 1)))
    shrinks = job.replace(f"{WORKERS} workers", f"{WORKERS + 1} workers, worker_loss=shrink")
    missed, shrunk = (Row("P15", f"{what}, {shrinks}", floor, goal, more=False, unit="s") for what, floor, goal in (
        ("kill -9 of a worker: detected in", 0.5, 0.3), ("after that, the next round of the others is complete in", 1, 0.1)))
    often, seldom = (5, 3) if context.quick else (9, 6)
    guarded([killed, moved], lambda: run(context, server_dies, signal.SIGKILL, often, killed, moved))
    guarded([stopped, went_on], lambda: run(context, server_dies, signal.SIGSTOP, seldom, stopped, went_on))
    guarded([missed, shrunk], lambda: run(context, worker_dies, signal.SIGKILL, often, missed, shrunk))
    return [killed, moved, stopped, went_on, missed, shrunk]


def run(context, case, number, times, detected, completed):
    jobs = [case(context, number) for _ in range(times)]
    detected.median, completed.median = (Median.of(values) for values in list(zip(*jobs))[:2])
    usual = Median.of([job[2] for job in jobs]).value
    detected.note = f"{times} jobs"
    completed.note = f"{times} jobs; a round takes {usual * 1e3:.0f} ms before"


def server_dies(context, number):
    return one(context, number, WORKERS, lambda servers, ranks: servers[0], r"server 1 .*partitions move, epoch")


def worker_dies(context, number):
    return one(context, number, WORKERS + 1, lambda servers, ranks: ranks.pop(), rf"rank {WORKERS} .*it goes on with",
               ["--may-lose", WORKERS], {"BPS_WORKER_LOSS": "shrink", "BPS_UNEQUAL_SUMS": "1"})


def one(context, number, workers, take, notices, flags=(), settings=None):
    """Seconds from the signal to whom `take` gives until the scheduler says what matches `notices`; from then until the round is
    complete everywhere; of a round before. Real binaries; every sum is checked, and the job must end well."""
    build = pathlib.Path(context.program).parents[1]
    try:
        with DaemonTest.outside_of_tests(build / "bin", build / "tests" / "process" / "process_worker") as cluster:
            scheduler, servers = cluster.cluster(SERVERS, "--transport", "tcp")
            ranks = cluster.workers(scheduler, workers, "--elements", ELEMENTS, "--until-told", *flags,
                                    env={"BPS_TRANSPORT": "tcp", **(settings or {})})
            for rank in ranks:
                rank.wait_line("^reached ([3-9]|..)", LIMIT)
            take(servers, ranks).signal(number)
            signalled, offset = time.time(), time.time() - time.monotonic()
            noticed = instant(scheduler.wait_line(notices, LIMIT))
            # Two more rounds that everyone says are over.
            for rank in ranks:
                count = len(rank.lines)
                while len(rank.lines) < count + 2 and rank.process.poll() is None:
                    cluster.pause()
            ranks[0].say()
            ends, usual = [], []
            for rank in ranks:
                cluster.assert_status(rank, 0, "closed", limit=LIMIT)
                ends.append(float(re.search(r"longest \d+ \S+ (\S+)", rank.text())[1]) + offset)
                usual.append(float(re.search(r"usual (\S+)", rank.text())[1]) / 1e3)
            return noticed - signalled, after(noticed, ends), max(usual)
    except AssertionError as failure:
        raise NotMeasured(" / ".join(str(failure).splitlines()[:4])) from None


def after(noticed, ends):
    """Seconds until the last rank has ended its longest round, which is the one that was interrupted if it ends then."""
    seconds = max(ends) - noticed
    if seconds < 0:
        raise NotMeasured(f"no rank's longest round was the interrupted one: the last ended {-seconds:.3f} s too early")
    return seconds


def instant(line):
    """Of a line of a log, in seconds of the epoch."""
    text, milliseconds = re.match(r"(\S+ \S+)\.(\d{3}) ", line).groups()
    return calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M:%S")) + int(milliseconds) / 1e3
