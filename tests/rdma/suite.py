#!/usr/bin/env python3
"""All tests of this folder, run inside the guest by run.sh:

    suite.py BUILD-DIR [--transport rdma|tcp] [--only REGEX] [--list]
"""
import argparse
import pathlib
import re
import sys
import time
import unittest

import cluster_test
import conformance_test
import devices_test
import transport_test
from guest_test import GuestTest
from roce_lab import RoceLab

HOSTS = 6
MODULES = (devices_test, conformance_test, transport_test, cluster_test)  # what others rest on comes first


class TimedResult(unittest.TextTestResult):
    """Says how long each test took, and at once what went wrong: a guest may be ended before all are through."""

    def getDescription(self, test):
        return name_of(test)

    def startTest(self, test):
        self.began = time.monotonic()
        super().startTest(test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.stream.writeln(self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.stream.writeln(self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            of = self.failures if issubclass(err[0], test.failureException) else self.errors
            self.stream.writeln(of[-1][1])

    def printErrors(self):
        pass

    def stopTest(self, test):
        super().stopTest(test)
        self.stream.writeln(f"    {time.monotonic() - self.began:.1f} s")
        self.stream.flush()


def tests_of(suite):
    for test in suite:
        yield from tests_of(test) if isinstance(test, unittest.TestSuite) else (test,)


def name_of(test):
    return test.id().split(".", 1)[-1]


def selected(only):
    loader = unittest.defaultTestLoader
    loaded = [test for module in MODULES for test in tests_of(loader.loadTestsFromModule(module))]
    return [test for test in loaded if re.search(only, name_of(test))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--transport", choices=("rdma", "tcp"), default="rdma")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true", help="names, and nothing else")
    arguments = parser.parse_args()

    tests = selected(arguments.only)
    if arguments.list:
        print("\n".join(map(name_of, tests)))
        return 0
    if not tests:
        print(f"rdma: no test is called like {arguments.only}")
        return 64
    GuestTest.build = arguments.build.resolve()
    GuestTest.bin = GuestTest.build / "bin"
    GuestTest.worker_program = GuestTest.build / "tests/process/process_worker"
    GuestTest.transport = arguments.transport
    GuestTest.lab = RoceLab(HOSTS)
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=TimedResult)
    result = runner.run(unittest.TestSuite(tests))
    for test, why in result.skipped:
        print(f"rdma: not run: {name_of(test)}: {why}")
    for test, _ in result.failures + result.errors:
        print(f"rdma: failed: {name_of(test)}")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
