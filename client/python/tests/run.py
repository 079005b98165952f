"""Runs tests of this folder against a build.

    run.py BUILD_FOLDER MODULE [unittest arguments]       e.g. run.py build client_test -k callback
"""
import os
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent.parent

if __name__ == "__main__":
    build = pathlib.Path(sys.argv[1]).resolve()
    module = sys.argv[2]
    os.environ["BPS_LIBRARY"] = str(build / "lib" / "libbpsclient.so.0")
    os.environ["VIRTUAL_GPU_DRIVER"] = str(build / "tests" / "gpu" / "driver")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(HERE), str(HERE.parent), str(SOURCE / "tests" / "process")]
    import harness

    harness.WorkerTest.bin = build / "bin"
    unittest.main(module=module, argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
