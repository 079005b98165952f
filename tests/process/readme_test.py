#!/usr/bin/env python3
"""Holds the README, the guides and the READMEs of the folders to what there is.

    readme_test.py SOURCE_FOLDER BUILD_FOLDER

Every ```bash block runs, in a scratch folder that looks like the source folder, with BUILD_FOLDER as build/, and with
free ports for ours. A block after a comment `readme-test: WHY` does not. C and C++ programs compile; Python parses, and
uses names that exist; links, folders, files, flags and settings exist. The recipe for checkpoints restarts a real job.
"""
import ast
import ctypes
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
INVALID_ARGUMENT = 1  # of bps_status
COMPILERS = {"c": ("cc", "-xc", "-std=c11"), "cpp": ("c++", "-xc++", "-std=c++17")}
PROGRAM = "#include <bps/client.hpp>\n#include <chrono>\n#include <vector>\n"
OPERATIONS = "deploy/operations.md"
# What those who use bps read.
GUIDES = ("README.md", "client/README.md", "client/gpu.md", "client/python/README.md", "deploy/README.md", OPERATIONS,
          "proto/transport/rdma/README.md")
# Records of what was measured and decided, and the protocol's tables.
NO_GUIDES = ("bench/RESULTS.md", "proto/PROTOCOL.md", "proto/decisions/*")
TRAINING = """import os, signal, sys, torch, bps.torch
PATH, steps = "checkpoint.pt", 30
bps.torch.init()
torch.manual_seed(bps.torch.rank())
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = bps.torch.DistributedOptimizer(optimizer, model.named_parameters())
first = None
def train(step):
    global first
    first = step if first is None else first
    if step == 15 and bps.torch.rank() == 1 and not os.path.exists("lost"):
        open("lost", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)  # from outside, for what the script can see
    optimizer.zero_grad()
    model(torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + bps.torch.rank()))).square().mean().backward()
    optimizer.step()
"""


def blocks(text):
    """(language, line number, body, is excused)"""
    pattern = re.compile(r"(<!-- readme-test: [^>]+-->\n)?```(\w*)\n(.*?)^```$", re.S | re.M)
    return [(m.group(2), text.count("\n", 0, m.start()) + 1, m.group(3), bool(m.group(1))) for m in pattern.finditer(text)]


def prose(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)


def code_spans(text):
    return re.findall(r"`([^`\n]+)`", prose(text))


def anchors(text):
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def files():
    """All of the source, relative to it."""
    result = []
    for folder, folders, names in os.walk(SOURCE):
        inside = pathlib.Path(folder).relative_to(SOURCE)
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"
                      and not (inside == pathlib.Path() and name.startswith("build"))]
        result += [inside / name for name in names]
    return result


def is_guide(page):
    return not any(fnmatch.fnmatch(page, pattern) for pattern in NO_GUIDES)


def run(body, folder, environment):
    """(exit status, output), in a process group of its own, so that what a failed block leaves behind ends with it."""
    shell = subprocess.Popen(["bash", "-euo", "pipefail", "-c", body], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)
    try:
        output, _ = shell.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, 9)
        output, _ = shell.communicate()
        output += f"\nkilled after {LIMIT} s"
    return shell.returncode, output


def help_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class PagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = files()
        cls.pages = {str(path): (SOURCE / path).read_text() for path in sorted(cls.files) if path.suffix == ".md"}
        cls.text = cls.pages["README.md"]

    def in_blocks(self, *languages, pages=None):
        """(page, language, line, body, is excused) of all guides, or of those."""
        for page in pages or filter(is_guide, self.pages):
            for language, line, body, excused in blocks(self.pages[page]):
                if language in languages:
                    yield page, language, line, body, excused

    def count(self, found):
        return {page: found.count(page) for page in found}


class Commands(PagesTest):
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
        ran = []
        for page, _, line, body, excused in self.in_blocks("bash"):
            if excused:
                continue
            ran.append(page)
            with self.subTest(page=page, line=line):
                status, output = run(body.replace(":4710", f":{DaemonTest.free_port()}"), self.root, self.environment)
                self.assertEqual(status, 0, f"{page}:{line}:\n{body}\n{output}")
        self.assertEqual(self.count(ran), {"README.md": 3, OPERATIONS: 4})

    def test_the_checkpoint_recipe(self):
        """A rank is killed at step 15. Both start again, by the loop of the guide, from the checkpoint of step 10."""
        recipe, = (body for _, _, _, body, _ in self.in_blocks("python", pages=[OPERATIONS]) if "torch.save" in body)
        loop, = (body for _, _, _, body, _ in self.in_blocks("bash", pages=[OPERATIONS]) if "while true" in body)
        loop, changed = re.subn(r"build/client/examples/train_lm --steps 20", "/usr/bin/python3 train.py", loop)
        self.assertEqual(changed, 1)
        (self.root / "loop.sh").write_text(re.sub(r"^export BPS_SCHEDULER=.*\n", "", loop))
        weights = "torch.save(model.state_dict(), f'weights{bps.torch.rank()}.pt')"
        (self.root / "train.py").write_text(f"{TRAINING}{recipe}print('began at', first, flush=True)\n{weights}\n")
        environment = {**self.environment, "PYTHONPATH": str(SOURCE / "client/python"), "PYTHONDONTWRITEBYTECODE": "1",
                       "BPS_LIBRARY": str(BUILD / "lib/libbpsclient.so.0")}
        status, output = run("build/bin/bps-run -n 2 -s 1 -- bash loop.sh", self.root, environment)
        self.assertEqual(status, 0, output)
        ends = [output.count(f"worker ended with {status}\n") for status in (75, 137, 0)]
        self.assertEqual(ends, [1, 1, 2], output)
        self.assertEqual(output.count("began at 10"), 2, output)
        self.assertEqual(subprocess.run(["/usr/bin/python3", "-c", "import torch\na, b = (torch.load(f'weights{r}.pt') "
                                         "for r in (0, 1))\nassert all(torch.equal(a[k], b[k]) for k in a)"],
                                        cwd=self.root).returncode, 0)

    def test_only_the_two_long_commands_are_excused(self):
        excused = [(page, body) for page in self.pages for _, _, body, is_excused in blocks(self.pages[page]) if is_excused]
        self.assertEqual([page for page, _ in excused], ["README.md"])
        commands = [line.split("#")[0].strip() for line in excused[0][1].splitlines()]
        self.assertEqual(commands, ["bash deploy/demo.sh", "bash tests/run.sh"])

    def test_commands_write_nothing_into_the_source(self):
        ignored = [pattern.rstrip("/") for pattern in (SOURCE / ".gitignore").read_text().split()]
        for page, _, line, body, _ in self.in_blocks("bash"):
            for written in re.findall(r"-(?:o|out|keyout|B) (\S+)", body):
                self.assertTrue(any(fnmatch.fnmatch(written.split("/")[0], pattern) for pattern in ignored),
                                f"{page}:{line}: {written}")

    def test_the_demo_builds_every_program_of_the_first_page_and_the_operations_guide(self):
        built = re.search(r"--target (.*) \|\|", (SOURCE / "deploy/demo.sh").read_text()).group(1).split()
        for page in ("README.md", OPERATIONS):
            used = set(re.findall(r"\bbps-(?:scheduler|server|run|bench)\b|\bbpsctl\b", self.pages[page]))
            used |= set(re.findall(r"build/client/examples/(\w+)", self.pages[page]))
            self.assertGreaterEqual(len(used), 4)
            self.assertLessEqual(used, set(built), page)


class Programs(PagesTest):
    def test_c_and_cpp_compile(self):
        compiled = []
        for page, language, line, body, _ in self.in_blocks(*COMPILERS):
            compiled.append(f"{page} {language}")
            if "#include" not in body:  # a piece of a program
                body = f"{PROGRAM}int program([[maybe_unused]] std::size_t count, [[maybe_unused]] char** argv) {{\n{body}"
                body += "return 0;\n}\n"
            with self.subTest(page=page, line=line):
                done = subprocess.run([*COMPILERS[language], "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                                       f"-I{SOURCE}/client/include", "-"], input=body, capture_output=True, text=True,
                                      timeout=LIMIT)
                self.assertEqual(done.returncode, 0, f"{page}:{line}:\n{done.stderr}")
        self.assertEqual(compiled, ["README.md cpp"] + 5 * ["client/README.md cpp"] + ["client/gpu.md c"])

    def test_python_uses_names_that_exist(self):
        module = ast.parse((SOURCE / "client/python/bps/torch/__init__.py").read_text())
        there, = (ast.literal_eval(node.value) for node in module.body
                  if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
        parsed = []
        for page, _, line, body, _ in self.in_blocks("python"):
            parsed.append(page)
            ast.parse(body, f"{page}:{line}")
            for name in re.findall(r"\b(?:bps\.torch|hvd)\.(\w+)", body):
                self.assertIn(name, there, f"{page}:{line}")
        self.assertEqual(self.count(parsed), {"README.md": 1, "client/python/README.md": 7,
                                              "client/python/async.md": 1, "client/python/backend.md": 1,
                                              "client/python/from_horovod.md": 1, OPERATIONS: 1})


class Names(PagesTest):
    def test_flags(self):
        """In commands: of that program. In text: of any."""
        known = {name: help_of(BUILD / "bin" / name, "--help") for name in ("bps-scheduler", "bps-server", "bps-run", "bpsctl")}
        scripts = [help_of("bash", SOURCE / script, "--help") for script in ("deploy/demo.sh", "tests/run.sh", "tests/gpu.sh",
                                                                              "tests/rdma/run.sh")]
        everything = "".join([*known.values(), *scripts, (SOURCE / "client/python/examples/train_transformer.py").read_text()])
        foreign = ("--x-y", "--redirects 1 --tee 1")  # any setting; torchrun's
        commands = 0
        for page in GUIDES:
            for _, _, line, body, _ in self.in_blocks("", "bash", pages=[page]):
                for program, rest in re.findall(rf"(?:^|[\s/])({'|'.join(known)})\b(.*)", body):
                    commands += 1
                    for flag in re.findall(r"(--[a-z][\w-]*)", re.split(r" -- |#", rest)[0]):
                        self.assertRegex(known[program], rf"{flag}\b", f"{page}:{line}: {program} has no {flag}")
            for span in code_spans(self.pages[page]):
                if re.match(r"(--|bps-|bpsctl)", span) and span not in foreign:
                    for flag in re.findall(r"(--[a-z][\w-]*)", span):
                        self.assertRegex(everything, rf"{flag}\b", f"{page}: nothing has {flag}")
        self.assertGreaterEqual(commands, 15)

    def test_cmake_options(self):
        there = (SOURCE / "CMakeLists.txt").read_text()
        options = [option for _, _, _, body, _ in self.in_blocks("", pages=["README.md"])
                   for option in re.findall(r"-D(BPS_\w+)=", body)]
        self.assertEqual(len(options), 2)
        for option in options:
            self.assertIn(f"option({option} ", there)

    def test_settings(self):
        names = re.findall(r'^ *"([\w-]+)",$', next((SOURCE / path).read_text() for path in self.files
                                                    if path.name == "setting_names.h"), re.M)
        rows = re.findall(r"^\| (`[\w-]+`(?:, `[\w-]+`)*) \| (?:scheduler|server|worker)", self.text, re.M)
        self.assertEqual(len(rows), 12)
        for row in rows:
            for name in re.findall(r"`([\w-]+)`", row):
                self.assertIn(name, names)
        known = {"BPS_" + name.upper().replace("-", "_") for name in names} | {"BPS_CONFIG", "BPS_LIBRARY", "BPS_X_Y"}
        known |= set(re.findall(r"\bBPS_\w+", (SOURCE / "client/include/bps/bps.h").read_text()))
        known |= set(re.findall(r"option\((BPS_\w+) ", (SOURCE / "CMakeLists.txt").read_text()))
        for page in GUIDES:
            for name in re.findall(r"\bBPS_\w+", self.pages[page]):
                self.assertIn(name, known, page)

    def test_settings_of_a_client(self):
        """Its guide has a row for each setting that the library takes, and for no other."""
        names = re.findall(r'^ *"([\w-]+)",$', (SOURCE / "proto/base/config/setting_names.h").read_text(), re.M)
        library = ctypes.CDLL(str(BUILD / "lib/libbpsclient.so.0"))
        options = ctypes.create_string_buffer(1 << 16)
        library.bps_options_init(options, ctypes.c_size_t(len(options)))
        taken = [name for name in names if library.bps_options_set(options, name.encode(), b"?", None) != INVALID_ARGUMENT]
        self.assertGreater(len(taken), 30)
        section = re.search(r"^## Settings\n(.*?)^## ", self.pages["client/README.md"], re.S | re.M).group(1)
        rows = re.findall(r"^\| (`[\w-]+`(?:, `[\w-]+`)*)(?: \\\*)? \| [^|]+ \| [^|]+ \|$", section, re.M)
        self.assertEqual(sorted(name for row in rows for name in re.findall(r"`([\w-]+)`", row)), sorted(taken))

    def test_links(self):
        for page, text in self.pages.items():
            for target, anchor in re.findall(r"\]\(([^)\s:#]*)(?:#([^)\s]+))?\)", prose(text)):
                there = os.path.normpath(pathlib.Path(page).parent / target) if target else page
                self.assertTrue((SOURCE / there).exists(), f"{page}: {target}")
                if anchor:
                    self.assertIn(anchor, anchors(self.pages[there]), f"{page}: {target}")

    def test_files_and_folders(self):
        paths = ["/" + str(path) for path in self.files]
        for page in filter(is_guide, self.pages):
            for span in code_spans(self.pages[page]):
                if re.fullmatch(r"[a-z\d_./*-]*\w\.(h|hpp|cc|cu|inc|fbs|py|sh|md|cmake|in)", span) and not span.startswith("/"):
                    inside = span.removeprefix("../").removeprefix("../")
                    self.assertTrue(fnmatch.filter(paths, f"*/{inside}"), f"{page}: {span}")
        places = self.text.split("## Where things are")[1]
        rows = re.findall(r"^\| (`[^|]+`) \| (.*) \|$", places, re.M)
        self.assertEqual(len(rows), 7)
        for folders, contents in rows:
            for folder in re.findall(r"`([\w/]+)/`", folders):
                self.assertTrue((SOURCE / folder).is_dir(), folder)
                for name in re.findall(r"`(\w+)`", contents):  # files that a newcomer looks for
                    self.assertTrue(list((SOURCE / folder).rglob(f"{name}.h")), f"{folder}: {name}")

    def test_sizes(self):
        lines = self.text.splitlines()
        self.assertLessEqual(len(lines), 180)
        self.assertLess(max(map(len, lines)), 120)
        for page in filter(is_guide, self.pages):
            for number, line in enumerate(self.pages[page].splitlines(), 1):
                self.assertLessEqual(len(line), 120, f"{page}:{number}")


if __name__ == "__main__":
    SOURCE, BUILD = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
    unittest.main()
