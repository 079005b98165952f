"""A server with less memory than its jobs want: who asks for too much is refused, and nobody else notices."""
import pathlib
import re
import signal
import sys

from daemons import DaemonTest, main

MIB = 1 << 20
CGROUPS = pathlib.Path("/sys/fs/cgroup")


class Memory(DaemonTest):
    def groups(self):
        """Where a control group with a memory limit may be made, and the name of the file with the limit."""
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory":
                return CGROUPS / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
            if not controllers and (CGROUPS / path.lstrip("/") / "memory.max").exists():
                return CGROUPS / path.lstrip("/"), "memory.max"
        self.skipTest("this process is in no control group with a memory controller")

    def limited_by_group(self, limit):
        folder, name = self.groups()
        group = folder / f"bps-{self.folder.name}-{limit}-{self.count}"
        try:
            group.mkdir()
            self.addCleanup(group.rmdir)
            (group / name).write_text(str(limit))
        except OSError as error:
            self.skipTest(f"no control group can be made here: {error}")
        return "sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', group

    def limited_by_ulimit(self, limit):
        return "sh", "-c", 'ulimit -v "$0" && exec "$@"', limit // 1024

    def only_the_second_job_is_refused(self, under, cause, *flags):
        scheduler = self.scheduler()
        server = self.server(scheduler, *flags, "--memory-max", "64GiB", under=under)
        server.wait_line(f"warn .*--memory-max 64.0 GiB is more than this server can have: {cause} allows")
        first = self.workers(scheduler, 2, "--until-told", "--elements", "100000", job="first")
        for worker in first:
            worker.wait_line("reached")
        for run in range(3):
            second = self.workers(scheduler, 2, "--elements", "150000000", job=f"second{run}")
            for worker in second:
                self.assert_status(worker, 71, rf"tensors of job 'second{run}' from 'weight0' on need 1\.\d GiB; "
                                               rf"\S+ \S+ are reserved, and this server can have \S+ \S+ now: "
                                               rf"\S+ \S+ are left \({cause}\)")
            self.go_on(first)
        # What fits still does.
        for worker in self.workers(scheduler, 2, "--elements", "10000000", "--rounds", "3", job="third"):
            self.assert_status(worker, 0, "closed")
        self.go_on(first)
        first[0].say()
        for worker in first:
            self.assert_status(worker, 0, "done", "closed")
        self.assertIsNone(server.process.poll())

    def test_a_job_that_goes_beyond_ulimit(self):
        for transport in "tcp", "shm":
            with self.subTest(transport=transport):
                self.only_the_second_job_is_refused(self.limited_by_ulimit(900 * MIB), "ulimit -v", "--transport",
                                                    transport)

    def test_workers_that_lend_more_than_the_server_can_map(self):
        """Some lend it theirs, the others go over TCP; what was promised to the tensor is there."""
        for limit, count, some_are_mapped in (300, 8, False), (420, 4, True):
            with self.subTest(limit=limit):
                scheduler = self.scheduler()
                server = self.server(scheduler, under=self.limited_by_ulimit(limit * MIB))
                job = "--elements", str(70 * MIB // 4), "--rounds", "2", "--allocated"
                for worker in self.workers(scheduler, count, *job):
                    self.assert_status(worker, 0, "closed")
                server.wait_line("warn .*cannot map 70.0 MiB of shared memory")
                self.assertEqual("0 bytes are mapped already" not in server.text(), some_are_mapped)
                self.assertNotIn("rounds wait", server.text())

    def test_workers_that_must_lend_more_than_the_server_can_map(self):
        scheduler = self.scheduler()
        self.server(scheduler, under=self.limited_by_ulimit(300 * MIB))
        job = "--elements", str(70 * MIB // 4), "--rounds", "2", "--allocated"
        for worker in self.workers(scheduler, 2, *job, env={"BPS_TRANSPORT": "shm"}):
            self.assert_status(worker, 71, r"transport shm is set, and .*cannot map 70.0 MiB of shared memory",
                               r"ulimit -v.*or set transport auto")

    def test_a_job_that_goes_beyond_the_control_group(self):
        for transport in "tcp", "shm":
            with self.subTest(transport=transport):
                self.only_the_second_job_is_refused(self.limited_by_group(400 * MIB), r"control group \S+",
                                                    "--transport", transport)

    def test_memory_max_is_what_the_limit_allows(self):
        scheduler = self.scheduler()
        server = self.server(scheduler, under=self.limited_by_ulimit(900 * MIB))
        tensors = float(re.search(r" ([\d.]+) MiB for tensors, 64.0 MiB of", server.wait_line("listens on")).group(1))
        self.assertLess(tensors, 840)
        self.assertGreater(tensors, 200)
        server.wait_line("is server 1 of")
        self.assertNotRegex(server.text(), " warn ")

    def is_accepted_after(self, *flags, elements, under=None, limit=None):
        """A job is refused; a server that is started as its error advises, and with nothing more, takes it."""
        job = "--elements", str(elements), "--rounds", "2"
        scheduler = self.scheduler()
        server = self.server(scheduler, *flags, under=under(limit) if under else ())
        refused = self.worker(scheduler, 0, 1, *job)
        self.assert_status(refused, 71, r"tensors of job 'job' from 'weight0' on need")
        server.signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)
        raised = re.search(r"raise (ulimit -v|the memory limit of control group \S+) by (\d+)MiB", refused.text())
        given = re.search(r"give this server (--memory-max) (\w+)", refused.text())
        self.assertTrue(raised or given, refused.text())
        self.assertEqual(bool(raised), under is not None, refused.text())
        self.server(scheduler, *flags, *(given.groups() if given else ()),
                    under=under(limit + int(raised[2]) * MIB) if raised else ())
        self.assert_status(self.worker(scheduler, 0, 1, *job, job="again"), 0, "closed")

    def test_advice_about_memory_max(self):
        for memory_max, budget, shards in ("1MiB", "64MiB", 1), ("64MiB", "64MiB", 3), ("400MiB", "32MiB", 2):
            with self.subTest(memory_max=memory_max):
                self.is_accepted_after("--memory-max", memory_max, "--reorder-budget", budget, "--shards", shards,
                                       elements=50_000_000)
        self.is_accepted_after("--memory-max", "1MiB", elements=120_000)

    def test_advice_about_ulimit(self):
        for flags in (), ("--memory-max", "100MiB"), ("--memory-max", "2GiB"):
            with self.subTest(flags=flags):
                self.is_accepted_after(*flags, elements=150_000_000, under=self.limited_by_ulimit, limit=600 * MIB)

    def test_advice_about_a_control_group(self):
        for flags in (), ("--memory-max", "2GiB"):
            with self.subTest(flags=flags):
                self.is_accepted_after(*flags, elements=60_000_000, under=self.limited_by_group, limit=200 * MIB)

    def test_a_cluster_in_a_program_with_little_address_space(self):
        """What is reserved for the allocations of threads, and used by nobody, leaves no room for tensors."""
        for limit in range(100, 500, 10):
            with self.subTest(limit=limit):
                environment = {"BPS_SCHEDULER": "embedded:", "BPS_RANK": "0", "BPS_WORLD_SIZE": "1"}
                worker = self.start(f"{limit} MiB", *self.limited_by_ulimit(limit * MIB), self.worker_program,
                                    "--elements", "250000", "--rounds", "2", environment=environment)
                self.assert_status(worker, 0, "closed")


if __name__ == "__main__":
    main(__name__, sys.argv)
