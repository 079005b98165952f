#!/usr/bin/env python3
"""The units of deploy/systemd are units, and start programs that there are, with flags that they have; deploy/container
installs what set-up does.

    units_test.py SOURCE_FOLDER PROGRAM_FOLDER
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = FOLDER = PROGRAMS = None


class Units(unittest.TestCase):
    def units(self):
        found = sorted(FOLDER.glob("*.service"))
        self.assertEqual([unit.name for unit in found], ["bps-scheduler.service", "bps-server.service"])
        return found

    def test_systemd_takes_them(self):
        verify = shutil.which("systemd-analyze")
        if verify is None:
            self.skipTest("systemd-analyze is not here to ask")
        with tempfile.TemporaryDirectory() as name:
            copies = []
            for unit in self.units():
                copies.append(pathlib.Path(name) / unit.name)
                copies[-1].write_text(unit.read_text().replace("/usr/local/bin/", f"{PROGRAMS}/"))
            done = subprocess.run([verify, "verify", "--man=no", *copies], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_flags(self):
        for unit in self.units():
            program, *words = re.search(r"^ExecStart=/usr/local/bin/(.*)$", unit.read_text(), re.M).group(1).split()
            self.assertEqual(program, unit.stem)
            known = subprocess.run([PROGRAMS / program, "--help"], capture_output=True, text=True, check=True).stdout
            for flag in (word for word in words if word.startswith("--")):
                self.assertIn(flag, known)

    def test_settings_of_their_readme(self):
        """Of the two columns of the second example."""
        columns = [re.split(r"\s{3,}", line) for line in (FOLDER / "README.md").read_text().splitlines()
                   if re.match(r"(\w|-)* = | {20,}\w", line)]
        self.assertEqual(len(columns), 4)
        for program, column in (("bps-scheduler", 0), ("bps-server", 1)):
            settings = [row[column] for row in columns if len(row) > column and row[column]]
            known = subprocess.run([PROGRAMS / program, "--help"], capture_output=True, text=True, check=True).stdout
            self.assertGreaterEqual(len(settings), 2)
            for setting in settings:
                self.assertIn("--" + setting.split(" = ")[0] + " ", known)


class Image(unittest.TestCase):
    def test_packages_and_options(self):
        text = (SOURCE / "deploy/container/Dockerfile").read_text()
        setup = re.search(r"# build\n(.*?)# tests", (SOURCE / "cmake/setup.sh").read_text(), re.S).group(1)
        wanted = {word for line in setup.splitlines() if not line.strip().startswith("#") for word in line.split()}
        installed = set(re.search(r"install -y --no-install-recommends \\\n(.*?)&&", text, re.S).group(1).replace("\\", "").split())
        # g++ comes with build-essential; the other two serve who builds again and again.
        self.assertEqual(wanted - installed, {"g++", "ccache", "git"})
        self.assertEqual(installed - wanted, set())
        for option in re.findall(r"-D(BPS_\w+)=", text):
            self.assertIn(f"option({option} ", (SOURCE / "CMakeLists.txt").read_text())


if __name__ == "__main__":
    SOURCE = pathlib.Path(sys.argv.pop(1)).resolve()
    FOLDER = SOURCE / "deploy/systemd"
    PROGRAMS = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
