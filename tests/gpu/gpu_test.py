#!/usr/bin/env python3
"""Real programs with tensors on GPUs: virtual ones, by a libcuda.so.1 of ours (fake_driver.cc), which copies late, and
says what breaks a rule of the driver's.

    gpu_test.py PROGRAM-FOLDER WORKER DRIVER-FOLDER [unittest arguments]
"""
import json
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "process"))
from daemons import DETECTION, LIMIT, LOST, SILENCE, SILENT, DaemonTest, main  # noqa: E402

SHAPES = ("--sizes", "100000,1,300001,17")

# What a machine that is busy makes the library say: kernels are interpreted within calls of the driver.
SLOW = re.compile("has not returned for|in progress for|has waited|still waiting")


class GpuTest(DaemonTest):
    driver = None  # folder of the virtual GPUs' driver

    def environment(self, gpus=1):
        return {"LD_LIBRARY_PATH": str(self.driver), "FAKE_GPUS": str(gpus)}

    def bench(self, *arguments, gpus=1):
        return subprocess.run([self.bin / "bps-bench", *arguments], env=self.environment(gpus), capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=LIMIT)

    def lines(self, *arguments, gpus=1):
        run = self.bench(*arguments, "--json", "-", gpus=gpus)
        said = [line for line in run.stderr.splitlines() if not SLOW.search(line)]
        self.assertEqual((run.returncode, said), (0, []))
        return [json.loads(line) for line in run.stdout.splitlines()]

    def reference(self, size, rounds, *shapes):
        out = subprocess.run([self.worker_program, *shapes, "--rounds", str(rounds), "--reference", str(size)],
                             capture_output=True, text=True, check=True, env={}).stdout
        return re.search(r"^checksum .*$", out, re.M).group(0)


class Workers(GpuTest):
    def test_sums_of_gpus_are_those_of_hosts(self):
        scheduler, _ = self.cluster(2)
        workers = self.workers(scheduler, 3, *SHAPES, "--rounds", "10", "--broadcast", "--device", "cuda",
                               env=self.environment())
        expected = self.reference(3, 10, *SHAPES)
        for worker in workers:
            self.assert_status(worker, 0, f"(?m)^{expected}$", "closed")
            self.assertNotIn("fake driver", worker.text())

    def test_hosts_and_gpus_in_one_job(self):
        scheduler, _ = self.cluster(2)
        workers = [self.worker(scheduler, rank, 2, *SHAPES, "--rounds", "5", *flags, env=self.environment())
                   for rank, flags in enumerate(((), ("--device", "cuda")))]
        expected = self.reference(2, 5, *SHAPES)
        for worker in workers:
            self.assert_status(worker, 0, f"(?m)^{expected}$", "closed")
            self.assertNotIn("fake driver", worker.text())

    def test_ranks_that_have_one_gpu_of_several_are_told(self):
        scheduler, _ = self.cluster()
        also = r"GPU 0 \(Fake 0\), one of 2 that this process sees, is also that of rank [01] of this job: .*BPS_LOCAL_RANK"
        for local_ranks, told in (("00", True), ("01", False)):
            workers = [self.worker(scheduler, rank, 2, *SHAPES, "--device", "cuda",
                                   env={**self.environment(2), "BPS_LOCAL_RANK": local_ranks[rank]}) for rank in range(2)]
            for worker in workers:
                self.assert_status(worker, 0, "closed")
                self.assertLessEqual(worker.text().count("is also that of rank"), 1)
            # Whoever opened it first may have been alone.
            self.assertEqual(any(re.search(also, worker.text()) for worker in workers), told)

    def test_without_a_gpu_the_worker_says_so(self):
        scheduler, _ = self.cluster(1)
        worker = self.worker(scheduler, 0, 1, "--device", "cuda")
        if worker.end() != 0:  # it is 0 where there is a GPU
            self.assertRegex(worker.text(), "no GPU: ")


class Death(GpuTest):
    """A rank with a GPU is lost in the middle: the others say whom, and end in time, with nothing left on theirs."""

    def lose(self, number, limit, noticed):
        scheduler, _ = self.cluster(2)
        workers = self.workers(scheduler, 3, "--rounds", "1000000000", "--elements", "50000", "--tensors", "2", "--announce",
                               "3", "--device", "cuda", env=self.environment())
        for worker in workers:
            worker.wait_line("reached 3")
        since = time.monotonic()
        workers[1].signal(number)
        for worker in (workers[0], workers[2]):
            self.assert_status(worker, 75, "rank 1 .*" + noticed)
            self.assertNotIn("fake driver", worker.text())
        self.assertLess(time.monotonic() - since, limit)
        self.assert_works(scheduler)
        return workers[1]

    def test_killed(self):
        self.lose(signal.SIGKILL, DETECTION, LOST)

    def test_hangs(self):
        stopped = self.lose(signal.SIGSTOP, SILENCE, SILENT)
        stopped.signal(signal.SIGCONT)
        self.assert_status(stopped, 75)


class Examples(GpuTest):
    def test_without_a_gpu_the_configuration_is_wrong(self):
        program = self.bin.parent / "client/examples/train_gpu"
        if not program.exists():
            self.skipTest("the build has no train_gpu: no nvcc was found")
        run = subprocess.run([program], env={"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual((run.returncode, run.stdout), (78, ""), run.stderr)
        self.assertRegex(run.stderr, r"\Atrain_gpu: no GPU.*\n\Z")


class Bench(GpuTest):
    def test_gpu_floor(self):
        run = self.bench("gpu-floor", "--bytes", "1MiB", "--iters", "2", "--json", "-")
        self.assertEqual((run.returncode, run.stderr),
                         (0, "bps-bench: NCCL is not measured: it needs two GPUs, and here is one\n"))
        copies = [line for line in map(json.loads, run.stdout.splitlines()) if line["bench"] == "gpu copy"]
        self.assertEqual(len(copies), 6)
        self.assertTrue(all(line["verified"] for line in copies))

    def test_pushpull(self):
        lines = self.lines("pushpull", "--device", "cuda", "--workers", "2", "--servers", "2", "--bytes", "1MB",
                           "--tensors", "3", "--iters", "3", "--warmup", "1", "--product", "64", gpus=2)
        series = {line["bench"]: line for line in lines if "algbw_GBps" in line}
        self.assertEqual(list(series), ["pushpull", "host", "copies", "pushpull+product"])
        self.assertTrue(all(line["verified"] and line["iters"] == 3 for line in series.values()))
        self.assertEqual((series["pushpull"]["memory"], series["host"]["memory"]), ("cuda", "view"))
        ratios = {(line["between"], line["of"]) for line in lines if line["bench"] == "ratio"}
        self.assertEqual(ratios, {("pushpull/host", "seconds"), ("pushpull/copies", "seconds"),
                                  ("pushpull/slowest stage", "seconds"), ("pushpull+product/product", "products")})
        products = {line["series"]: line for line in lines if line["bench"] == "matrix products"}
        self.assertEqual(set(products), {"product", "pushpull+product"})
        self.assertTrue(all(line["per_s"] > 0 and line["edge"] == 64 for line in products.values()))

    def test_pushpull_in_place_without_product(self):
        lines = self.lines("pushpull", "--device", "cuda", "--workers", "3", "--servers", "1", "--bytes", "400KB",
                           "--iters", "2", "--warmup", "0", "--in-place", "--product", "0", "--dtype", "bf16",
                           "--also", "retain=false;transport=shm")
        self.assertEqual([line["bench"] for line in lines if "algbw_GBps" in line],
                         ["pushpull", "pushpull[retain=false]", "pushpull[transport=shm]", "host", "copies"])
        self.assertTrue(all(line.get("verified", True) for line in lines))

    def test_replay(self):
        lines = self.lines("replay", "--device", "cuda", "--workers", "2", "--servers", "1", "--scale", "0.002", "--goodput",
                           "1gbit", "--iters", "2", "--warmup", "1")
        series = [line for line in lines if line["bench"] == "replay"]
        self.assertEqual([(line["priority"], line["memory"], line["verified"]) for line in series],
                         [(True, "cuda", True), (False, "cuda", True)])

    def test_without_a_gpu_the_configuration_is_wrong(self):
        for environment in (self.environment(0), {"CUDA_VISIBLE_DEVICES": ""}):  # where there is a real one, too
            for arguments in (("gpu-floor",), ("pushpull", "--device", "cuda")):
                with self.subTest(arguments=arguments, environment=environment):
                    run = subprocess.run([self.bin / "bps-bench", *arguments], env=environment, capture_output=True, text=True,
                                         stdin=subprocess.DEVNULL, timeout=LIMIT)
                    self.assertEqual((run.returncode, run.stdout), (78, ""), run.stderr)
                    self.assertRegex(run.stderr, r"\Abps-bench: no GPU: .+; .+\n\Z")

    def test_flags_that_do_not_go_together(self):
        for flags, said in ((("--local-group", "nccl"), "add --device cuda"),
                            (("--device", "cuda", "--local-group", "host"), "use --local-group nccl"),
                            (("--device", "cuda", "--memory", "view"), "--memory is of tensors on the host"),
                            (("--device", "cuda", "--bytes", "4"), "an element for each worker"),
                            (("--device", "cuda", "--product", "100"), "no multiple of 16")):
            with self.subTest(flags):
                run = self.bench("pushpull", *flags)
                self.assertEqual(run.returncode, 64, run.stderr)
                self.assertIn(said, run.stderr)


if __name__ == "__main__":
    GpuTest.driver = pathlib.Path(sys.argv.pop(3)).resolve()
    main("__main__", sys.argv)
