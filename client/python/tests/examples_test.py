"""The examples, as a user runs them."""
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

from harness import HERE, WorkerTest

EXAMPLES = HERE.parent / "examples"


class ExamplesTest(WorkerTest):
    def run_example(self, workers, name, *flags, status=0, **more):
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE.parent), "BPS_LIBRARY": os.environ["BPS_LIBRARY"],
                       "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", **more}
        run = subprocess.run([str(word) for word in (self.bin / "bps-run", "-n", workers, "-s", "2", "--", sys.executable,
                                                     EXAMPLES / name, *flags)],
                             env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        self.assertEqual(run.returncode, status, run.stdout)
        return run.stdout

    def train(self, *flags):
        """The digest of the parameters; they are alike on all ranks, and the loss has fallen."""
        output = self.run_example(2, "train_transformer.py", "--steps", "25", "--width", "32", "--check", *flags)
        first, last = map(float, re.search(r"loss from ([\d.]+) to ([\d.]+)", output).groups())
        self.assertGreater(first, 5.3)
        self.assertLess(last, 3.7, output)
        return re.search(r"bit-identical on all 2 ranks \((\w+)\)", output).group(1)

    def test_transformer(self):
        with tempfile.TemporaryDirectory() as folder:
            plot = pathlib.Path(folder) / "loss.png"
            self.train("--with", "hook", "--plot", str(plot))
            content = plot.read_bytes()
        self.assertEqual((content[:8], struct.unpack(">II", content[16:24])), (b"\x89PNG\r\n\x1a\n", (640, 360)))
        self.train("--backend", "gloo")
        self.assertEqual(self.train("--with", "optimizer"), self.train("--with", "layers"))

    def test_a_gpu_that_is_not_there(self):
        output = self.run_example(2, "train_transformer.py", "--device", "cuda", status=78, CUDA_VISIBLE_DEVICES="")
        self.assertIn("--device cuda, and PyTorch sees no GPU here", output)

    def test_exchanges(self):
        self.assertEqual(self.run_example(3, "exchanges.py").count("right"), 3)

    def test_horovod_script(self):
        self.assertIn("accuracy", self.run_example(2, "horovod_style.py", "--epochs", "1"))
        self.assertIn("accuracy", self.run_example(2, "horovod_style.py", "--epochs", "1", "--fp16-allreduce"))

    def test_horovod_script_differs_by_its_import(self):
        lines = (EXAMPLES / "horovod_style.py").read_text().splitlines()
        self.assertEqual([line for line in lines if re.search(r"\bbps\b(?!-run)", line)],
                         ["import bps.torch as hvd  # was: import horovod.torch as hvd"])
