"""Calls on groups from Python, with the real daemons."""
from harness import WorkerTest


class CallsTest(WorkerTest):
    program = "calls_worker.py"

    def test_calls(self):
        for size, env in ((2, {}), (3, {"BPS_TRANSPORT": "tcp"}), (5, {}), (2, {"BPS_RETAIN": "0"}), (1, {})):
            with self.subTest(size=size, **env):
                for worker in self.run_all(size, "calls", servers=2, **env):
                    self.assertIn("right", worker.text())

    def test_messages(self):
        for size, env in ((2, {}), (3, {"BPS_TRANSPORT": "tcp"}), (4, {}), (1, {})):
            with self.subTest(size=size, **env):
                for worker in self.run_all(size, "messages", servers=2, **env):
                    self.assertIn("right", worker.text())

    def test_joins(self):
        for size in (2, 4, 1):
            with self.subTest(size=size):
                for worker in self.run_all(size, "joins", servers=2):
                    self.assertIn("right", worker.text())

    def leaves_nothing(self, *arguments, limit):
        scheduler, servers = self.cluster(2)
        workers = self.python_workers(scheduler, 2, *arguments)
        self.assert_no_growth([scheduler, *servers, *workers], workers, ["warm$", "over$"], limit)

    def test_messages_leave_nothing(self):
        """20,000 of them: 300 bytes for each would be 6 MB."""
        self.leaves_nothing("many_messages", limit=6_000_000)

    def test_groups_with_messages_leave_nothing(self):
        """3,000 of them: 2 KB for each would be 6 MB. A heap may grow by 4 MB at once."""
        self.leaves_nothing("many_groups", limit=6_000_000)
