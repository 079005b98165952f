#!/usr/bin/env python3
"""Real daemons and workers with TLS, and what people without the right certificate can do.

    tls_test.py PROGRAM-FOLDER WORKER [unittest arguments]
"""
import contextlib
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time

from daemons import DaemonTest, main

UNAUTHORISED = 77
CONFIGURATION = 78
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """A folder with the certificates that one authority has signed, made with the openssl command."""

    def __init__(self, folder, name):
        self.folder = folder / name.replace(" ", "-")
        self.folder.mkdir()
        self.ca = self.folder / "ca.pem"
        self.openssl("req", "-x509", *CURVE, "-days", "30", "-subj", f"/CN={name}", "-keyout", "ca.key", "-out", "ca.pem")

    def openssl(self, *words):
        subprocess.run(["openssl", *map(str, words)], cwd=self.folder, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.PIPE)

    def issue(self, name):
        """(certificate, key)"""
        self.openssl("req", *CURVE, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                     "-days", "30", "-out", f"{name}.pem")
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"


class TlsTest(DaemonTest):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.authority = Authority(folder, "the cluster")
        cls.stranger = Authority(folder, "somebody else")
        cls.machine = cls.authority.issue("machine")
        cls.other_machine = cls.authority.issue("other-machine")
        cls.wrong_machine = cls.stranger.issue("wrong-machine")

    def flags(self, issued=None, ca=None):
        certificate, key = issued or self.machine
        return "--tls-cert", certificate, "--tls-key", key, "--tls-ca", ca or self.authority.ca

    def variables(self, issued=None, **more):
        words = self.flags(issued)
        named = {name.lstrip("-").replace("-", "_").upper(): str(value) for name, value in zip(words[::2], words[1::2])}
        return {"BPS_" + name: value for name, value in named.items()} | {"BPS_TRANSPORT": "tcp"} | more

    def tls_cluster(self, servers=1, *flags):
        scheduler = self.scheduler(*self.flags(), *flags)
        return scheduler, [self.server(scheduler, *self.flags(), *flags) for _ in range(servers)]

    def assert_tls_job_works(self, scheduler, job="check", **more):
        workers = self.workers(scheduler, 2, "--elements", "300000", "--rounds", "3", job=job,
                               env=self.variables(self.other_machine, **more))
        for worker in workers:
            self.assert_status(worker, 0, "closed")


class Cluster(TlsTest):
    def test_a_cluster_with_tls(self):
        scheduler, servers = self.tls_cluster(2)
        self.assert_tls_job_works(scheduler)
        self.assert_tls_job_works(scheduler, job="over shared memory", BPS_TRANSPORT="auto")
        self.assertRegex(scheduler.text(), "listens on .*with TLS")
        # As others see it: TLS 1.3, and nothing without a certificate of the authority.
        for daemon in (scheduler, *servers):
            with self.connect(daemon.address) as peer:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname = False
                context.load_verify_locations(self.authority.ca)
                context.load_cert_chain(*self.other_machine)
                with context.wrap_socket(peer) as secure:
                    self.assertEqual(secure.version(), "TLSv1.3")
                    self.assertIn(("commonName", "machine"), [entry[0] for entry in secure.getpeercert()["subject"]])

    def test_tls_and_a_key(self):
        key = self.folder / "cluster.key"
        key.write_text("00112233445566778899aabbccddeeff\n")
        key.chmod(0o600)
        scheduler, _ = self.tls_cluster(1, "--key-file", key)
        self.assert_tls_job_works(scheduler, BPS_KEY_FILE=str(key))
        worker = self.worker(scheduler, 0, 1, job="without", env=self.variables())
        self.assert_status(worker, UNAUTHORISED, "lets nobody in without a key")

    def test_other_addresses_are_allowed_with_it(self):
        self.start("scheduler", self.bin / "bps-scheduler", "--listen", "0.0.0.0:0", *self.flags()).wait_line("listens on 0.0.0.0")
        refused = self.start("scheduler", self.bin / "bps-scheduler", "--listen", "0.0.0.0:0")
        self.assert_status(refused, CONFIGURATION, "--tls-cert")

    def test_a_server_that_dies_under_tls(self):
        scheduler, servers = self.tls_cluster(2)
        workers = self.workers(scheduler, 2, "--elements", "300000", "--rounds", "40", "--announce", "5", "--hold-after", "30",
                               env=self.variables())
        for worker in workers:
            worker.wait_line("reached 5")
        servers[0].process.kill()
        for worker in workers:
            worker.say()
        for worker in workers:
            self.assert_status(worker, 0, "closed")


class Refused(TlsTest):
    def test_who_has_no_tls(self):
        scheduler, servers = self.tls_cluster()
        self.assert_status(self.worker(scheduler, 0, 1), UNAUTHORISED, "speaks without TLS", "BPS_TLS_CERT")
        server = self.start("plain server", self.bin / "bps-server", "--scheduler", scheduler.address)
        self.assert_status(server, UNAUTHORISED, "speaks without TLS", "--tls-cert")
        own_port = r"TLS with 127\.0\.0\.1"
        asked = subprocess.run([self.bin / "bpsctl", "--scheduler", scheduler.address, "status"], capture_output=True, text=True)
        self.assertEqual(asked.returncode, UNAUTHORISED, asked.stderr)
        self.assertRegex(asked.stderr, f"the scheduler at {scheduler.address} refuses: who speaks without TLS")
        for text in (asked.stderr, server.text()):
            self.assertNotRegex(text, own_port)
        scheduler.wait_line("speaks without TLS, and without it nobody is let in")
        self.assert_tls_job_works(scheduler)

    def test_a_cluster_that_has_none(self):
        scheduler, _ = self.cluster()
        self.assert_status(self.worker(scheduler, 0, 1, env=self.variables()), UNAUTHORISED,
                           "speaks without TLS, which this side asks for", "take them away here")
        server = self.start("server", self.bin / "bps-server", "--scheduler", scheduler.address, *self.flags())
        self.assert_status(server, UNAUTHORISED, "speaks without TLS, which this side asks for")
        asked = subprocess.run([self.bin / "bpsctl", "--scheduler", scheduler.address, *self.flags(), "status"], capture_output=True,
                               text=True)
        self.assertEqual(asked.returncode, UNAUTHORISED, asked.stderr)
        self.assertRegex(asked.stderr, f"{scheduler.address}.*speaks without TLS, which this side asks for.*take them away here")
        scheduler.wait_line("speaks TLS, and this side has none")
        self.assert_works(scheduler)

    def test_who_has_a_certificate_of_somebody_else(self):
        # It would not start with the cluster's authority as its own, so it says that it trusts both.
        both = self.folder / "both.pem"
        both.write_text(self.authority.ca.read_text() + self.stranger.ca.read_text())
        scheduler, servers = self.tls_cluster()
        wrong = self.variables(self.wrong_machine, BPS_TLS_CA=str(both))
        self.assert_status(self.worker(scheduler, 0, 1, env=wrong), UNAUTHORISED,
                           "it refuses the certificate of this side: another authority")
        server = self.start("server", self.bin / "bps-server", "--scheduler", scheduler.address,
                            *self.flags(self.wrong_machine, both))
        self.assert_status(server, UNAUTHORISED, "it refuses the certificate of this side: another authority")
        scheduler.wait_line(r"its certificate \(CN = wrong-machine\) is refused: it is not signed by the authority")
        self.assert_tls_job_works(scheduler)

    def test_files_that_are_refused(self):
        certificate, key = self.machine
        open_key = self.folder / "open.key"
        open_key.write_text(key.read_text())
        open_key.chmod(0o644)
        none = self.folder / "none"
        cases = [
            ((certificate, open_key), None, rf"{open_key} is open to others"),
            ((certificate, self.other_machine[1]), None, rf"{self.other_machine[1]} is not the key of the certificate in {certificate}"),
            ((none, key), None, rf"{none} cannot be read: No such file"),
            ((certificate, none), None, rf"{none}: No such file"),
            ((certificate, key), none, rf"{none} cannot be read: No such file"),
            ((key, key), None, rf"{key} holds no certificate"),
            (self.wrong_machine, None, rf"{self.wrong_machine[0]} would be refused by the others: it is not signed"),
        ]
        for issued, ca, said in cases:
            for program in ("bps-scheduler", "bps-server"):
                with self.subTest(program=program, said=said):
                    self.assert_status(self.start(program, self.bin / program, *self.flags(issued, ca)), CONFIGURATION, said)
            with self.subTest(program="worker", said=said):
                variables = self.variables(issued) | ({"BPS_TLS_CA": str(ca)} if ca else {})
                self.assert_status(self.worker("127.0.0.1:1", 0, 1, env=variables), CONFIGURATION, said)
        only = self.start("scheduler", self.bin / "bps-scheduler", "--tls-cert", certificate)
        self.assert_status(only, CONFIGURATION, "without --tls-key")

    def test_silence_and_noise(self):
        scheduler, servers = self.tls_cluster()
        for daemon in (scheduler, servers[0]):
            before, began = self.memory(daemon), time.monotonic()
            idle = [self.connect(daemon.address) for _ in range(1500)]
            for i, peer in enumerate(idle):
                # Nothing, the beginning of a handshake, or what is no TLS at all.
                noise = (b"", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n", os.urandom(100))[i % 4]
                with contextlib.suppress(ConnectionError):  # closed again already: fine
                    peer.sendall(noise)
            since = time.monotonic()
            for peer in idle:
                with peer:
                    self.until_closed(peer)
            self.assertLess(time.monotonic() - since, 60)
            self.assertLess(self.memory(daemon) - before, 192 << 20)
            self.assertLess(len(daemon.lines), 60 + time.monotonic() - began, "one line a second is enough")
        self.assert_tls_job_works(scheduler)

    def until_closed(self, peer):
        try:
            while peer.recv(65536):
                pass
        except ConnectionError:
            pass  # reset: fine

    def memory(self, daemon):
        status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s*(\d+) kB", status).group(1)) * 1024


if __name__ == "__main__":
    main(__name__, sys.argv)
