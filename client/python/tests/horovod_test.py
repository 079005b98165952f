"""Horovod's API in bps.torch, with two and three workers."""
from torch_test import CasesTest

_OPERATIONS = ("gathers", "scatters", "exchanges", "broadcasts", "grouped", "factors", "gradients", "sparse", "compressors",
               "renamed", "batch_norm", "answers", "of_byteps", "process_sets", "begun_again", "gathers")


class HorovodTest(CasesTest):
    program = "horovod_worker.py"

    def test_two(self):
        self.cases(2, *_OPERATIONS, servers=2)

    def test_three(self):
        self.cases(3, *_OPERATIONS)

    def test_hosts(self):
        """Three ranks on two hosts, and two."""
        for size, first in ((3, 2), (2, 1)):
            scheduler, _ = self.cluster()
            workers = [self.python_worker(scheduler, rank, size, f"hosts:{first}",
                                          BPS_LOCAL_RANK=str(rank if rank < first else rank - first),
                                          BPS_LOCAL_SIZE=str(first if rank < first else size - first)) for rank in range(size)]
            for worker in workers:
                self.assert_status(worker, 0)


class DifferencesTest(CasesTest):
    program = "differences_worker.py"

    def test_ranks_that_differ(self):
        for size in (2, 3):
            self.cases(size, "mismatches", "under_way", "gathers")
            for group in ("off", "host"):
                self.cases(size, "late", BPS_OPERATION_TIMEOUT="2s", BPS_LOCAL_GROUP=group)

    def test_a_rank_is_killed(self):
        for how in ("allgather", "join"):
            for size in (2, 3):
                scheduler, _ = self.cluster()
                workers = self.python_workers(scheduler, size, f"killed:{how}")
                workers[1].end()
                for rank in range(size):
                    if rank != 1:
                        self.assert_told(workers[rank], 75, "rank 1")


class JoinTest(CasesTest):
    program = "joins_worker.py"

    def test_join(self):
        for size in (2, 3):
            self.cases(size, "joins", "gathers")
            self.cases(size, "joins_in_any_order", "gathers")
            self.cases(size, "joins_after_refused_names", "joins_while_one_sleeps")
        self.cases(3, "joins_before_a_slow_rank")

    def test_join_after_a_loss(self):
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 5, "joins_after_a_loss", BPS_WORKER_LOSS="shrink")
        for rank, worker in enumerate(workers):
            self.assert_status(worker, -9 if rank in (1, 2) else 0)


class RandomTest(CasesTest):
    program = "random_worker.py"

    def test_programs(self):
        for size in (2, 3, 5):
            self.cases(size, f"programs:{size}:12", servers=2)
