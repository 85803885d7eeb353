#!/usr/bin/env python3
"""Two real processes that speak TLS with certificates of `lynx certs`, and strangers at their door."""

import json
import pathlib
import resource
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import time

from lynx_processes import PROMPT, TOY, Generate, ProcessTest, main

HANDSHAKE_S = 5.0  # an unfinished handshake is closed then ...
SLACK_S = 1.5  # ... plus what a loaded machine needs


class EncryptionTest(ProcessTest):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lynx-tls-")
        self.addCleanup(self.folder.cleanup)
        self.certs("certs", "--name", "prefill", "--name", "decode")

    def path(self, name):
        return str(pathlib.Path(self.folder.name) / name)

    def certs(self, folder, *arguments, code=0):
        run = subprocess.run([self.program, "certs", "--dir", self.path(folder), *arguments], stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, timeout=20)
        self.assertEqual(run.returncode, code, run.stderr)
        return run

    def tls(self, name, allow=None, folder="certs"):
        stem = f"{self.path(folder)}/{name}"
        flags = ["--tls-cert", f"{stem}.pem", "--tls-key", f"{stem}.key", "--tls-ca", f"{self.path('certs')}/ca.pem"]
        return flags + (["--tls-allow", allow] if allow else [])

    def generate(self, address, *arguments):
        return self.start(Generate, *TOY, "--prefill", address, "--prompt", PROMPT, "--quiet", *arguments)

    def check_refused(self, generate, words):
        self.assertEqual(generate.wait(20), 1, generate.stderr)
        lines = generate.stderr.splitlines()
        self.assertEqual(len(lines), 1, generate.stderr)
        self.assertIn(words, lines[0])

    def test_answers(self):
        """The same answer over a slow link, encrypted and not."""
        answers = []
        for prefill_tls, decode_tls in (((), ()), (self.tls("prefill", "decode"), self.tls("decode", "prefill"))):
            prefill = self.prefill_node(*prefill_tls)
            link = self.node("link", "--to", prefill.address, "--bandwidth", "10mbit")
            generate = self.generate(link.address, "--max-tokens", "50", "--check", "--json", self.path("run.json"),
                                     *decode_tls)
            self.assertEqual(generate.wait(40), 0, generate.stderr)
            answers.append(json.loads(pathlib.Path(self.path("run.json")).read_text())["runs"][0])
        self.assertIs(answers[1]["exact"], True)
        self.assertEqual(answers[0]["tokens"], answers[1]["tokens"])

    def test_dead_path_is_noticed(self):
        prefill = self.prefill_node(*self.tls("prefill", "decode"))
        link = self.node("link", "--to", prefill.address, "--bandwidth", "500kbit")
        generate = self.generate(link.address, *self.tls("decode", "prefill"))
        prefill.wait_for("request", 20)  # its pages travel for seconds
        link.process.send_signal(signal.SIGSTOP)
        prefill.wait_for("0 open", 2 + SLACK_S)
        self.check_refused(generate, "heartbeat")

    def test_strangers(self):
        """B14, fault 24: each is refused with its reason on both sides, and the node serves on."""
        prefill = self.prefill_node(*self.tls("prefill", "decode"))
        self.certs("other", "--name", "decode")
        self.certs("certs", "--name", "someone")
        cases = (
            (self.tls("decode", "prefill", folder="other"), "refuses this node's certificate", "unable to get local issuer"),
            (self.tls("someone", "prefill"), "refuses this node's certificate", "it is for someone"),
            (self.tls("decode", "elsewhere"), "it is for prefill, which --tls-allow does not name", "refuses this node's"),
            (self.tls("decode"), "it is for prefill, not for 127.0.0.1", "refuses this node's"),
            ([], "", "does not speak TLS"),
        )
        for flags, here, there in cases:
            with self.subTest(there, flags=flags):
                self.check_refused(self.generate(prefill.address, *flags), here)
                prefill.wait_for(there, 5)
        again = self.generate(prefill.address, "--max-tokens", "8", *self.tls("decode", "prefill"))
        self.assertEqual(again.wait(20), 0, again.stderr)
        self.assertFalse([line for line in prefill.log if "PRIVATE" in line])

    def test_another_tls_library_user(self):
        """Python's ssl module, without a certificate and with an old version."""
        prefill = self.prefill_node(*self.tls("prefill", "decode"))
        host, port = prefill.address.rsplit(":", 1)
        for version, words in ((ssl.TLSVersion.TLSv1_3, "the peer has no certificate"),
                               (ssl.TLSVersion.TLSv1_2, "unsupported protocol")):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.maximum_version = version
            with self.subTest(words), socket.create_connection((host, int(port)), 5) as raw:
                with self.assertRaises(ssl.SSLError):
                    with context.wrap_socket(raw) as client:
                        client.recv(1)
                prefill.wait_for(words, 5)

    def test_stalled_handshake(self):
        """B14: whoever connects and says nothing is gone after five seconds."""
        prefill = self.prefill_node(*self.tls("prefill", "decode"))
        host, port = prefill.address.rsplit(":", 1)
        begin = time.monotonic()
        with socket.create_connection((host, int(port)), 5) as silent:
            silent.settimeout(10)
            self.assertEqual(silent.recv(1), b"")
        took = time.monotonic() - begin
        self.assertGreaterEqual(took, HANDSHAKE_S - 0.1)
        self.assertLessEqual(took, HANDSHAKE_S + SLACK_S)

    def test_renewed(self):
        """New files are used by the next connection."""
        prefill = self.prefill_node(*self.tls("prefill"))
        self.certs("certs", "--name", "renewed")
        for ending in ("pem", "key"):
            shutil.copy(f"{self.path('certs')}/renewed.{ending}", f"{self.path('certs')}/prefill.{ending}")
        generate = self.generate(prefill.address, "--max-tokens", "8", *self.tls("decode", "renewed"))
        self.assertEqual(generate.wait(20), 0, generate.stderr)
        prefill.wait_for("certificates were read again", 5)

    def test_files(self):
        """Keys are for their owner, and nothing is overwritten."""
        folder = pathlib.Path(self.path("certs"))
        self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o700)
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
        self.assertEqual(set(files), {f"{stem}.{end}" for stem in ("ca", "prefill", "decode") for end in ("pem", "key")})
        for name in files:
            mode = stat.S_IMODE((folder / name).stat().st_mode)
            self.assertEqual(mode & 0o077 if name.endswith(".key") else 0, 0, name)
        self.assertIn("is there already", self.certs("certs", "--name", "new", "--name", "decode", code=2).stderr)
        self.assertEqual({file.name: file.read_bytes() for file in folder.iterdir()}, files)

    def test_files_that_can_not_be_written(self):
        """Half of a CA would be in the way of the next try."""
        def full():  # the CA's two files fit
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))

        run = subprocess.run([self.program, "certs", "--dir", self.path("new"), "--name", "spiffe://" + "x" * 190],
                             preexec_fn=full, capture_output=True, text=True, timeout=20)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertEqual(list(pathlib.Path(self.path("new")).iterdir()), [])
        self.certs("new", "--name", "n0")


if __name__ == "__main__":
    main()
