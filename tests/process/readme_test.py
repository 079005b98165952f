#!/usr/bin/env python3
"""Runs every ```bash block of README.md, compiles its programs and those of client/README.md, and checks its links, folders and settings.

    readme_test.py SOURCE_FOLDER BUILD_FOLDER

Each block runs in a scratch folder that looks like the source folder, with BUILD_FOLDER as build/. A block after a comment
`readme-test: WHY` is not run. Ports are replaced by free ones.
"""
import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from daemons import DaemonTest

SOURCE = BUILD = None
LIMIT = 600
COMPILERS = {"c": ("cc", "-xc", "-std=c11"), "cpp": ("c++", "-xc++", "-std=c++17")}
PROGRAM = "#include <bps/client.hpp>\n#include <chrono>\n#include <vector>\n"


def blocks(text):
    """(language, line number, body, is excused)"""
    pattern = re.compile(r"(<!-- readme-test: [^>]+-->\n)?```(\w*)\n(.*?)^```$", re.S | re.M)
    return [(m.group(2), text.count("\n", 0, m.start()) + 1, m.group(3), bool(m.group(1))) for m in pattern.finditer(text)]


class Readme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = (SOURCE / "README.md").read_text()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "bps"
        self.root.mkdir()
        for entry in SOURCE.iterdir():
            if not entry.name.startswith("build") and entry.name != ".git":
                (self.root / entry.name).symlink_to(entry)
        (self.root / "build").symlink_to(BUILD)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("BPS_")}
        self.environment["HOME"] = folder.name
        self.environment.setdefault("CCACHE_DIR", os.path.expanduser("~/.cache/ccache"))

    def test_every_command(self):
        ran = 0
        for language, line, body, excused in blocks(self.text):
            if language != "bash" or excused:
                continue
            ran += 1
            body = body.replace(":4710", f":{DaemonTest.free_port()}")
            with self.subTest(line=line):
                # A group of its own, so that what a failed block leaves behind ends with it.
                shell = subprocess.Popen(["bash", "-euo", "pipefail", "-c", body], cwd=self.root, env=self.environment,
                                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                         text=True, process_group=0)
                try:
                    output, _ = shell.communicate(timeout=LIMIT)
                except subprocess.TimeoutExpired:
                    os.killpg(shell.pid, 9)
                    output, _ = shell.communicate()
                    output += f"\nkilled after {LIMIT} s"
                self.assertEqual(shell.returncode, 0, f"README.md:{line}:\n{body}\n{output}")
        self.assertGreaterEqual(ran, 4)

    def test_programs_compile(self):
        languages = []
        for page in ("README.md", "client/README.md"):
            for language, line, body, _ in blocks((SOURCE / page).read_text()):
                if language not in COMPILERS:
                    continue
                languages.append(language)
                if "#include" not in body:  # a piece of a program
                    body = f"{PROGRAM}void program(std::size_t count) {{\n{body}}}\n"
                with self.subTest(page=page, line=line):
                    compiled = subprocess.run([*COMPILERS[language], "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                                               f"-I{SOURCE}/client/include", "-"], input=body, capture_output=True, text=True,
                                              timeout=LIMIT)
                    self.assertEqual(compiled.returncode, 0, f"{page}:{line}:\n{compiled.stderr}")
        self.assertEqual(sorted(languages), ["c", "cpp", "cpp"])

    def test_only_the_two_long_commands_are_excused(self):
        excused = "".join(body for _, _, body, excused in blocks(self.text) if excused)
        commands = [line.split("#")[0].strip() for line in excused.splitlines()]
        self.assertEqual(commands, ["bash deploy/demo.sh", "bash tests/run.sh"])

    def test_other_commands_use_flags_that_exist(self):
        plain = "".join(body for language, _, body, _ in blocks(self.text) if language == "")
        for program in ("bps-scheduler", "bps-server"):
            known = subprocess.run([BUILD / "bin" / program, "--help"], capture_output=True, text=True, check=True).stdout
            for command in re.findall(rf"\$ +{program} (.*)", plain):
                for flag in re.findall(r"--[\w-]+", command):
                    self.assertIn(flag, known, f"{program} has no {flag}")

    def test_other_commands_configure_with_options_that_exist(self):
        plain = "".join(body for language, _, body, _ in blocks(self.text) if language == "")
        options = re.findall(r"-D(BPS_\w+)=", plain)
        self.assertGreaterEqual(len(options), 2)
        for option in options:
            self.assertIn(f"option({option} ", (SOURCE / "CMakeLists.txt").read_text())

    def test_the_demo_builds_every_program_of_this_page(self):
        built = re.search(r"--target (.*) \|\|", (SOURCE / "deploy/demo.sh").read_text()).group(1).split()
        there = {entry.name for entry in (BUILD / "bin").iterdir()}
        used = {name for name in re.findall(r"\b(?:bps-\w+|bpsctl)\b", self.text) if name in there}
        self.assertLessEqual(used, set(built))

    def test_commands_write_nothing_into_the_source(self):
        ignored = [pattern.rstrip("/") for pattern in (SOURCE / ".gitignore").read_text().split()]
        for language, line, body, _ in blocks(self.text):
            for written in re.findall(r"-(?:o|out|keyout|B) (\S+)", body if language == "bash" else ""):
                self.assertTrue(any(fnmatch.fnmatch(written.split("/")[0], pattern) for pattern in ignored),
                                f"README.md:{line}: {written}")

    def test_links_and_folders(self):
        for target in re.findall(r"\]\(([^)#:]+)\)", self.text):
            self.assertTrue((SOURCE / target).exists(), target)
        for folder in re.findall(r"^\| `([\w/]+)/` \|", self.text, re.M):
            self.assertTrue((SOURCE / folder).is_dir(), folder)

    def test_settings(self):
        names = re.findall(r'^ *"([\w-]+)",$', (SOURCE / "proto/base/config/setting_names.h").read_text(), re.M)
        rows = re.findall(r"^\| (`[\w-]+`(?:, `[\w-]+`)*) \| (?:scheduler|server|worker)", self.text, re.M)
        self.assertEqual(len(rows), 12)
        for row in rows:
            for name in re.findall(r"`([\w-]+)`", row):
                self.assertIn(name, names)


if __name__ == "__main__":
    SOURCE, BUILD = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
    unittest.main()
