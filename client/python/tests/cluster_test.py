"""Several Python workers with the real daemons: sums, and every way in which a step can end badly."""
import signal

from harness import WorkerTest


class ClusterTest(WorkerTest):
    program = "numpy_worker.py"

    def test_kvstore(self):
        for worker in self.run_all(3, "kvstore", servers=2):
            self.assertIn("right", worker.text())

    def test_and_or_xor(self):
        for worker in self.run_all(3, "bitwise", servers=2):
            self.assertIn("right", worker.text())

    def test_exchanges(self):
        for size, env in ((2, {}), (3, {"BPS_TRANSPORT": "tcp"}), (5, {}), (3, {"BPS_RETAIN": "0"})):
            with self.subTest(size=size, **env):
                for worker in self.run_all(size, "exchanges", servers=2, **env):
                    self.assertIn("right", worker.text())

    def test_parts(self):
        for size, env in ((2, {}), (3, {"BPS_TRANSPORT": "tcp"}), (5, {}), (3, {"BPS_RETAIN": "0"})):
            with self.subTest(size=size, **env):
                for worker in self.run_all(size, "parts", servers=2, **env):
                    self.assertIn("right", worker.text())

    def test_groups(self):
        for size, env in ((2, {}), (3, {"BPS_TRANSPORT": "tcp"}), (5, {}), (3, {"BPS_RETAIN": "0"})):
            with self.subTest(size=size, **env):
                for worker in self.run_all(size, "groups", servers=2, **env):
                    self.assertIn("right", worker.text())

    def test_group_names(self):
        for worker in self.run_all(4, "group_names", servers=2):
            self.assertIn("right", worker.text())

    def test_scales(self):
        for size, env in ((2, {}), (3, {"BPS_TRANSPORT": "tcp"}), (1, {})):
            with self.subTest(size=size, **env):
                for worker in self.run_all(size, "scales", servers=2, **env):
                    self.assertIn("right", worker.text())

    def test_arrays_of_any_type(self):
        for worker in self.run_all(2, "any_type", servers=2):
            self.assertIn("right", worker.text())

    def test_short_calls(self):
        for size, env in ((2, {}), (3, {"BPS_TRANSPORT": "tcp"}), (2, {"BPS_RETAIN": "0"}), (1, {})):
            with self.subTest(size=size, **env):
                for worker in self.run_all(size, "short_calls", servers=2, **env):
                    self.assertIn("right", worker.text())

    def test_drops_leave_nothing(self):
        """A tensor that stayed would leave no room for the third one."""
        scheduler = self.scheduler()
        daemons = [scheduler, *(self.server(scheduler, "--memory-max", "14MiB", "--shards", "1") for _ in range(2))]
        workers = self.python_workers(scheduler, 3, "drops")
        self.assert_no_growth([*daemons, *workers], workers, ["step 20$", "step 199$"], 16 << 20)

    def test_drops(self):
        """Without a wait between them, over every way to the servers."""
        for env in ({}, {"BPS_TRANSPORT": "tcp"}, {"BPS_LOCAL_GROUP": "host"}):
            with self.subTest(**env):
                self.run_all(3, "drops_without_waiting", servers=2, **env)

    def test_ranks_that_differ_drop_the_tensor_and_go_on(self):
        for env in ({}, {"BPS_LOCAL_GROUP": "host"}):
            with self.subTest(**env):
                self.run_all(3, "quarrel", servers=2, **env)

    def test_one_rank_drops(self):
        for env in ({}, {"BPS_LOCAL_GROUP": "host"}):
            with self.subTest(**env):
                self.run_all(3, "one_drops", servers=2, **env)

    def test_another_shape_on_one_rank(self):
        scheduler, _ = self.cluster()
        for worker in self.python_workers(scheduler, 3, "mismatch"):
            self.assert_status(worker, 78, "weight.*12.*10|weight.*10.*12")

    def test_a_rank_is_killed(self):
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 3, "lost")
        for rank in (0, 2):
            self.assert_told(workers[rank], 75, "rank 1")

    def test_a_rank_dies_of_an_exception(self):
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 3, "raises")
        self.assert_status(workers[1], 1, "a bug of the program")
        for rank in (0, 2):
            self.assert_told(workers[rank], 75, "rank 1")

    def test_a_rank_leaves_a_with_by_an_exception(self):
        """To the others it is lost, and has not left."""
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 3, "raises_in_with")
        self.assert_status(workers[1], 1, "a bug of the program")
        for rank in (0, 2):
            self.assert_told(workers[rank], 75, "rank 1.*lost|lost.*rank 1")

    def test_a_rank_exits_well_in_a_with(self):
        self.run_all(2, "exits_well_in_with")

    def test_a_rank_exits(self):
        """Who exits with another status than 0 has failed; who exits with 0 has left."""
        for how, status, others, what in (("exits_badly", 3, 75, "rank 1.*lost|lost.*rank 1"),
                                          ("exits_with_a_text", 1, 75, "rank 1.*lost|lost.*rank 1"),
                                          ("exits_by_exit", 3, 75, "rank 1.*lost|lost.*rank 1"),
                                          ("exits_by_quit", 3, 75, "rank 1.*lost|lost.*rank 1"),
                                          ("exits_well", 0, 78, "rank 1.*left"),
                                          ("ends_after_an_error_in_a_shell", 0, 78, "rank 1.*left")):
            with self.subTest(how):
                scheduler, _ = self.cluster()
                workers = self.python_workers(scheduler, 3, how)
                self.assert_status(workers[1], status)
                for rank in (0, 2):
                    self.assert_told(workers[rank], others, what)

    def test_another_thread_exits(self):
        for worker in self.run_all(2, "exits_on_another_thread"):
            self.assertNotIn("Traceback", worker.text())

    def test_an_error_that_is_only_the_cause(self):
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 2, "raised_again")
        workers[1].end()
        self.assert_told(workers[0], 75, "hook of the program: the program's own words")

    def test_an_error_inside_a_hook_that_came_later(self):
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 2, "lost_inside_a_hook")
        workers[1].end()
        self.assert_told(workers[0], 75, "collected: .*rank 1")

    def test_an_error_on_another_thread(self):
        scheduler, _ = self.cluster()
        workers = self.python_workers(scheduler, 2, "lost_on_another_thread")
        workers[1].end()
        self.assert_status(workers[0], 0, "the main thread goes on")

    def test_ctrl_c_in_the_middle_of_a_step(self):
        for timeout_s in ("29", "300"):  # it comes long before either, in two ways: a wait that may be long is looked at first
            with self.subTest(timeout_s=timeout_s):
                scheduler, _ = self.cluster()
                workers = self.python_workers(scheduler, 2, "interrupted", timeout_s)
                for worker in workers:
                    worker.wait_line("waiting")
                workers[0].signal(signal.SIGINT)
                self.assert_told(workers[0], -signal.SIGINT, "KeyboardInterrupt", limit=20)
                self.assertNotIn("_interrupt.py", workers[0].text())
                self.assert_told(workers[1], 75, "rank 0")

    def test_an_expired_wait(self):
        workers = self.run_all(2, "expired")
        self.assertRegex(workers[0].text(), r"waited 0.3 s for round 0 of second: 1 of 2 pushed, missing rank 1")
