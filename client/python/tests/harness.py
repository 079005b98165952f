"""What tests with several workers share: a cluster of the real daemons, and Python programs as workers."""
import os
import pathlib
import sys
from typing import Any, Dict, List

import daemons

HERE = pathlib.Path(__file__).resolve().parent


class WorkerTest(daemons.DaemonTest):
    """`program` is a file of this folder; its first argument names a function of it."""

    program = ""

    def python_worker(self, scheduler: Any, rank: int, size: int, *arguments: str, **env: str) -> Any:
        environment: Dict[str, str] = {
            "PATH": os.environ["PATH"], "PYTHONPATH": str(HERE.parent), "PYTHONDONTWRITEBYTECODE": "1",
            "BPS_LIBRARY": os.environ["BPS_LIBRARY"], "BPS_SCHEDULER": getattr(scheduler, "address", scheduler),
            "BPS_RANK": str(rank), "BPS_WORLD_SIZE": str(size), "BPS_LOCAL_RANK": str(rank), "BPS_LOCAL_SIZE": str(size),
            "OMP_NUM_THREADS": "1", **env}
        return self.start(f"rank {rank}", sys.executable, "-u", "-W", "error::ResourceWarning", HERE / self.program,
                          *arguments, environment=environment)

    def python_workers(self, scheduler: Any, size: int, *arguments: str, **env: str) -> List[Any]:
        return [self.python_worker(scheduler, rank, size, *arguments, **env) for rank in range(size)]

    def run_all(self, size: int, *arguments: str, servers: int = 1, limit: float = daemons.LIMIT, **env: str) -> List[Any]:
        """Workers that all end well; their output is there to be looked at."""
        scheduler, _ = self.cluster(servers)
        workers = self.python_workers(scheduler, size, *arguments, **env)
        for worker in workers:
            self.assert_status(worker, 0, limit=limit)
        return workers

    @staticmethod
    def resident(process: Any) -> int:
        status = pathlib.Path(f"/proc/{process.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def assert_no_growth(self, processes: List[Any], workers: List[Any], lines: List[str], limit: int) -> None:
        """Each worker prints the two lines, and reads one after each. Between them no process grows by `limit` bytes."""
        sizes = []
        for line in lines:
            for worker in workers:
                worker.wait_line(line)
            sizes.append([self.resident(process) for process in processes])
            for worker in workers:
                worker.say()
        for worker in workers:
            self.assert_status(worker, 0)
        for before, after in zip(*sizes):
            self.assertLess(after - before, limit, sizes)

    def assert_told(self, worker: Any, status: int, pattern: str, limit: float = daemons.SILENCE) -> None:
        """A worker says why it ends, so soon; how long a process with PyTorch in it takes to be gone is not ours."""
        worker.wait_line(pattern, limit)
        self.assert_status(worker, status)
