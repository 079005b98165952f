"""init_process_group("bps"): every call of torch.distributed, training, and what goes wrong; on a cluster that is named and on one
of its own."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import bps
import netlab
import torch
from bps.torch.backend import cluster
from bps.torch.backend.meeting import Meeting
from harness import HERE, WorkerTest

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdigit())
IS_NEW = VERSION >= (2, 6)
needs_a_new_torch = unittest.skipUnless(
    IS_NEW, f"not run: torch {torch.__version__} takes no backend written in Python; --torch-latest does")


def keepers_of(rank):
    """Processes that keep daemons which this program has started."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue
            if any(word.endswith(b"_keeper.py") for word in words) and parent == str(rank.process.pid):
                found.append(int(folder.name))
    return found


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class BackendTest(WorkerTest):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.temporary = pathlib.Path(folder.name)

    def assert_nothing_is_left(self):
        """Of folders of daemons that the ranks have started."""
        until = time.monotonic() + 40
        left = []
        while time.monotonic() < until:
            left = list(self.temporary.glob("bps-*/*"))
            if not left:
                return
            self.pause()
        self.fail(f"{left} were left")

    def ranks(self, size, *cases, scheduler=None, **env):
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.free_port())}
        workers = []
        for rank in range(size):
            named = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size), **meeting}
            worker = self.start(f"rank {rank}", sys.executable, "-u", HERE / self.program, *cases, environment={
                "PATH": os.environ["PATH"], "PYTHONPATH": str(HERE.parent), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
                "BPS_LIBRARY": os.environ["BPS_LIBRARY"], "TMPDIR": str(self.temporary), "HOME": os.environ.get("HOME", "/"),
                **({"BPS_SCHEDULER": scheduler.address} if scheduler else {}), **named, **env})
            workers.append(worker)
        return workers

    def assert_right(self, workers, *cases):
        for worker in workers:
            self.assert_status(worker, 0, limit=300)
            for case in cases:
                self.assertIn(f"right: {case}", worker.text())

    def assert_killed(self, case):
        """Rank 1 dies; the others hear so, in time."""
        workers = self.ranks(3, case)
        workers[1].wait_line("under way", 60)
        workers[1].signal(signal.SIGKILL)
        for worker in (workers[0], workers[2]):
            worker.wait_line("told: DistBackendError.*rank 1", 5)
            self.assert_status(worker, 3)


@needs_a_new_torch
class CallsTest(BackendTest):
    program = "backend_worker.py"

    def test_every_call(self):
        scheduler, _ = self.cluster(2)
        for case in ("reductions", "sparse", "copies"):
            self.assert_right(self.ranks(3, case, scheduler=scheduler), case)

    def test_strides_messages_groups(self):
        scheduler, _ = self.cluster(2)
        for case in ("strided", "messages", "several"):
            self.assert_right(self.ranks(3, case, scheduler=scheduler), case)

    @unittest.skipUnless(VERSION >= (2, 14), f"not run: torch {torch.__version__} splits no group of a backend written in Python")
    def test_split_groups(self):
        self.assert_right(self.ranks(3, "split"), "split")

    def test_again_with_the_same_store(self):
        self.assert_right(self.ranks(2, "again"), "again")

    def test_a_call_that_differs(self):
        self.assert_right(self.ranks(3, "mismatch"), "mismatch")

    def test_deadlines(self):
        self.assert_right(self.ranks(3, "deadlines"), "deadlines")

    def test_a_forked_child(self):
        self.assert_right(self.ranks(2, "forked"), "forked")

    def test_daemons_do_not_wait_for_a_child(self):
        workers = self.ranks(2, "leaves_a_child")
        children = [int(worker.wait_line("child [0-9]+", 60).split()[-1]) for worker in workers]
        for child in children:
            self.addCleanup(os.kill, child, signal.SIGKILL)
        for worker in workers:
            self.assertEqual(worker.process.wait(60), 0)  # not end(): the child has its output
        self.assert_nothing_is_left()

    def test_one_rank(self):
        """It needs nothing."""
        self.assert_right(self.ranks(1, "alone"), "alone")

    def test_a_killed_rank(self):
        self.assert_killed("killed")

    def test_nothing_stays(self):
        """Its own daemons end soon after the last rank, however that ends."""
        workers = self.ranks(2, "daemons_of_my_own")
        for worker in workers:
            worker.wait_line("under way", 60)
        keepers = [pid for worker in workers for pid in keepers_of(worker)]
        self.assertEqual(len(keepers), 2)
        for pid in keepers:
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_text()
            self.assertNotRegex(command, r"[0-9a-f]{32}", "a key in a process list")
        workers[0].signal(signal.SIGKILL)
        workers[0].end()
        until = time.monotonic() + 2
        while time.monotonic() < until:
            self.assertTrue(all(map(is_running, keepers)), "rank 0 has taken a daemon down")
            self.pause()
        time_of_end = time.monotonic()
        workers[1].signal(signal.SIGKILL)
        while any(map(is_running, keepers)) and time.monotonic() < time_of_end + 40:
            self.pause()
        self.assertFalse(any(map(is_running, keepers)), "daemons were left")
        self.assert_nothing_is_left()

    def test_a_daemon_is_killed(self):
        """No key is in a file, and what a killed keeper leaves goes with the rank that has started it."""
        workers = self.ranks(2, "daemons_of_my_own")
        for worker in workers:
            worker.wait_line("under way", 60)
        files = [path for path in self.temporary.rglob("*") if path.is_file()]
        self.assertEqual({path.name for path in files}, {"log", "ports"})
        for path in files:
            self.assertNotRegex(path.read_text(), r"[0-9a-f]{64}", f"a key in {path}")
        for pid in [pid for worker in workers for pid in keepers_of(worker)]:
            os.kill(pid, signal.SIGKILL)
        for worker in workers:
            worker.signal(signal.SIGUSR1)
            worker.end()
        self.assert_nothing_is_left()

    def test_a_daemon_ends_after_its_starter(self):
        """Nobody is left who could read its log."""
        workers = self.ranks(2, "daemons_of_my_own")
        for worker in workers:
            worker.wait_line("under way", 60)
        keepers = [pid for worker in workers for pid in keepers_of(worker)]
        daemons = [pid for keeper in keepers for pid in children_of(keeper)]
        self.assertEqual(len(daemons), 2)
        for worker in workers:
            worker.signal(signal.SIGKILL)
            worker.end()
        for pid in daemons:
            os.kill(pid, signal.SIGKILL)
        self.assert_nothing_is_left()

    def test_a_rank_leaves(self):
        self.assert_right(self.ranks(2, "leaves"), "leaves")

    def test_rank_0_dies_as_it_begins(self):
        """It has the store, too."""
        workers = self.ranks(2, "dies_as_it_begins")
        keeper = int(workers[0].wait_line("keeper [0-9]+", 60).split()[-1])
        self.addCleanup(lambda: is_running(keeper) and os.kill(keeper, signal.SIGKILL))
        workers[0].end()
        os.kill(keeper, signal.SIGCONT)
        workers[1].wait_line("told: DistNetworkError: .*the store of torch is gone", 60)
        self.assert_nothing_is_left()

    def test_a_rank_does_not_come(self):
        workers = self.ranks(3, "too_few")
        workers[2].signal(signal.SIGKILL)
        for worker in workers[:2]:
            worker.wait_line("told: .*rank 2 did not call init_process_group", 60)
        self.assert_nothing_is_left()


@needs_a_new_torch
class TrainingTest(BackendTest):
    program = "backend_trainer.py"

    def test_ddp(self):
        self.assert_right(self.ranks(3, "ddp"), "ddp")

    def test_hooks_of_torch(self):
        self.assert_right(self.ranks(2, "hooks"), "hooks")

    def test_fsdp(self):
        self.assert_right(self.ranks(4, "fsdp"), "fsdp")

    def test_other_trainers(self):
        self.assert_right(self.ranks(2, "other_trainers"), "other_trainers")

    def test_compiled(self):
        self.assert_right(self.ranks(2, "compiled"), "compiled")

    def test_checkpoints(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assert_right(self.ranks(2, "checkpoints", CHECKPOINT=folder), "checkpoints")

    def test_in_detail(self):
        """torch checks each call, and drops our half of the group meanwhile."""
        self.assert_right(self.ranks(2, "ddp", TORCH_DISTRIBUTED_DEBUG="DETAIL"), "ddp")

    def test_memory_and_threads(self):
        self.assert_right(self.ranks(2, "steady"), "steady")

    def test_backward_has_a_deadline(self):
        workers = self.ranks(2, "backward_has_a_deadline")
        workers[0].wait_line("told", 60)
        self.assert_status(workers[0], 3)
        workers[1].signal(signal.SIGKILL)

    def torchrun(self, name, *arguments, case):
        return self.start(name, sys.executable, "-m", "torch.distributed.run", *arguments, HERE / self.program, case, environment={
            "PATH": os.environ["PATH"], "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1", "HOME": os.environ.get("HOME", "/"),
            "TMPDIR": str(self.temporary), "BPS_LIBRARY": os.environ["BPS_LIBRARY"]})

    def test_two_hosts(self):
        """A cluster of the job's own has a server on each."""
        why = netlab.why_no_lab()
        if why:
            self.skipTest(f"not run: {why}")
        with netlab.Lab(2) as self.netlab:
            for case in ("ddp", "fsdp"):
                hosts = []
                for self.host in (1, 2):
                    hosts.append(self.torchrun(f"host {self.host}", "--nnodes", "2", "--node-rank", str(self.host - 1),
                                               "--nproc-per-node", "2", "--master-addr", self.netlab.address(1),
                                               "--master-port", "29500", case=case))
                for host in hosts:
                    self.assert_status(host, 0, limit=300)
                    self.assertEqual(host.text().count(f"right: {case}"), 2, host.text())
                self.assertIn("a cluster of this job's own, with 2 servers", hosts[0].text())
            self.assert_nothing_is_left()

    def test_torchrun(self):
        run = self.torchrun("torchrun", "--standalone", "--nproc-per-node", "4", case="ddp")
        self.assert_status(run, 0, limit=300)
        self.assertEqual(run.text().count("right: ddp"), 4, run.text())

    def test_a_killed_rank(self):
        self.assert_killed("killed_in_backward")


class ClusterTest(unittest.TestCase):
    """What needs no process group."""

    def test_programs_beside_the_library_come_first(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for place in ("bin", "scripts"):
                (folder / place).mkdir()
                (folder / place / "bps-server").touch(0o700)
            with unittest.mock.patch.object(cluster._library, "find", lambda: str(folder / "lib" / "libbpsclient.so.0")), \
                    unittest.mock.patch.object(cluster.sysconfig, "get_path", lambda _: str(folder / "scripts")):
                self.assertEqual(cluster.program("bps-server"), str(folder / "bin" / "bps-server"))
                (folder / "bin" / "bps-server").unlink()
                self.assertEqual(cluster.program("bps-server"), str(folder / "scripts" / "bps-server"))

    def test_the_first_error_counts_when_the_store_is_gone(self):
        store = unittest.mock.Mock()
        store.add.return_value = 1
        store.set.side_effect = RuntimeError("connection reset")
        Meeting(store, 0, 1, 1.0).fail(bps.Error(bps.Code.OS, "a daemon has ended"))
        self.assertEqual(store.set.call_count, 1)


class OldTorchTest(unittest.TestCase):
    @unittest.skipIf(IS_NEW, "this torch is new enough")
    def test_says_so(self):
        program = ("import bps.torch, torch.distributed as dist\n"
                   "dist.init_process_group('bps', store=dist.HashStore(), rank=0, world_size=1)")
        run = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(HERE.parent)},
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("too old for the backend bps", run.stdout)
