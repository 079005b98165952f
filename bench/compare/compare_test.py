#!/usr/bin/env python3
"""What compare makes of measurements, with a fake bps-bench: compare_test.py [unittest arguments]"""
import contextlib
import io
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import lab
from context import Context, Goodput, Lines, guarded, too_busy, who_is_bound
from peers import Peers, Ranks, against_the_better
from process import Program, output_of
from row import Median, NotMeasured, Row, summary, table
from rows import cost, links, lost, placement, replayed

LIMIT = 60  # seconds after which anything is considered to hang


def row(id="P1", floor=0.93, goal=0.98, more=True, **keys):
    return Row(id, "what", floor, goal, more, **keys)


class MedianTest(unittest.TestCase):
    def test_few_values_are_the_interval(self):
        m = Median.of([3, 1, 2])
        self.assertEqual((m.value, m.low, m.high, m.least, m.most), (2, 1, 3, 1, 3))
        self.assertEqual(Median.of([1, 2, 3, 4]).value, 2.5)
        with self.assertRaises(NotMeasured):
            Median.of([])

    def test_the_interval_of_many_values(self):
        # The 95 % intervals of the median that tables of order statistics give.
        for n, low in ((5, 1), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6), (30, 10)):
            m = Median.of(range(1, n + 1))
            self.assertEqual((m.low, m.high), (low, n + 1 - low), n)


class BetterPeerTest(unittest.TestCase):
    def test_the_better_one_is_better_on_the_whole(self):
        ours = [1.0] * 8
        # The faster of both in each turn would take 1.0 s.
        theirs = [{"a": 1.0, "b": 1.4}, {"a": 1.3, "b": 1.0}] * 4
        median, said = against_the_better(ours, theirs, ["a", "b"])
        self.assertEqual((median.value, median.low, median.high), (1.15, 1.0, 1.3))
        self.assertIn("a: 1.150 s, 8 pairs; b: 1.200 s, 1.200 (1.000 - 1.400)", said)

    def test_a_turn_in_which_all_fail_is_no_error(self):
        peers = Peers(folder="/nonexistent", agent="", watch=None)

        def fails(*_):
            raise NotMeasured("ended early")
        peers.seconds = fails
        self.assertEqual(peers.turn(["Gloo ring"], None, 1, 1), {})
        with self.assertRaisesRegex(NotMeasured, "ended early"):
            peers.medians(["Gloo ring"], None, 1, 1)

    def test_the_lower_end_holds_against_each(self):
        theirs = [{"a": 1.0, "b": 0.8 if turn < 3 else 1.2} for turn in range(8)]
        median, _ = against_the_better([1.0] * 8, theirs, ["a", "b"])
        self.assertEqual((median.value, median.low), (1.0, 0.8))

    def test_one_that_mostly_fails_might_have_been_the_better(self):
        turns = [{"a": 3.0, "b": 2.0}, {"a": 3.0, "b": 2.0}, {"a": 3.0, "b": 2.0}, {}]
        median, said = against_the_better([1.0] * 4, turns, ["a", "b"])
        self.assertEqual(median.value, 2.0)
        self.assertIn("b: 2.000 s, 3 pairs", said)
        with self.assertRaisesRegex(NotMeasured, "a ended well in 1 of 2 turns"):
            against_the_better([1.0, 1.0], [{"a": 1.0, "b": 1.0}, {"b": 1.0}], ["a", "b"])
        with self.assertRaisesRegex(NotMeasured, "c ended well in 0 of 4 turns"):
            against_the_better([1.0] * 4, turns, ["b", "c"])


class RowTest(unittest.TestCase):
    def test_the_floor_holds_at_the_worse_end(self):
        self.assertTrue(row(median=Median(0.97, 0.93, 1, 0.9, 1)).passed)
        self.assertFalse(row(median=Median(0.97, 0.92, 1, 0.9, 1)).passed)
        less = dict(floor=2, goal=1.4, more=False)
        self.assertTrue(row(median=Median(1.5, 1, 2, 1, 3), **less).passed)
        self.assertFalse(row(median=Median(1.5, 1, 2.1, 1, 3), **less).passed)

    def test_the_goal_is_reached_by_the_median(self):
        self.assertTrue(row(median=Median(0.98, 0.93, 1, 0.9, 1)).reached)
        self.assertFalse(row(median=Median(0.97, 0.93, 1, 0.9, 1)).reached)
        self.assertFalse(row(median=Median(0.98, 0.92, 1, 0.9, 1)).reached)  # below its floor

    def test_what_was_not_measured_or_is_wrong_does_not_pass(self):
        self.assertFalse(row(missing="no root").passed)
        self.assertFalse(row(median=Median.exactly(1), wrong="bps ran with bbr").passed)

    def test_table_and_json_say_all(self):
        rows = [row(median=Median(0.95, 0.94, 0.96, 0.9, 1), note="4 rounds"), row("P2", missing="needs root"),
                row("P5", 2, 1.25, False, median=Median.exactly(1.2), unit="s")]
        text = table(rows)
        self.assertIn("| P1 | what (4 rounds) | 0.950 | 0.940 - 0.960 | 0.900 - 1.000 | ≥ 0.930 | ≥ 0.980 | floor ",
                      text)
        self.assertIn("not measured: needs root", text)
        self.assertIn("| 1.200 s |  |  | ≤ 2.000 s | ≤ 1.250 s | goal |", text)
        self.assertEqual(summary(rows), "2 of 3 numbers at or above their floor, 1 at their goal; no number that counts: P2")
        slow = row("P3", median=Median(0.95, 0.91, 0.96, 0.9, 1))
        self.assertIn("| **no**: its interval reaches 0.910 |", table([slow]))
        self.assertIn("; below: P3", summary([*rows, slow]))
        first = rows[0].as_json()
        self.assertEqual([first[key] for key in ("id", "what", "value", "floor", "goal", "pass")],
                         ["P1", "what", 0.95, 0.93, 0.98, True])
        self.assertEqual((rows[1].as_json()["value"], rows[1].as_json()["pass"]), (None, False))

    def test_a_measurement_that_fails_marks_its_rows(self):
        first, second = row(), row("P2")

        def measure():
            first.median = Median.exactly(1)
            raise NotMeasured("the link broke")
        guarded([first, second], measure)
        # Whether the first is wrong was not looked at yet.
        self.assertEqual((first.wrong, first.passed), ("the link broke", False))
        self.assertEqual((second.missing, second.passed), ("the link broke", False))

    def test_whatever_goes_wrong_marks_its_rows(self):
        for failure in (TypeError("None has no length"), subprocess.TimeoutExpired("ss", 20), OSError(2, "no iperf3")):
            first, second = row(median=Median.exactly(1)), row("P2")

            def measure():
                raise failure
            with contextlib.redirect_stderr(io.StringIO()) as said:
                guarded([first, second], measure)
            self.assertIn(str(failure), first.wrong)
            self.assertIn(type(failure).__name__, second.missing)
            self.assertIn("in measure", said.getvalue())
            self.assertFalse(first.passed or second.passed)

    def test_who_interrupts_is_heard(self):
        def measure():
            raise KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt):
            guarded([row()], measure)

    def test_a_busy_machine_is_told(self):
        self.assertEqual(too_busy(0.25), "")
        self.assertEqual(too_busy(0.24), "only 24% of the CPU was idle")


class BenchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.context = Context(folder.name, folder.name, quick=False, only=[])
        self.program = pathlib.Path(self.context.program)
        self.program.parent.mkdir()

    def fake(self, script):
        self.program.write_text("#!/bin/sh\n" + script)
        self.program.chmod(0o755)

    def fake_until_told(self):
        """It runs until what this returns is called."""
        fifo = f"{self.program}.fifo"
        os.mkfifo(fifo)
        self.fake(f"read told < {fifo}")
        told = os.open(fifo, os.O_RDWR)  # so that nobody waits for a reader
        self.addCleanup(os.close, told)
        return lambda: os.write(told, b"end\n")

    def test_lines(self):
        lines = [{"bench": "pushpull", "verified": True, "p50_us": 7},
                 {"bench": "ratio", "between": "pushpull/floor", "of": "seconds", "value": 2, "low": 1, "high": 3}]
        self.fake('test "$*" = "pushpull --bytes 400 --json -" || exit 64\ncat <<END\n'
                  + "\n".join(map(json.dumps, lines)) + "\nEND\n")
        got = self.context.bench("pushpull", "--bytes", 400)
        self.assertEqual(got.of("pushpull")["p50_us"], 7)
        self.assertEqual(got.ratio("pushpull/floor", "seconds").high, 3)
        with self.assertRaisesRegex(NotMeasured, "no line 'floor'"):
            got.of("floor")
        for value in (0, float("nan")):
            with self.assertRaisesRegex(NotMeasured, "a/b of seconds is"):
                Lines([dict(bench="ratio", between="a/b", of="seconds", value=value, low=1, high=1)]).ratio("a/b", "seconds")

    def test_a_wrong_sum_is_no_measurement(self):
        self.fake("""echo '{"bench": "pushpull", "verified": false}'""")
        with self.assertRaisesRegex(NotMeasured, "wrong result"):
            self.context.bench("pushpull").of("pushpull")

    def test_failure_and_hang_are_told(self):
        self.fake("echo there is no such benchmark >&2; exit 64")
        with self.assertRaisesRegex(NotMeasured, "no such benchmark"):
            self.context.bench("frobnicate")
        self.fake("trap '' TERM; tail -f /dev/null & wait; wait")
        self.addCleanup(setattr, Program, "PATIENCE", Program.PATIENCE)
        Program.PATIENCE = 0.2
        with self.assertRaisesRegex(NotMeasured, "did not end within"):
            output_of([self.program], limit=0.2)

    def test_settings_of_others_do_not_leak(self):
        self.fake("env | grep -c BPS_; true")
        os.environ["BPS_RETAIN"] = "1"
        self.addCleanup(os.environ.pop, "BPS_RETAIN")
        self.assertEqual(output_of([self.program]).strip(), "0")

    def test_a_program_ends_with_its_block(self):
        self.fake("tail -f /dev/null & echo $!; wait")
        with Program([self.program], limit=100) as program:
            child = os.pidfd_open(int(program.process.stdout.readline()))
        self.addCleanup(os.close, child)
        self.assertIsNotNone(program.process.returncode)
        self.assertEqual(select.select([child], [], [], LIMIT)[0], [child])

    def test_congestion_control(self):
        self.context.saw("bps", {"cubic"})
        self.assertEqual(self.context.wrong_control("bps"), "")
        self.context.saw("Gloo ring", {"cubic"})
        self.context.saw("bps", {"bbr"})
        self.assertEqual(self.context.wrong_control("Gloo ring", "bps"), "bps ran with bbr")
        self.assertEqual(self.context.seen_controls(),
                         "TCP congestion control, as seen: bbr (bps); cubic (Gloo ring, bps).")

    def test_who_was_not_seen_does_not_count(self):
        self.assertRegex(self.context.wrong_control("bps"), "bps was never seen with a connection")
        self.assertFalse(self.context.saw("bps", set()))
        self.assertRegex(self.context.wrong_control("bps"), "bps was never seen with a connection")
        self.assertTrue(self.context.saw("bps", {"cubic"}))
        self.assertRegex(self.context.wrong_control("bps", "Gloo ring"), "Gloo ring was never seen")
        self.context.begin()  # what was seen for other numbers does not help these
        self.assertRegex(self.context.wrong_control("bps"), "bps was never seen with a connection")

    def test_why_nobody_could_be_seen_is_told(self):
        end = self.fake_until_told()

        def fails(_):
            end()
            raise NotMeasured("ss failed (255): no ss")
        with mock.patch("context.congestion_controls", fails), mock.patch("os.geteuid", return_value=0):
            self.context.bench("pushpull", "--link", "1gbit")
        self.assertRegex(self.context.wrong_control("bps"), "never seen .*no ss")

    def test_who_must_not_be_disturbed_is_not_looked_at(self):
        self.fake("exit 0")
        with mock.patch.object(Program, "output", return_value="") as output, mock.patch("os.geteuid", return_value=0):
            self.context.bench("latency", "--link", "1gbit", watched=False)
            output.assert_called_with(None)
            self.context.bench("latency", "--link", "1gbit")
            self.assertIsNotNone(output.call_args.args[0])

    def test_ss_that_fails_is_no_answer(self):
        self.fake("echo cannot open netlink >&2; exit 1")
        (self.program.parent / "ss").symlink_to(self.program)
        with self.assertRaisesRegex(NotMeasured, r"ss failed \(1\): cannot open netlink"):
            lab.controls_in(["env", f"PATH={self.program.parent}:{os.environ['PATH']}"])

    def test_a_program_is_watched_until_something_was_seen(self):
        end = self.fake_until_told()
        looks = []

        def watch():
            looks.append(None)
            if len(looks) == 3:
                end()
            return False
        output_of([self.program], limit=LIMIT, watch=watch)
        self.assertGreaterEqual(len(looks), 3)

    def test_goodput_after_a_row_is_that_before_the_next(self):
        measured = iter((10, 20, 30, 40))
        links = mock.MagicMock()
        links.__enter__.return_value.goodput = lambda: next(measured)
        self.context.lab = lambda hosts, rate: links
        goodput = Goodput(self.context, "1gbit")
        self.assertEqual((goodput.before(), goodput.after(), goodput.before()), (10, 20, 20))
        # This row failed: what is known is not from just before the next.
        self.assertEqual((goodput.before(), goodput.after()), (30, 40))


class RowsTest(unittest.TestCase):
    def test_links_that_moved_are_told(self):
        self.assertEqual(replayed.moved(100e6, 102e6), "")
        self.assertEqual(replayed.moved(100e6, 97e6), "G was 800.0 Mbit/s before and 776.0 after")

    def test_cpu_time_of_others_is_told(self):
        line = dict(bench="floor", cpu_s_per_GB=0.57, own_cpu_s_per_GB=0.5)
        self.assertEqual(cost.taken(line), "")
        self.assertEqual(cost.taken(line | dict(cpu_s_per_GB=0.7)), "something else took 0.200 CPU s/GB beside floor")

    def test_peers_are_chosen_by_five_rounds_on_a_loopback_and_by_one_over_links(self):
        for own_hosts, rounds in ((True, (1, 0)), (False, (5, 1))):
            context = mock.MagicMock()
            context.peers.names.return_value = ["Gloo ring", "Gloo bcube", "OpenMPI ring"]
            context.peers.medians.side_effect = [{"Gloo ring": 1.0, "Gloo bcube": 1.1}, {"OpenMPI ring": 1.2}]
            best = links.best_peers(context, Ranks(None, 4, own_hosts), 100)
            self.assertEqual(best, (["Gloo ring", "OpenMPI ring"], ""))
            self.assertEqual([call.args[0] for call in context.peers.medians.call_args_list],
                             [["Gloo ring", "Gloo bcube"], ["OpenMPI ring"]])
            self.assertEqual(context.peers.medians.call_args.args[-2:], rounds)

    def test_a_peer_that_is_far_behind_is_told_and_one_that_fails_is_an_error(self):
        context = mock.MagicMock()
        context.peers.medians.side_effect = [{"Gloo ring": 1.0}, {"OpenMPI ring": 1.3}]
        self.assertEqual(links.best_peers(context, Ranks(None, 4, True), 100),
                         (["Gloo ring"], "; OpenMPI ring, left out after 1.300 s"))
        context.peers.medians.side_effect = [{"Gloo ring": 1.0}, NotMeasured("OpenMPI ring ended early")]
        with self.assertRaisesRegex(NotMeasured, "ended early"):
            links.best_peers(context, Ranks(None, 4, True), 100)

    def test_who_is_bound(self):
        for cpus, said in ((1, ""), (3, ""), (2, "; our clients' data threads are bound to CPUs, peers are placed by the kernel"), (5, "")):
            with mock.patch("os.sched_getaffinity", return_value=set(range(cpus))):
                self.assertEqual(who_is_bound(4, "peers are"), said)

    def test_a_placement_is_judged_by_goodput_before_and_after(self):
        context = mock.MagicMock()
        context.bench.return_value = Lines([dict(bench="pushpull", tstar_s=2, idle=0.5, **dict.fromkeys(
            ("p50_us", "p50_low_us", "p50_high_us", "min_us", "max_us"), 2e6))])
        context.wrong_control.return_value = ""
        goodput = mock.MagicMock()
        goodput.before.return_value, goodput.after.return_value = 100, 110
        of = row("P4", 1.1, 1.03, more=False)
        placement.run(context, [], of, goodput)
        self.assertAlmostEqual(of.median.value, 1.1)  # t* was shorter than told
        self.assertIn("800bit", context.bench.call_args.args)

    def test_a_round_that_was_not_interrupted_says_nothing_of_going_on(self):
        self.assertAlmostEqual(lost.after(10.0, [9.5, 10.25]), 0.25)
        with self.assertRaisesRegex(NotMeasured, "no rank's longest round was the interrupted one"):
            lost.after(10.0, [9.5, 9.75])


class ArgumentsTest(unittest.TestCase):
    def check(self, *arguments):
        program = pathlib.Path(__file__).resolve().parent / "main.py"
        done = subprocess.run([sys.executable, program, "--check", *arguments], capture_output=True, text=True, timeout=LIMIT)
        return done.returncode, done.stderr

    def test_what_is_wrong_is_said_before_anything_is_built(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.check("--json", f"{folder}/rows.json"), (0, ""))
            self.assertEqual(os.listdir(folder), [])
            for file in (folder, f"{folder}/none/rows.json"):
                self.assertEqual(self.check("--json", file), (71, f"compare.sh: cannot write to {file}\n"))
        self.assertEqual(self.check("--only", "P17")[0], 64)


class PeersTest(unittest.TestCase):
    def test_a_round_lasts_from_the_first_begin_to_the_last_end(self):
        lines = ["noise", "round 0 -1 0 9 0", "round 1 -1 0 9 0", "round 0 0 1000000000 2000000000 0",
                 "round 1 0 500000000 1500000000 0"]
        self.assertEqual(Peers._evaluate("Gloo ring", "\n".join(lines), 2, 1), [1.5])

    def test_wrong_sums_and_missing_ranks_are_told(self):
        with self.assertRaisesRegex(NotMeasured, "3 elements"):
            Peers._evaluate("Gloo ring", "round 0 0 1 2 3\n", 1, 1)
        with self.assertRaisesRegex(NotMeasured, "every rank"):
            Peers._evaluate("Gloo ring", "round 0 0 1 2 0\n", 2, 1)

    def test_where_ranks_run(self):
        hosts = lab.Lab(2, "1gbit")
        self.assertEqual(Ranks(hosts, 2, own_hosts=True).address(1), "10.88.0.3")
        self.assertEqual(Ranks(hosts, 2, own_hosts=False).address(1), "127.0.0.1")


if __name__ == "__main__":
    unittest.main(verbosity=2)
