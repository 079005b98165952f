"""The communication hook under DistributedDataParallel, with several workers, and under torchrun and bps-run."""
import os
import signal
import subprocess
import sys

import daemons
from harness import HERE, WorkerTest

CASES = ("several_buckets", "unused_on_some_ranks", "accumulation", "two_models", "two_types", "another_process_group",
         "as_the_readme_says", "unequally_many", "close_to_gloo")


class HookTest(WorkerTest):
    program = "ddp_worker.py"

    def test_under_bps_run(self):
        """Parameters against one process that adds the gradients in rank order, bit for bit."""
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1",
                       "BPS_LIBRARY": os.environ["BPS_LIBRARY"]}
        run = subprocess.run([self.bin / "bps-run", "-n", "4", "-s", "2", "--", sys.executable, HERE / self.program, *CASES],
                             env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        self.assertEqual(run.returncode, 0, run.stdout)
        for rank in range(4):
            for case in CASES:
                self.assertIn(f"[worker {rank}] right: {case}", run.stdout)

    def test_under_torchrun(self):
        scheduler, _ = self.cluster()
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1",
                       "BPS_LIBRARY": os.environ["BPS_LIBRARY"], "BPS_SCHEDULER": scheduler.address}
        # --redirects and --tee: with their defaults torchrun of Debian 12 (torch 1.13 on Python 3.11) does not start.
        run = self.start("torchrun", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
                         "--redirects", "1", "--tee", "1", HERE / self.program, "accumulation", environment=environment)
        self.assert_status(run, 0)
        self.assertEqual(run.text().count("right: accumulation"), 2)

    def test_a_rank_is_killed_in_a_step(self):
        """backward() of the others raises what happened, and they end as that wants."""
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 3, "killed_in_a_step")
        workers[1].end()
        for rank in (0, 2):
            self.assert_told(workers[rank], 75, "Error.*rank 1")

    def test_ctrl_c_in_backward(self):
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 2, "alone_in_a_step")
        workers[0].wait_line("waiting")
        workers[0].signal(signal.SIGINT)
        workers[0].wait_line("KeyboardInterrupt", daemons.SILENCE)
        # PyTorch makes this of it where the hook has not returned yet.
        in_hook = "RuntimeError: KeyboardInterrupt" in workers[0].text()
        self.assert_status(workers[0], 1 if in_hook else -signal.SIGINT)
        workers[1].say()
        self.assert_told(workers[1], 75, "rank 0")

    def test_backward_has_a_deadline(self):
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 2, "alone_in_a_step", BPS_OPERATION_TIMEOUT="3s")
        workers[0].wait_line("waiting")
        self.assert_told(workers[0], 75, "bps.errors.Error: .*(rank 1|the scheduler has not said whom it waits for)")
        workers[1].say()
        self.assert_told(workers[1], 75, "rank 0")

    def test_the_process_group_notices_first_that_a_rank_is_killed(self):
        """Its error is not one of bps, and the job has lost a worker all the same."""
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 3, "killed_at_a_barrier_of_the_process_group")
        workers[1].end()
        for rank in (0, 2):
            self.assert_told(workers[rank], 75, "RuntimeError")

    def test_a_mistake_of_the_program_is_one(self):
        scheduler, _ = self.cluster()
        worker, = self.python_workers(scheduler, 1, "own_mistake")
        self.assert_status(worker, 1, "RuntimeError: a bug of the program")
