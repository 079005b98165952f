"""The wheel bundles the library, and works in a fresh environment that knows nothing else of bps."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ONE_WORKER = """
import array, bps, pathlib
assert "site-packages" in bps.__file__, bps.__file__
with bps.KVStore(scheduler="embedded:") as store:
    total = array.array("f", [1, 2, 3])
    store.pushpull("x", total)
print(bps.__version__, bps.library_version(), total.tolist())
"""


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.environment = {"PATH": os.environ["PATH"], "HOME": folder.name, "PIP_NO_INDEX": "1"}
        cls.execute([sys.executable, "-m", "venv", cls.folder / "env"])
        cls.python = cls.folder / "env/bin/python"
        # Its build folder would be the source folder.
        cls.source = cls.folder / "source"
        cls.execute(["cp", "-r", HERE.parent, cls.source])

    @classmethod
    def execute(cls, command, status=0, **env):
        ended = subprocess.run([str(word) for word in command], env={**cls.environment, **env}, cwd=cls.folder,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        if ended.returncode != status:
            raise AssertionError(f"{command}: {ended.returncode}\n{ended.stdout}")
        return ended.stdout

    def wheel(self, **env):
        into = tempfile.mkdtemp(dir=self.folder)
        self.execute([self.python, "-m", "pip", "wheel", "--no-deps", "-w", into, self.source], **env)
        path, = pathlib.Path(into).iterdir()
        return path

    def test_with_the_library(self):
        path = self.wheel(BPS_LIBRARY=os.environ["BPS_LIBRARY"])
        self.assertRegex(path.name, r"^libbps-[\d.]+-py3-none-linux_\w+\.whl$")
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        self.assertIn("bps/lib/libbpsclient.so.0", names)
        self.assertIn("bps/py.typed", names)
        known = r"bps/[\w/]+\.py$|bps/py.typed$|bps/lib/|libbps-[\d.]+\.(dist-info/|data/scripts/bps)"
        self.assertFalse([name for name in names if not re.match(known, name)])

        self.execute([self.python, "-m", "pip", "install", path])
        self.assertEqual(self.execute([self.python, "-c", ONE_WORKER]).split(), ["0.1.0", "0.1.0", "[1.0,", "2.0,", "3.0]"])
        for name in ("bps-scheduler", "bps-server", "bps-run", "bpsctl"):
            self.assertIn("0.1.0", self.execute([self.folder / "env/bin" / name, "--version"]))
        asked = "import importlib.metadata as m; print([e.value for e in m.entry_points().get('torch.distributed.backends', [])])" \
            if sys.version_info < (3, 10) else \
            "import importlib.metadata as m; print([e.value for e in m.entry_points(group='torch.distributed.backends')])"
        self.assertIn("bps.torch.backend:register", self.execute([self.python, "-c", asked]))
        self.execute([self.python, "-m", "pip", "uninstall", "-y", "libbps"])

    def test_from_an_installed_tree(self):
        """`cmake --install`, then `pip install ./client/python`: pkg-config says where the library is."""
        build = pathlib.Path(os.environ["BPS_LIBRARY"]).parent.parent
        self.execute(["cmake", "--install", build, "--prefix", self.folder / "prefix", "--component", "client"])
        config, = (self.folder / "prefix").rglob("bpsclient.pc")
        self.execute([self.python, "-m", "pip", "install", self.source], PKG_CONFIG_PATH=str(config.parent))
        self.assertIn("[1.0, 2.0, 3.0]", self.execute([self.python, "-c", ONE_WORKER]))
        self.execute([self.python, "-m", "pip", "uninstall", "-y", "libbps"])

    def test_without_a_library(self):
        """The wheel is for every platform, and says what is missing when it is used."""
        path = self.wheel(PKG_CONFIG_LIBDIR=str(self.folder))
        self.assertRegex(path.name, r"-py3-none-any\.whl$")
        self.execute([self.python, "-m", "pip", "install", path])
        self.assertIn("cannot be loaded", self.execute([self.python, "-c", ONE_WORKER], status=78))
        self.execute([self.python, "-m", "pip", "uninstall", "-y", "libbps"])

    def test_the_named_library_is_not_there(self):
        output = self.execute([self.python, "-m", "pip", "wheel", "--no-deps", self.source], status=1, BPS_LIBRARY="/nowhere.so")
        self.assertIn("there is no library /nowhere.so", output)
