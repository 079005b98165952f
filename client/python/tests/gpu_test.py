"""bps and bps.torch with tensors on virtual GPUs, several workers, and real servers."""
import os
import signal

import daemons
from harness import WorkerTest


class GpuTest(WorkerTest):
    program = "gpu_worker.py"

    def gpus(self, number=1):
        return {"LD_LIBRARY_PATH": os.environ["VIRTUAL_GPU_DRIVER"], "FAKE_GPUS": str(number)}

    def cases(self, size, *cases, servers=2, gpus=1, **env):
        for worker in self.run_all(size, *cases, servers=servers, **self.gpus(gpus), **env):
            for case in cases:
                self.assertIn("right: " + case, worker.text())
            self.assertNotIn("fake driver", worker.text())

    def test_operations(self):
        self.cases(3, "types", "views", "compressed", "hosts_and_gpus", "begin_alike", "calls_of_groups", "without_host_memory:0",
                   "types")

    def test_streams(self):
        self.cases(2, "queued_work_comes_first", "streams_wait", "copies_are_waited_for", "copies_have_a_deadline", "queued_work_comes_first")

    def test_which_gpu(self):
        self.cases(2, "without_host_memory:local rank", gpus=2)
        self.cases(2, "without_host_memory:1", gpus=2, BPS_CUDA_DEVICE="1")

    def test_core(self):
        self.cases(2, "core", "dropped")

    def test_optimizer(self):
        self.cases(2, "optimizer:1", "optimizer:2", "optimizer_compressed", "optimizer_compressed_moves")

    def test_hook(self):
        self.cases(2, "hook:float32", "hook:bfloat16", "hook:float16", "hook_compressed")

    def test_refusals(self):
        self.cases(1, "refusals", gpus=2)

    def test_a_rank_is_lost(self):
        for number, limit in ((signal.SIGKILL, daemons.DETECTION), (signal.SIGSTOP, daemons.SILENCE)):
            with self.subTest(number):
                scheduler, _ = self.cluster()
                workers = self.python_workers(scheduler, 3, "for_ever", **self.gpus())
                for worker in workers:
                    worker.wait_line("running")
                workers[1].signal(number)
                for rank in (0, 2):
                    self.assert_told(workers[rank], 75, "rank 1", limit)
                    self.assertNotIn("fake driver", workers[rank].text())

    def test_without_a_driver(self):
        """Tensors that say they are on a GPU, where there is no libcuda.so.1."""
        scheduler, _ = self.cluster()
        worker, = self.python_workers(scheduler, 1, "no_driver")
        self.assert_status(worker, 78, "no GPU|libcuda.so.1")
