#!/usr/bin/env python3
"""bps-bench with real daemons and tiny sizes: bench_test.py PATH-OF-BPS-BENCH [unittest arguments]"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "process"))
from cluster import heirs_of  # noqa: E402
from netlab import why_no_lab  # noqa: E402

NO_LAB = why_no_lab()
LIMIT = 240  # seconds after which anything is considered to hang
FIELDS = ["bench", "workers", "servers", "bytes", "dtype", "iters", "algbw_GBps", "p50_us", "p99_us", "cpu_s_per_GB",
          "verified", "own_cpu_s_per_GB", "min_us", "max_us", "p50_low_us", "p50_high_us", "idle", "tensors", "link_bps", "colocated"]
LIMITS = ["tstar_s", "t_over_tstar"]  # with links, after these
EXCHANGES = ["push_pull", "broadcast", "reduce", "send", "scatter", "gather", "all_to_all"]
OURS = ["partition_bytes", "retain", "transport", "checksum", "tls", "memory", "local_group", "join_ms", "declare_ms"]  # of a series that is no raw one, after these


class BenchTest(unittest.TestCase):
    bps_bench = None  # path of the program under test

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("BPS_")}
        self.environment["TMPDIR"] = folder.name

    def run_bench(self, *arguments):
        run = subprocess.run([self.bps_bench, *arguments], env=self.environment, stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, timeout=LIMIT)
        self.assert_nothing_left()
        return run

    def lines(self, *arguments):
        run = self.run_bench(*arguments, "--json", "-")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return [json.loads(line) for line in run.stdout.splitlines()]

    def assert_measured(self, line, **expected):
        exchanges = line["bench"].removeprefix("unnamed ") in EXCHANGES
        self.assertEqual(list(line), FIELDS + (LIMITS if line["link_bps"] > 0 else [])
                         + (OURS if exchanges or line["bench"] in ("pushpull", "latency") else [])
                         + (["link_GBps"] if exchanges else []))
        self.assertEqual({key: line[key] for key in expected}, expected)
        self.assertIs(line["verified"], True)
        self.assertGreater(line["algbw_GBps"], 0)
        self.assertGreaterEqual(line["p99_us"], line["p50_us"])
        self.assertGreaterEqual(line["p50_us"], line["min_us"])
        self.assertGreaterEqual(line["max_us"], line["p99_us"])
        self.assertGreater(line["min_us"], 0)
        self.assertGreaterEqual(line["cpu_s_per_GB"], 0)
        self.assertTrue(0 <= line["idle"] <= 1, line["idle"])

    def assert_nothing_left(self):
        """No file, and no process that has inherited this test's TMPDIR."""
        self.assertEqual(list(self.folder.iterdir()), [])
        self.assertEqual(heirs_of(self.folder), [])
        if os.path.isdir("/run/netns"):
            self.assertEqual([name for name in os.listdir("/run/netns") if name.startswith("bps-bench-")
                              and not pathlib.Path("/proc", name.split("-")[2]).exists()], [])

    def test_local(self):
        for arguments in (["--workers", "3", "--bytes", "100004", "--partition-bytes", "4KiB"],
                          ["--workers", "2", "--bytes", "9000000", "--dtype", "bf16"], ["--workers", "1", "--bytes", "8"]):
            local, allocated, memcpy, *ratios = self.lines("local", "--iters", "3", *arguments)
            self.assert_measured(local, bench="local", servers=0, iters=3)
            self.assert_measured(allocated, bench="local[memory=allocated]", servers=0)
            self.assert_measured(memcpy, bench="memcpy", servers=0)
            self.assertEqual({ratio["between"] for ratio in ratios}, {"local/memcpy", "local[memory=allocated]/memcpy"})

    def test_floor(self):
        (line,) = self.lines("floor", "--workers", "3", "--servers", "2", "--bytes", "100004", "--iters", "4")
        self.assert_measured(line, bench="floor", workers=3, servers=2, bytes=100004, dtype="f32", iters=4)

    def test_distance(self):
        deadline = time.monotonic() + LIMIT
        run = self.run_bench("distance", "--json", "-")
        # On a busy machine, for who may not come first: another attempt finds both CPUs.
        while run.returncode == 75 and time.monotonic() < deadline:
            self.assertIn("two CPUs did not run at the same time", run.stderr)
            run = self.run_bench("distance", "--json", "-")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        line = json.loads(run.stdout)
        self.assertEqual(list(line), ["bench", "cpus", "round_trip_ns", "before_others"])
        self.assertEqual(line["cpus"], len(os.sched_getaffinity(0)))
        if line["cpus"] > 1:
            self.assertTrue(5 < line["round_trip_ns"] < 100_000, line)
        cpus = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, cpus)
        os.sched_setaffinity(0, {min(cpus)})
        (one,) = self.lines("distance")
        self.assertEqual((one["cpus"], one["round_trip_ns"]), (1, 0))

    def test_pushpull(self):
        for flags in ([], ["--no-retain", "--partition-bytes", "8KiB", "--credit-bytes", "16KiB"],
                      ["--dtype", "bf16", "--shards", "2", "--congestion-control", ""]):
            with self.subTest(flags):
                (line,) = self.lines("pushpull", "--workers", "3", "--servers", "2", "--bytes", "100000", "--iters",
                                     "3", *flags)
                self.assert_measured(line, bench="pushpull", workers=3, servers=2, bytes=100000, iters=3)

    def test_pushpull_against_the_floor(self):
        ours, floor, seconds, cpu, own = self.lines("pushpull", "--floor", "--workers", "2", "--servers", "2", "--bytes",
                                               "1MB", "--iters", "3")
        self.assert_measured(ours, bench="pushpull")
        self.assert_measured(floor, bench="floor")
        self.assertEqual((seconds["bench"], seconds["between"], seconds["of"]), ("ratio", "pushpull/floor", "seconds"))
        self.assertEqual((cpu["of"], own["of"]), ("cpu_s_per_GB", "own_cpu_s_per_GB"))
        self.assertGreater(seconds["value"], 0)

    def test_other_settings_in_the_same_run(self):
        main, other, *ratios = self.lines("pushpull", "--bytes", "100000", "--iters", "3", "--also",
                                          "retain=false,partition-bytes=4KiB")
        self.assert_measured(main, retain=True, partition_bytes=258048)
        name = "pushpull[retain=false,partition-bytes=4KiB]"
        self.assertEqual((other["bench"], other["retain"], other["partition_bytes"]), (name, False, 4096))
        self.assertIs(other["verified"], True)
        self.assertEqual({line["between"] for line in ratios}, {name + "/pushpull"})

    def test_tls_in_the_same_run(self):
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = folder + "/key.pem", folder + "/cert.pem"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                            "-subj", "/CN=bench", "-keyout", key, "-out", certificate], check=True, stderr=subprocess.DEVNULL)
            main, other, *_ = self.lines("pushpull", "--bytes", "1000000", "--iters", "3", "--also", "tls=true",
                                         "--tls-cert", certificate, "--tls-key", key, "--tls-ca", certificate)
        self.assertEqual((main["bench"], main["tls"], main["verified"]), ("pushpull", False, True))
        self.assertEqual((other["bench"], other["tls"], other["verified"]), ("pushpull[tls=true]", True, True))

    def test_exchange(self):
        for kind in ("broadcast", "reduce"):
            with self.subTest(kind=kind):
                lines = self.lines("exchange", "--kind", kind, "--workers", "3", "--servers", "2", "--bytes", "3MB", "--iters", "4")
                self.assertEqual([line["bench"] for line in lines], [kind, "push_pull", "ratio"])
                for line in lines[:2]:
                    self.assert_measured(line, bench=line["bench"], servers=2)
                self.assertEqual(lines[2]["between"], kind + "/push_pull")

    def test_exchange_in_groups(self):
        for kind in ("push_pull", "broadcast", "reduce", "reduce_scatter", "all_gather", "fsdp"):
            with self.subTest(kind=kind):
                first, *_ = self.lines("exchange", "--kind", kind, "--workers", "4", "--groups", "2", "--bytes", "3MB",
                                       "--tensors", "2", "--iters", "4")
                self.assertEqual((first["bench"], first["groups"], first["verified"]), (kind, 2, True))

    def test_messages(self):
        for kind, share in (("send", 1), ("scatter", 2 / 3), ("gather", 2 / 3), ("all_to_all", 2 / 3)):
            with self.subTest(kind=kind):
                ours, other, ratio = self.lines("exchange", "--unnamed", "--kind", kind, "--workers", "3", "--servers", "2",
                                                "--bytes", "1000004", "--tensors", "2", "--iters", "4")
                self.assert_measured(ours, bench="unnamed " + kind, workers=3, servers=2, tensors=2)
                self.assert_measured(other, bench="push_pull")
                self.assertAlmostEqual(ours["link_GBps"] * ours["p50_us"] / (2 * 1.000004e3 * share), 1, delta=0.002)
                self.assertEqual(ratio["between"], f"unnamed {kind}/push_pull")
        for kind, flags in (("send", ["--workers", "4", "--groups", "2", "--bytes", "1MB"]),
                            ("all_to_all", ["--workers", "4", "--groups", "2", "--bytes", "1000004"]),
                            ("scatter", ["--workers", "3", "--in-place", "--bytes", "1000004"]),
                            ("gather", ["--workers", "3", "--in-place", "--bytes", "1000004"]),
                            ("send", ["--bytes", "50KB", "--tensors", "200"]), ("all_to_all", ["--bytes", "0"])):
            with self.subTest(kind=kind, flags=flags):
                ours, *_ = self.lines("exchange", "--unnamed", "--kind", kind, "--iters", "4", *flags)
                self.assertEqual((ours["bench"], ours["verified"]), ("unnamed " + kind, True))

    def test_transports_and_memory_of_tensors(self):
        also = "memory=allocated;memory=view;transport=shm;transport=shm,memory=allocated;transport=shm,memory=view"
        for flags in ([], ["--no-retain", "--tensors", "3"], ["--in-place"], ["--bytes", "0"], ["--bytes", "4"]):
            with self.subTest(flags):
                lines = self.lines("pushpull", "--workers", "3", "--bytes", "1000000", "--iters", "3", "--also", also,
                                   *flags)[:6]
                self.assertEqual([(line["transport"], line["memory"]) for line in lines],
                                 [(transport, memory) for transport in ("tcp", "shm")
                                  for memory in ("user", "allocated", "view")])
                self.assertTrue(all(line["verified"] for line in lines))

    def test_sizes_at_the_limits(self):
        for flags in (["--bytes", "0"], ["--bytes", "0", "--tensors", "3"], ["--bytes", "4"], ["--bytes", "4", "--in-place"],
                      ["--bytes", "1KiB", "--tensors", "2000"], ["--bytes", "64KiB", "--partition-bytes", "4KiB"],
                      ["--bytes", "65MiB", "--partition-bytes", "64MiB", "--in-place", "--no-retain"]):
            with self.subTest(flags):
                ours, floor, *_ = self.lines("pushpull", "--floor", "--iters", "1", "--warmup", "1", *flags)
                self.assertEqual((ours["bench"], floor["bench"]), ("pushpull", "floor"))
                self.assertTrue(ours["verified"] and floor["verified"])

    def test_latency(self):
        ours, echo, p50, p99 = self.lines("latency", "--workers", "2", "--servers", "1", "--bytes", "4096", "--iters",
                                          "300", "--warmup", "10")
        self.assert_measured(ours, bench="latency", iters=300)
        self.assert_measured(echo, bench="echo", iters=300)
        self.assertEqual((p50["between"], p50["of"], p99["of"]), ("latency/echo", "p50_us", "p99_us"))
        self.assertGreater(p50["value"], 0)

    def test_priority(self):
        lines = self.lines("priority", "--workers", "3", "--servers", "2", "--bytes", "1MB", "--urgent-bytes", "4KiB",
                           "--every", "5ms", "--iters", "120", "--warmup", "3")
        series = {line["bench"]: line for line in lines if "verified" in line}
        self.assertEqual(list(series), ["urgent", "bulk", "urgent+bulk", "raw urgent", "raw urgent+bulk"])
        for name, line in series.items():
            with self.subTest(name):
                self.assertIs(line["verified"], True)
                self.assertEqual((line["bytes"], line["urgent_bytes"], line["every_ms"]), (1_000_000, 4096, 5.0))
                self.assertEqual(line["iters"], 120)
                self.assertEqual(line["p99_us"] > 0, "urgent" in name)
                self.assertEqual(line["bulk_GBps"] > 0, "bulk" in name)
        self.assertEqual([(line["between"], line["of"]) for line in lines[5:]],
                         [("urgent+bulk-raw urgent+bulk", "p50_us"), ("urgent+bulk-raw urgent+bulk", "p99_us"),
                          ("urgent+bulk-urgent", "p99_us"), ("urgent+bulk/bulk", "bulk_GBps"),
                          ("urgent+bulk/bulk", "GBps")])

    def test_lanes(self):
        few, half, many, *ratios = self.lines("lanes", "--workers", "2", "--processes", "3", "--clients", "8", "--bytes",
                                              "1MB", "--iters", "2", "--warmup", "0", "--turns", "2")
        for line, workers, clients, size in ((few, 2, 1, 1000000), (half, 12, 4, 166664), (many, 24, 8, 83332)):
            self.assertEqual((line["bench"], line["workers"], line["clients"], line["bytes"], line["iters"]),
                             ("lanes", workers, clients, size, 2))
            self.assertIs(line["verified"], True)
            self.assertGreaterEqual(line["join_max_ms"], line["join_ms"])
        self.assertEqual([(line["between"], line["of"]) for line in ratios],
                         [("12/2 lanes", "GBps"), ("24/2 lanes", "GBps")])
        # Of a round in each of two turns: the ratios of the first rounds and of the second.
        for line, ratio in zip((half, many), ratios):
            product = few["min_us"] * few["max_us"] / (line["min_us"] * line["max_us"])
            self.assertAlmostEqual(ratio["low"] * ratio["high"] / product, 1, delta=0.01)

    def test_memory(self):
        lines = self.lines("memory", "--workers", "3", "--servers", "2", "--bytes", "20MB", "--iters", "2", "--warmup", "1",
                           "--late", "50ms")
        self.assertEqual([line["case"] for line in lines], ["on time", "late by a partition", "late by 50ms"])
        for line in lines:
            with self.subTest(line["case"]):
                self.assertIs(line["verified"], True)
                self.assertEqual(line["iters"], 2)
                self.assertEqual(line["beside_bytes"], 6 * 256 * 1024 + 2 * 96 * 1024 * 1024)
                self.assertGreater(line["peak_bytes"] - line["base_bytes"], 20_000_000)
                self.assertAlmostEqual(line["held"], (line["peak_bytes"] - line["base_bytes"]) / 20e6, places=2)
        self.assertGreater(lines[2]["p50_us"], 50_000)  # rank 0 really was late
        self.assertGreater(lines[1]["late_us"], 0)

    @unittest.skipIf(NO_LAB, NO_LAB)
    def test_every_process_on_a_host_of_its_own(self):
        ours, floor, *_ = self.lines("pushpull", "--floor", "--workers", "2", "--servers", "1", "--colocated", "1",
                                     "--bytes", "1MB", "--iters", "2", "--warmup", "1", "--link", "200mbit",
                                     "--slow-server", "100mbit")
        for line in (ours, floor):
            self.assert_measured(line, workers=2, servers=1, colocated=1, link_bps=200_000_000)
            self.assertLess(line["algbw_GBps"], 0.05)  # slower than the links
            self.assertGreater(line["t_over_tstar"], 1)

    @unittest.skipIf(NO_LAB, NO_LAB)
    def test_links_with_delay_and_loss(self):
        for link in (["--delay", "10ms"], ["--loss", "0.1%"]):
            lines = self.lines("pushpull", "--workers", "2", "--servers", "1", "--bytes", "1MB", "--iters", "2",
                               "--warmup", "1", "--link", "200mbit", *link)
            self.assert_measured(lines[0], workers=2, servers=1, link_bps=200_000_000)
            if link[0] == "--delay":
                self.assertGreater(lines[0]["min_us"], 40_000)  # there and back

    def test_replay(self):
        ours, fifo, *ratios = self.lines("replay", "--model", "vgg16", "--scale", "0.001", "--goodput", "100mbit",
                                         "--compute", "0.5", "--workers", "2", "--servers", "2", "--iters", "2")
        for line, priority in ((ours, True), (fifo, False)):
            self.assertEqual((line["bench"], line["model"], line["tensors"], line["iters"], line["priority"]),
                             ("replay", "vgg16", 32, 2, priority))
            self.assertIs(line["verified"], True)
            self.assertAlmostEqual(line["bytes"], 4 * 138357544 * 0.001, delta=200)
            self.assertAlmostEqual(line["tstar_s"], line["bytes"] * 8 / 100e6, delta=1e-4)
            self.assertAlmostEqual(line["compute_s"], line["tstar_s"] / 2, delta=1e-4)
            self.assertGreaterEqual(line["fluid_s"], line["tstar_s"])
            self.assertGreater(line["fifo_fluid_s"], line["fluid_s"])
            self.assertGreaterEqual(line["min_s"], line["compute_s"])
            self.assertGreaterEqual(line["iteration_s"], line["min_s"])
        self.assertEqual([ratio["between"] for ratio in ratios],
                         ["replay[priority]/fluid", "replay[fifo]/fluid", "replay[priority]/replay[fifo]"])

    @unittest.skipIf(NO_LAB, NO_LAB)
    def test_an_interrupt_removes_the_hosts(self):
        self.interrupt("pushpull", "--bytes", "1MB", "--iters", "1000000", "--link", "1gbit")

    def test_links_need_root(self):
        if os.geteuid() == 0:
            run = self.run_bench("floor", "--link", "1gbit", "--netlab", "/bin/false")
            self.assertEqual((run.returncode, run.stderr), (71, "bps-bench: /bin/false failed\n"))
        else:
            run = self.run_bench("floor", "--link", "1gbit")
            self.assertEqual(run.returncode, 77)
            self.assertIn("needs root", run.stderr)

    def test_reduce(self):
        tiny = ["--bytes", "100KB", "--partition-bytes", "4KiB", "--iters", "2"]
        lines = self.lines("reduce", "--operation", "all", *tiny)
        reduced = [line for line in lines if line["bench"] == "reduce"]
        self.assertEqual({line["dtype"] for line in reduced}, {"f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64"})
        self.assertEqual({line["operation"] for line in reduced},
                         {"sum", "average", "min", "max", "product", "and", "or", "xor"})
        self.assertNotIn(("f32", "and"), {(line["dtype"], line["operation"]) for line in reduced})
        self.assertTrue(all(line["verified"] and line["GBps"] > 0 for line in reduced))
        ratios = {(line["between"], line["of"]): line["value"] for line in lines if line["bench"] == "ratio"}
        self.assertGreater(ratios["f32 sum/memcpy", "round of 8 x 100KB"], 0)
        self.assertGreater(ratios["bf16 sum/f32 sum", "round of 8 x 100KB"], 0)
        self.assertIn(("i8 average/memcpy", "finish 4KiB"), ratios)

    def test_workers_of_a_host_sum_first(self):
        lines = self.lines("pushpull", "--workers", "3", "--servers", "1", "--bytes", "1MB", "--iters", "2",
                           "--also", "local-group=host")
        series = [line for line in lines if line["bench"] != "ratio"]
        self.assertEqual([(line["bench"], line["local_group"], line["verified"]) for line in series],
                         [("pushpull", "off", True), ("pushpull[local-group=host]", "host", True)])

    def test_gpu_floor(self):
        run = self.run_bench("gpu-floor", "--bytes", "1MiB", "--iters", "1", "--json", "-")
        if run.returncode == 78:  # no GPU here, and it says why
            self.assertRegex(run.stderr, r"^bps-bench: no GPU: .+; .+\n$")
            return
        self.assertEqual(run.returncode, 0, run.stderr)
        copies = [line for line in map(json.loads, run.stdout.splitlines()) if line["bench"] == "gpu copy"]
        self.assertEqual({line["way"] for line in copies}, {"to host", "to device", "both ways"})
        self.assertTrue(all(line["verified"] and line["GBps"] > 0 for line in copies))

    def test_a_table_without_json_and_a_file_with_it(self):
        run = self.run_bench("floor", "--bytes", "4096", "--iters", "2")
        self.assertEqual(run.returncode, 0)
        self.assertIn("cpu_s_per_GB", run.stdout)
        self.assertIn("yes", run.stdout)
        with tempfile.NamedTemporaryFile() as file:
            self.run_bench("floor", "--bytes", "4096", "--iters", "2", "--json", file.name)
            self.assertEqual(json.load(file)["bench"], "floor")

    def test_an_interrupt_leaves_nothing(self):
        self.interrupt("pushpull", "--bytes", "1MB", "--iters", "1000000")

    def interrupt(self, *arguments):
        bench = subprocess.Popen([self.bps_bench, *arguments, "--verbose"],
                                 env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True)
        self.assertTrue(bench.stderr.readline())  # a daemon is up
        bench.send_signal(signal.SIGINT)
        _, err = bench.communicate(timeout=LIMIT)
        self.assertEqual(bench.returncode, 130)
        self.assertIn("bps-bench: interrupted", err)
        self.assert_nothing_left()

    def test_bad_input(self):
        for arguments, said in ((["frobnicate"], "there is no benchmark 'frobnicate'"),
                                ([], "which benchmark?"),
                                (["pushpull", "--worker", "3"], "--workers"),
                                (["pushpull", "--bytes", "4097"], "no whole f32 elements"),
                                (["pushpull", "--dtype", "f31"], "f31"),
                                (["floor", "--workers", "65"], "64"),
                                (["reduce", "--operation", "broadcast"], "broadcast"),
                                (["reduce", "--bytes", "7"], "no whole element"),
                                (["replay", "--goodput", "1gbit", "--model", "lenet"], "lenet"),
                                (["replay", "--goodput", "1gbit", "--compute", "-1"], "--compute"),
                                (["replay"], "--link"),
                                (["pushpull", "--also", "partition-byte=4KiB"], "--partition-bytes"),
                                (["pushpull", "--also", "retain=perhaps"], "neither true nor false"),
                                (["pushpull", "--also", "tls=true"], "without certificates"),
                                (["pushpull", "--transport", "rdma"], "needs --address"),
                                (["pushpull", "--also", "transport=rdma,checksum=true"], "nor checksums cover"),
                                (["latency", "--transport", "rdma", "--link", "1gbit"], "have no RDMA device"),
                                (["priority", "--urgent-bytes", "6"], "whole elements"),
                                (["gpu-floor", "--bytes", "12"], "use --bytes of 4 KiB or more"),
                                (["lanes", "--dtype", "i8"], "the sum of 256 workers does not fit i8"),
                                (["exchange", "--kind", "send"], "add --unnamed"),
                                (["exchange", "--kind", "all_to_all", "--unnamed", "--in-place"], "leave --in-place out"),
                                (["exchange", "--kind", "send", "--unnamed", "--workers", "1"], "use more --workers"),
                                (["priority", "--every", "0"], "more than 0"),
                                (["latency", "--bytes", "0"], "nobody can answer"),
                                (["floor", "--servers", "0"], "there is no server"),
                                (["floor", "--colocated", "1"], "means nothing without --link"),
                                (["pushpull", "--loss", "1%"], "--loss means nothing without --link"),
                                (["pushpull", "--workers", "1", "--colocated", "2", "--link", "1gbit"], "more than"),
                                (["worker", "nonsense"], "started by bps-bench")):
            with self.subTest(arguments):
                run = self.run_bench(*arguments)
                self.assertEqual(run.returncode, 64, run.stderr)
                self.assertIn(said, run.stderr)

    def test_a_setting_that_the_cluster_refuses_is_told(self):
        run = self.run_bench("pushpull", "--bytes", "4096", "--congestion-control", "nonsense")
        self.assertEqual(run.returncode, 78, run.stderr)
        self.assertIn("nonsense", run.stderr)

    @unittest.skipIf(pathlib.Path("/sys/class/infiniband").exists(), "this machine has RDMA devices")
    def test_a_machine_without_rdma(self):
        run = self.run_bench("pushpull", "--bytes", "4096", "--transport", "rdma", "--address", "127.0.0.2")
        self.assertEqual(run.returncode, 71, run.stderr)
        self.assertRegex(run.stderr, "(no RDMA device|RDMA libraries|without RDMA)")


if __name__ == "__main__":
    BenchTest.bps_bench = sys.argv.pop(1)
    unittest.main(verbosity=2)
