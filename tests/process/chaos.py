#!/usr/bin/env python3
"""Real daemons and a job whose sums are known, and faults at random moments:

    chaos.py [--rounds N] [--seed S] [--transport tcp|shm] [--build-dir DIR] [--verbose]

Round i draws its plan from seed S + i. The job must end with the checksum of a run without faults on all ranks, also when the
scheduler is killed and started again, or, where a worker, the scheduler for good or all servers are killed, with the error that names them and
status 75 in time. With worker_loss=shrink the others go on without a worker that is killed: each sum has it or lacks it, and their checksums are
the same. It prints "N of N".
"""
import argparse
import collections
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

from chaos_plan import ENDED, PEER_LOST, draw
from daemons import DETECTION, SILENCE, DaemonTest
from netlab import Lab, why_no_lab

HANGS = 180  # seconds that a round may take
COLLECTS = 6  # seconds that a restarted scheduler waits for nodes, besides
JUDGES = 4  # seconds that the scheduler waits for what others say of a link that is cut, and a bit
STALLS_MS = 90_000  # an operation that takes longer fails, and says whom it waits for


def connections(port):
    """Local and remote port of each TCP connection that a server has accepted at `port`."""
    run = subprocess.run(["ss", "-tnH", "state", "established", f"( sport = :{port} )"], capture_output=True, text=True, timeout=20)
    return sorted(re.findall(r":(\d+)\s+\S+:(\d+)", run.stdout))


def cut(local, remote):
    """Both ends of a TCP connection see it reset."""
    subprocess.run(["ss", "-K", "-tnH", "state", "established", f"( sport = :{local} and dport = :{remote} )"],
                   capture_output=True, timeout=20)


def why_no_cuts():
    """Empty where connections of others can be cut: `ss -K` as root, with a kernel built for it."""
    if not shutil.which("ss"):
        return "there is no ss"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as near, listener.accept()[0] as far:
            cut(listener.getsockname()[1], near.getsockname()[1])
            far.settimeout(1)
            try:
                far.recv(1)
            except TimeoutError:
                return "ss -K does nothing here (it needs root, and a kernel with INET_DIAG_DESTROY)"
            except OSError:
                pass
    return ""


class Round(DaemonTest):
    """One job and its faults. On failure an AssertionError; dump() has what everyone said."""

    def __init__(self, plan):
        super().__init__()
        self.plan = plan
        self.processes = []
        self.over = time.monotonic() + HANGS
        self.survivors = []  # ranks that must end well
        self.lost = []  # servers that must be missed
        self.gone = []  # servers that end by themselves, and whether well
        self.held = []  # (moment of SIGCONT, process)
        self.summary = ""
        self.masters = []
        self.given_up = []  # servers at the end of a link that is cut
        self.restarts = any(fault.kind == "restart scheduler" for fault in plan.faults)

    def start(self, name, *command, environment=None):
        process = super().start(name, *command, environment=environment)
        self.processes.append(process)
        return process

    def daemon(self, name, program, *flags, listen="", **arguments):
        return super().daemon(name, program, *flags, listen=listen or f"127.0.0.1:{self.free_port()}", **arguments)

    def server(self, scheduler, *flags, **arguments):
        self.host = self.plan.hosts * (len(getattr(self, "pool", [])) + 1)
        return super().server(scheduler, *flags, **arguments)

    def worker(self, scheduler, rank, size, *flags, **arguments):
        self.host = self.plan.hosts * self.host_of(rank)
        if self.plan.groups:
            name = f"{self.folder}-{int(rank in self.mates(0))}"
            arguments["env"] = {**arguments["env"], "BPS_LOCAL_GROUP": "host", "BPS_LOCAL_GROUP_ID": name}
        return super().worker(scheduler, rank, size, *flags, **arguments)

    def mates(self, rank):
        """Ranks that are lost with this one."""
        if not self.plan.groups:
            return [rank]
        first = range(self.plan.groups[0])
        return first if rank in first else range(self.plan.groups[0], self.plan.workers)

    def host_of(self, rank):
        return 1 + self.plan.servers + rank

    def left(self):
        return max(0.01, self.over - time.monotonic())

    def play(self):
        plan = self.plan
        if plan.hosts:
            self.netlab = self.enterContext(Lab(plan.servers + plan.workers))
        self.master = self.scheduler("--state-dir", self.folder / "state")
        self.masters.append(self.master)
        grace = "20s" if self.restarts else "1s"
        flags = ("--shards", plan.shards, "--transport", plan.transport, "--scheduler-grace", grace)
        self.flags = flags
        self.pool = []
        for _ in range(plan.servers):
            self.pool.append(self.server(self.master, *flags))
        words = ["--sizes", ",".join(map(str, plan.sizes)), "--until-told", "--timeout-ms", STALLS_MS]
        words += ["--priorities"] * plan.priorities + ["--broadcast"] * plan.broadcast
        words += self.group_words()
        words += ["--exchanges"] * plan.exchanges
        words += ["--drop-every", plan.drop_every] if plan.drop_every else []
        environment = {"BPS_TRANSPORT": plan.transport, "BPS_SCHEDULER_GRACE": grace}
        if plan.data_threads:
            environment["BPS_DATA_THREADS"] = str(plan.data_threads)
        if plan.shrinks is not None:
            words += ["--may-lose", plan.shrinks]
            environment |= {"BPS_WORKER_LOSS": "shrink", "BPS_UNEQUAL_SUMS": "1"}
        self.ranks = self.workers(self.master, plan.workers, *words, env=environment)
        if plan.running:
            for rank in self.ranks:
                rank.wait_line("^reached", self.left())
        self.pause(plan.moment)
        self.begin = time.monotonic()
        for fault in plan.faults:
            self.commit(fault)
        if plan.names:
            self.expect_error()
        else:
            self.expect_sums()

    def group_words(self):
        return ["--groups", ",".join(map(str, self.plan.groups))] if self.plan.groups else []

    # ---- faults ----

    def commit(self, fault):
        self.wait_until(time.monotonic() + fault.gap)
        if fault.kind == "kill scheduler":
            self.master.signal(signal.SIGKILL)
            self.killed_at = time.monotonic()
        elif fault.kind == "restart scheduler":
            self.master.signal(signal.SIGKILL)
            self.master.end(self.left())
            self.wait_until(time.monotonic() + fault.hold)
            self.master = self.scheduler("--state-dir", self.folder / "state", listen=self.master.address)
            self.masters.append(self.master)
            self.killed_at = time.monotonic()
        elif fault.kind == "cut control":
            links = connections(self.master.address.rsplit(":", 1)[1])
            if links:
                cut(*links[fault.victim % len(links)])
        elif fault.kind in ("cut link", "mend link", "cut off"):
            self.cut_links(fault)
        elif fault.kind == "kill worker":
            self.ranks[fault.victim].signal(signal.SIGKILL)
            self.killed_at = time.monotonic()
        elif fault.kind == "pause worker":
            self.hold(self.ranks[fault.victim], fault.hold)
        else:
            self.hurt(self.pool[fault.victim], fault)

    def cut_links(self, fault):
        servers = range(self.plan.servers) if fault.kind == "cut off" else [fault.server]
        for server in servers:
            self.netlab.cut(self.host_of(fault.victim), server + 1)
        self.killed_at = time.monotonic()
        if fault.kind == "cut link":
            self.given_up.append(self.pool[fault.server])
        if fault.kind == "mend link":
            self.wait_until(time.monotonic() + fault.hold)
            self.netlab.mend(self.host_of(fault.victim), fault.server + 1)

    def hurt(self, server, fault):
        if fault.kind in ("kill", "restart"):
            server.signal(signal.SIGKILL)
            self.killed_at = time.monotonic()
            self.lost.append(server)
            self.gone.append((server, -signal.SIGKILL))
            if fault.kind == "restart":
                server.end(self.left())  # it has its port until then
                self.pool.append(self.server(self.master, *self.flags, listen=server.address))
        elif fault.kind == "drain":
            server.signal(signal.SIGTERM)
            self.gone.append((server, 0))
        elif fault.kind == "cut":
            lanes = connections(server.address.rsplit(":", 1)[1])
            if lanes:
                cut(*lanes[len(lanes) // 2])
        else:
            self.hold(server, fault.hold)
            if fault.kind == "stop":
                self.lost.append(server)
                self.gone.append((server, None))

    def hold(self, process, seconds):
        process.signal(signal.SIGSTOP)
        self.held.append((time.monotonic() + seconds, process))

    def wait_until(self, moment):
        """Meanwhile those that are held go on when it is their time."""
        while True:
            now = time.monotonic()
            for when, process in [held for held in self.held if held[0] <= now]:
                process.signal(signal.SIGCONT)
                self.held.remove((when, process))
            if now >= moment:
                return
            self.pause(max(0.0, min([moment, *(when for when, _ in self.held)]) - now))

    # ---- what must come of them ----

    def expect_sums(self):
        self.wait_until(max([time.monotonic(), *(when for when, _ in self.held)]))
        for server in self.lost:
            self.wait_said(rf"server \d+ .*{re.escape(server.address)}.*(?:dead|lost|gone|died|silent)")
        for server in self.given_up:
            self.wait_said(rf"server \d+ .*{re.escape(server.address)}.* is given up: its link to rank \d+ .* is cut")
        if self.plan.hosts and self.plan.shrinks is not None:
            self.assert_status(self.ranks[self.plan.shrinks], PEER_LOST, "your links to server .* are cut", limit=self.left())
        lost = [] if self.plan.shrinks is None else self.mates(self.plan.shrinks)
        for number in lost:
            if number != self.plan.shrinks:
                self.assert_status(self.ranks[number], PEER_LOST, rf"rank {self.plan.shrinks}\b", limit=self.left())
        self.survivors = [rank for number, rank in enumerate(self.ranks) if number not in lost]
        self.progress()
        self.pause(self.plan.rest)
        self.ranks[0].say()
        checksums = collections.Counter()
        for rank in self.survivors:
            self.assert_status(rank, ENDED, "^closed$|\nclosed$", limit=self.left())
            checksums[re.search(r"checksum (.*)", rank.text())[1]] += 1
        self.assertEqual(len(checksums), 1, f"checksums differ: {checksums}")
        checksum = next(iter(checksums))
        rounds = checksum.split()[0]
        if self.plan.shrinks is None:
            reference = self.start("a run without faults", self.worker_program, "--reference", self.plan.workers, "--rounds",
                                   rounds, "--sizes", ",".join(map(str, self.plan.sizes)), *self.group_words())
            self.assert_status(reference, 0, rf"checksum {checksum}$", limit=self.left())
        longest = max(float(re.search(r"longest \d+ (\S+)", rank.text())[1]) for rank in self.survivors)
        self.summary = f"{rounds} rounds, the longest {longest:.0f} ms"
        self.expect_ends()

    def wait_said(self, pattern):
        """By any of the schedulers."""
        until = time.monotonic() + min(SILENCE + COLLECTS * self.restarts + JUDGES * self.plan.hosts, self.left())
        while not any(re.search(pattern, master.text()) for master in self.masters):
            self.assertLess(time.monotonic(), until, f"no scheduler says {pattern}:\n{self.master.text()}")
            self.pause()

    def progress(self):
        """All ranks finish rounds that began after this moment."""
        seen = [len(rank.lines) for rank in self.survivors]
        for rank, count in zip(self.survivors, seen):
            while len(rank.lines) < count + 2:
                if rank.process.poll() is not None or self.left() < 0.02:
                    raise AssertionError(f"{rank.name} {'has ended' if self.left() > 0.02 else 'hangs'}")
                self.pause()

    def expect_error(self):
        # Whoever is stopped goes on first: the error need not be known to it before.
        self.wait_until(max([time.monotonic(), *(when for when, _ in self.held)]))
        scheduler_died = "scheduler" in self.plan.names
        names = re.escape(self.master.address) if scheduler_died else self.plan.names
        victims = [self.ranks[fault.victim] for fault in self.plan.faults if fault.kind == "kill worker"]
        for rank in self.ranks:
            if rank in victims:
                continue
            self.assert_status(rank, PEER_LOST, names, limit=self.left())
        took = time.monotonic() - self.killed_at
        is_loud = not self.plan.hosts and all(not fault.hold for fault in self.plan.faults)
        limit = DETECTION if is_loud else SILENCE
        limit += COLLECTS * self.restarts + JUDGES * self.plan.hosts
        self.assertLess(took, limit, "seconds until all had the error")
        self.summary = f"all told in {took:.2f} s"
        if scheduler_died:
            drained = [server for server, status in self.gone if status == 0]  # in time, or not any more
            for server in self.pool:
                status = server.end(self.left())
                if server not in drained:
                    self.assertNotEqual(status, 0)
        else:
            self.expect_ends()

    def expect_ends(self):
        """Those that were killed or drained have ended as they should, the others do when they are told."""
        for server, status in self.gone:
            if status is None:
                self.assertNotEqual(server.end(self.left()), 0, f"{server.name} was dead, and does not know:\n{server.text()}")
            else:
                self.assert_status(server, status, limit=self.left())
        ended = [server for server, _ in self.gone]
        for daemon in (*(server for server in self.pool if server not in ended), self.master):
            self.assertIsNone(daemon.process.poll(), f"{daemon.name} has ended:\n{daemon.text()}")
            daemon.signal(signal.SIGTERM)
            self.assert_status(daemon, 0, limit=self.left())

    def dump(self):
        for process in self.processes:
            status = process.process.poll()
            print(f"---- {process.name} {getattr(process, 'address', '')}: {'runs' if status is None else status}")
            reached = [line for line in process.text().splitlines() if line.startswith("reached")]
            print("\n".join(line for line in process.text().splitlines() if line not in reached[1:-3]))
            if status is None and self.left() < 1 and shutil.which("gdb"):
                stacks = subprocess.run(["gdb", "-p", str(process.process.pid), "-batch", "-ex", "thread apply all bt 12"],
                                        capture_output=True, text=True, timeout=60)
                print("\n".join(line for line in stacks.stdout.splitlines() if line.startswith(("#", "Thread"))))


def run_round(seed, arguments, can_cut, can_link):
    """Whether it went well."""
    plan = draw(seed, arguments.transport, can_cut, can_link)
    test, began, failure = Round(plan), time.monotonic(), None
    test.setUp()
    try:
        try:
            test.play()
        except Exception as error:  # whatever it is, the round has failed and the others go on
            failure = error
        took = time.monotonic() - began
        print(f"seed {seed}: {plan}: {'FAILED' if failure else test.summary} ({took:.1f} s)", flush=True)
        if failure or arguments.verbose:
            test.dump()
    finally:  # also after Ctrl-C
        test.doCleanups()
    if failure:
        transport = f" --transport {arguments.transport}" if arguments.transport else ""
        text = str(failure).splitlines()
        print(f"seed {seed}: {type(failure).__name__}: {' '.join(text[:12])}\n"
              f"again: python3 tests/process/chaos.py --seed {seed} --rounds 1 --verbose{transport}", flush=True)
    return not failure


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(prog="chaos.py", description="Real daemons, a real job, and faults at random moments.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--transport", choices=("tcp", "shm"), default="", help="both if not given")
    parser.add_argument("--build-dir", type=pathlib.Path, default=root / "build")
    parser.add_argument("--verbose", action="store_true", help="all that everyone says, also where nothing failed")
    arguments = parser.parse_args()
    DaemonTest.bin = arguments.build_dir.resolve() / "bin"
    DaemonTest.worker_program = arguments.build_dir.resolve() / "tests/process/process_worker"
    for program in (DaemonTest.bin / "bps-server", DaemonTest.worker_program):
        if not program.exists():
            print(f"chaos.py: {program} is not there; build it: bash tests/run.sh --quick", file=sys.stderr)
            return 78
    if reason := why_no_cuts():
        print(f"no lane is cut (a server is killed instead): {reason}")
    if no_lab := why_no_lab():
        print(f"no link is cut: {no_lab}")
    seeds = range(arguments.seed, arguments.seed + arguments.rounds)
    good = sum(run_round(seed, arguments, not reason, not no_lab) for seed in seeds)
    print(f"{good} of {len(seeds)}")
    return 0 if good == len(seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
