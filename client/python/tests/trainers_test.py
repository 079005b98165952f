"""Trainers that people use, over the backend "bps": their examples, as a user runs them, and what else they do, as with gloo."""
import importlib.util
import os
import re
import subprocess
import sys
import unittest

import torch
from harness import HERE, WorkerTest

EXAMPLES = HERE.parent / "examples"
IS_NEW = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdigit()) >= (2, 6)


def needs(package):
    reason = f"not run: torch {torch.__version__} is too old" if not IS_NEW else f"not run: there is no package {package}"
    return unittest.skipUnless(IS_NEW and importlib.util.find_spec(package), reason)


class TrainersTest(WorkerTest):
    def python(self, *arguments, folder=None):
        """What it prints."""
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE.parent), "BPS_LIBRARY": os.environ["BPS_LIBRARY"],
                       "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "HOME": str(self.folder),
                       "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        run = subprocess.run([sys.executable, *arguments], env=environment, cwd=folder or self.folder, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=400)
        self.assertEqual(run.returncode, 0, run.stdout)
        return run.stdout

    def torchrun(self, *arguments, **more):
        return self.python("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *arguments, **more)

    def assert_trained(self, output):
        lines = re.findall(r"^bps: loss from ([\d.]+) to ([\d.]+)", output, re.M)
        self.assertEqual(len(lines), 1, output)
        first, last = map(float, lines[0])
        self.assertLess(last, first / 3, output)

    def assert_as_with_gloo(self, trainer):
        results = {}
        for backend in ("bps", "gloo"):
            folder = self.folder / backend
            folder.mkdir()
            output = self.torchrun(HERE / "trainers_worker.py", trainer, backend, folder=folder)
            results[backend] = re.findall(r"^result: .*", output, re.M)
            self.assertTrue(results[backend], output)
        self.assertEqual(results["bps"], results["gloo"])

    @needs("accelerate")
    def test_accelerate(self):
        self.assert_trained(self.torchrun(EXAMPLES / "with_accelerate.py"))
        self.assert_as_with_gloo("accelerate")

    @needs("transformers")
    def test_transformers(self):
        self.assert_trained(self.torchrun(EXAMPLES / "with_transformers.py"))
        self.assert_as_with_gloo("transformers")

    @needs("lightning")
    def test_lightning(self):
        self.assert_trained(self.torchrun(EXAMPLES / "with_lightning.py"))
        self.assert_trained(self.python(EXAMPLES / "with_lightning.py"))  # it starts the ranks itself
        self.assert_as_with_gloo("lightning")
