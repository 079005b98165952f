"""bps.torch with several workers: bits, shapes, accumulation, and how it ends when something goes wrong."""
import os
import re
import signal
import sys

from harness import HERE, WorkerTest


class CasesTest(WorkerTest):
    def cases(self, size, *cases, servers=1, **env):
        for worker in self.run_all(size, *cases, servers=servers, **env):
            for case in cases:
                self.assertIn("right: " + case, worker.text())


class TorchTest(CasesTest):
    program = "torch_worker.py"

    def test_operations(self):
        """Every type and stride, what all begin with, and what is refused."""
        self.cases(3, "types", "strides", "compressed", "differentiable", "dropped", "under_other_names", "many_at_once",
                   "begin_alike", "not_possible", "another_shape", "another_model:optimizer", "another_model:frozen",
                   "another_model:broadcast", "types", servers=2)

    def test_optimizer(self):
        """Parameters against one process that adds the gradients in rank order, bit for bit."""
        self.cases(4, "optimizer:sgd:barrier:1:8", "optimizer:adam:barrier:3:6", "optimizer:sgd:layers:1:12",
                   "optimizer:adam:layers:2:12", "clipping", "scaled", "tied", "expanded", "gan", "copied", "added", "refusals",
                   "changed_under_way", "too_many_passes", servers=2)

    def test_compiled(self):
        """A compiler runs in it, in every rank: slow on a busy machine."""
        self.cases(2, "compiled", limit=600)

    def test_a_program_that_forgets_init(self):
        worker = self.start("worker", sys.executable, "-c", "import bps.torch; bps.torch.rank()",
                            environment={"PYTHONPATH": str(HERE.parent), "BPS_LIBRARY": os.environ["BPS_LIBRARY"]})
        self.assert_status(worker, 64, "bps.torch is not in a job .*call bps.torch.init")

    def test_nothing_is_left_of_ten_thousand_steps(self):
        self.cases(1, "flat")

    def test_folds(self):
        """What belongs to a model and optimizer that are gone goes, on the servers, too."""
        scheduler = self.scheduler()
        servers = [self.server(scheduler, "--memory-max", "6MiB", "--shards", "1") for _ in range(2)]
        workers = self.python_workers(scheduler, 2, "folds:40")
        self.assert_no_growth([*servers, *workers], workers, ["fold 10$", "fold 39$"], 12 << 20)

    def test_frozen(self):
        scheduler = self.scheduler()
        self.server(scheduler, "--memory-max", "8MiB", "--shards", "1")
        for worker in self.python_workers(scheduler, 2, "frozen"):
            self.assert_status(worker, 0)

    def test_a_rank_is_killed_in_a_step(self):
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 3, "killed_in_a_step:layers")
        workers[1].end()
        for rank in (0, 2):
            self.assert_told(workers[rank], 75, "rank 1")

    def test_ctrl_c_in_step(self):
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 2, "interrupted")
        for worker in workers:
            worker.wait_line("waiting")
        workers[0].signal(signal.SIGINT)
        self.assert_told(workers[0], -signal.SIGINT, "KeyboardInterrupt")
        self.assert_told(workers[1], 75, "rank 0")

    def test_a_daemon_is_killed_in_the_middle(self):
        """The same bits as without."""
        digests = set()
        for kill in ("nothing", "server", "scheduler"):
            scheduler, servers = self.cluster(2)
            workers = self.python_workers(scheduler, 2, "train_for_killing:500")
            for worker in workers:
                worker.wait_line("middle")
            for process in {"nothing": [], "server": servers[:1], "scheduler": [scheduler]}[kill]:
                process.signal(signal.SIGKILL)
            for worker in workers:
                worker.say()
            for worker in workers:
                self.assert_status(worker, 0)
                digests.add(re.search(r"digest (\w+)", worker.text()).group(1))
        self.assertEqual(len(digests), 1)


class LayersTest(CasesTest):
    program = "layers_worker.py"

    def test_around_the_optimizer(self):
        """Programs that do more with a model and its optimizer than to train them."""
        self.cases(2, "tied", "another_group", "loaded", "dropped", "copied", "passes", "horovods_order")


class OptimizerTest(CasesTest):
    program = "optimizer_worker.py"

    def test_all_optimizers(self):
        """Each of torch.optim against one process, also foreach and fused."""
        self.cases(2, "every_optimizer", "lbfgs", "closures")

    def test_parameters(self):
        """What is there twice, frozen, unused, added, loaded."""
        self.cases(2, "listed_twice", "frozen_and_thawed", "unused_on_a_rank", "accumulated_and_clipped", "passes_that_differ",
                   "two_optimizers", "loaded_on_one_rank", "scaled_with_infinity", "schedulers", "refused_with_a_name")

    def test_arguments_of_horovod(self):
        self.cases(3, "predivided", "groups", "operations", "sets", "sets_that_differ", servers=2)


class SparseTest(CasesTest):
    program = "sparse_worker.py"

    def test_sparse_gradients(self):
        self.cases(3, "sparse", "sparse_on_some_ranks", "sparse_with_others", servers=2)


class EndingsTest(CasesTest):
    program = "endings_worker.py"

    def test_many_models(self):
        """Memory of ranks and servers does not grow."""
        scheduler = self.scheduler()
        servers = [self.server(scheduler, "--memory-max", "20MiB", "--call-memory", "8MiB", "--shards", "1") for _ in range(2)]
        workers = self.python_workers(scheduler, 2, "many:200")
        self.assert_no_growth([*servers, *workers], workers, ["model 50$", "model 199$"], 12 << 20)

    def test_a_rank_is_killed(self):
        for how in ("barrier", "sparse", "lbfgs", "set"):
            scheduler, _ = self.cluster()
            workers = self.python_workers(scheduler, 3, f"killed:{how}")
            workers[1].end()
            for rank in (0, 2):
                self.assert_told(workers[rank], 75, "bps.errors.Error: .*rank 1")

    def test_the_scheduler_is_killed_for_good(self):
        """Longer than the ranks go on without it."""
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 2, "killed:nobody", BPS_SCHEDULER_GRACE="0s")
        for worker in workers:
            worker.wait_line("middle")
        scheduler.signal(signal.SIGKILL)
        for worker in workers:
            self.assert_told(worker, 75, "bps.errors.Error: .*scheduler")


class AsynchronousTest(CasesTest):
    program = "async_worker.py"

    def test_training(self):
        self.cases(2, "converges", "adds_all_changes", "values_of_the_client", "not_possible", servers=2)

    def test_nobody_is_farther_ahead_than_allowed(self):
        for ahead in (0, 3):
            scheduler, _ = self.cluster()
            workers = self.python_workers(scheduler, 2, f"bounded:{ahead}", BPS_OPERATION_TIMEOUT="3s")
            for worker in workers:
                worker.wait_line("waiting")
            self.assertIn(f"steps {3 + ahead}\n", workers[0].text())
            for worker in workers:
                worker.say()
            for worker in workers:
                self.assert_status(worker, 0)

    def test_a_rank_is_killed(self):
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 3, "killed")
        workers[1].end()
        for rank in (0, 2):
            self.assert_told(workers[rank], 75, "rank 1")

    def test_a_server_is_killed(self):
        scheduler, servers = self.cluster(2)
        workers = self.python_workers(scheduler, 2, "through_the_loss_of_a_server")
        for worker in workers:
            worker.wait_line("middle")
        servers[0].signal(signal.SIGKILL)
        for worker in workers:
            worker.say()
        for worker in workers:
            self.assert_status(worker, 0)
