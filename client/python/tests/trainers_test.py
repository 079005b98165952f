"""Trainers that people use, over the backend "bps": their examples, as a user runs them."""
import importlib.util
import os
import re
import subprocess
import sys
import unittest

import torch
from harness import HERE, WorkerTest

IS_NEW = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdigit()) >= (2, 6)


def needs(package):
    reason = f"not run: torch {torch.__version__} is too old" if not IS_NEW else f"not run: there is no package {package}"
    return unittest.skipUnless(IS_NEW and importlib.util.find_spec(package), reason)


class TrainersTest(WorkerTest):
    def train(self, program, *launcher):
        """On two ranks; the losses of rank 0, which have fallen."""
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE.parent), "BPS_LIBRARY": os.environ["BPS_LIBRARY"],
                       "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "HOME": str(self.folder),
                       "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        run = subprocess.run([sys.executable, *launcher, HERE.parent / "examples" / program], env=environment, cwd=self.folder,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400)
        self.assertEqual(run.returncode, 0, run.stdout)
        lines = re.findall(r"^bps: loss from ([\d.]+) to ([\d.]+)", run.stdout, re.M)
        self.assertEqual(len(lines), 1, run.stdout)
        first, last = map(float, lines[0])
        self.assertLess(last, first / 3, run.stdout)

    def torchrun(self, program):
        self.train(program, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")

    @needs("accelerate")
    def test_accelerate(self):
        self.torchrun("with_accelerate.py")

    @needs("transformers")
    def test_transformers(self):
        self.torchrun("with_transformers.py")

    @needs("lightning")
    def test_lightning(self):
        self.torchrun("with_lightning.py")
        self.train("with_lightning.py")
