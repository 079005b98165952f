"""The transport's own suite on a real kernel driver, and what it says about itself."""
import os
import re

from guest_test import GuestTest

LIMIT = 200  # seconds


class Conformance(GuestTest):
    def test_the_suite_that_every_transport_passes(self):
        program = self.build / "tests/conformance/conformance_rdma"
        if not os.access(program, os.X_OK):
            self.skipTest("there is no conformance_rdma: bps was built without rdma-core")
        told = self.run_to_end(program, environment={"BPS_RDMA_TEST_ADDRESS": self.lab.address(1)}, limit=LIMIT)
        passed = re.search(r"^All tests passed \(.*\)$", told, re.M)
        self.assertTrue(passed, f"nothing was tested:\n{told}")
        print(passed.group(0))
