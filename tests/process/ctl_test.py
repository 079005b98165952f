#!/usr/bin/env python3
"""bpsctl against real daemons: what there is, servers that are sent away, and who may ask.

    ctl_test.py PROGRAM-FOLDER WORKER [unittest arguments]
"""
import json
import subprocess
import sys
import unittest

from daemons import LIMIT, DaemonTest, main


class Ctl(DaemonTest):
    def ctl(self, scheduler, *words, status=0, environment=None):
        done = subprocess.run([str(self.bin / "bpsctl"), "--scheduler", getattr(scheduler, "address", scheduler),
                               *map(str, words)], capture_output=True, text=True, env=environment or {}, timeout=LIMIT)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stderr

    def ask(self, scheduler, *words):
        return json.loads(self.ctl(scheduler, *words, "--json"))

    def test_status_and_drain(self):
        scheduler, servers = self.cluster(2)
        state = self.ask(scheduler, "status")
        self.assertEqual([server["server"] for server in state["servers"]], [1, 2])
        self.assertEqual(state["jobs"], [])
        self.assertEqual(self.ask(scheduler, "why")["waits"], [])
        self.assertRegex(self.ctl(scheduler, "drain", "1"), r"server 1 drains: 0 jobs .*\n"
                                                            r"server 1 has gone: 0 partitions moved")
        self.assert_status(servers[0], 0, "drained")
        self.assertEqual([server["server"] for server in self.ask(scheduler, "status")["servers"]], [2])
        self.assertIn("is the last one", self.ctl(scheduler, "drain", "2", status=64))
        self.assertIn("there is no server 7", self.ctl(scheduler, "drain", "7", status=64))

    def test_keys(self):
        key, wrong = self.folder / "key", self.folder / "wrong"
        for path, digits in ((key, "01" * 32), (wrong, "02" * 32)):
            path.write_text(digits + "\n")
            path.chmod(0o600)
        scheduler = self.scheduler("--key-file", key)
        self.assertIn("no server", self.ctl(scheduler, "status", "--key-file", key))
        self.assertIn("no server", self.ctl(scheduler, "status", environment={"BPS_KEY_FILE": str(key)}))
        self.assertIn("key", self.ctl(scheduler, "status", "--key-file", wrong, status=77))
        self.assertIn("key", self.ctl(scheduler, "status", status=77))

    def test_wrong_words(self):
        nobody = f"127.0.0.1:{self.free_port()}"
        self.assertIn("does not answer", self.ctl(nobody, "status", status=69))
        self.assertIn("did you mean status?", self.ctl(nobody, "statsu", status=64))
        self.assertIn("which command?", self.ctl(nobody, status=64))
        self.assertIn("drain which server?", self.ctl(nobody, "drain", status=64))
        self.assertIn("--json", self.ctl(nobody, "status", "--jsn", status=64))


if __name__ == "__main__":
    main(__name__, sys.argv)
