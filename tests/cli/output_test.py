#!/usr/bin/env python3
"""Standard streams that are closed or full: output that is lost is a failure, and never reaches a peer."""

import os
import subprocess
import sys
import unittest

PROGRAM = ""
LIMIT_S = 20


def run(redirection, *arguments, stdin=subprocess.DEVNULL):
    """The exit code and standard error of lynx with the shell's redirection."""
    done = subprocess.run(["sh", "-c", f'exec "$@" {redirection}', "sh", PROGRAM, *arguments], stdin=stdin,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    return done.returncode, done.stderr


class OutputTest(unittest.TestCase):
    def setUp(self):
        self.node = self.start("")

    def start(self, redirection):
        node = subprocess.Popen(["sh", "-c", f'exec "$@" {redirection}', "sh", PROGRAM, "prefill", "--model", "toy",
                                 "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                text=True)
        self.addCleanup(node.stdout.close)
        self.addCleanup(node.wait)
        self.addCleanup(node.kill)
        return node

    def generate(self, redirection, *more):
        address = self.node.stdout.readline().split()[-1]
        return run(redirection, "generate", "--model", "toy", "--prefill", address, "--max-tokens", "5", *more)

    def test_full(self):
        code, error = self.generate(">/dev/full", "--prompt", "Hello")
        self.assertEqual(code, 1)
        self.assertIn("can't write to standard output", error)

    def test_closed(self):
        code, error = self.generate(">&-", "--prompt", "Hello")
        self.assertEqual(code, 1)
        self.assertIn("can't write to standard output", error)

    def test_closed_but_not_needed(self):
        self.assertEqual(self.generate(">&- <&-", "--prompt", "Hello", "--quiet"), (0, ""))

    def test_closed_input_is_an_empty_prompt(self):
        code, error = self.generate("<&-", "--prompt-file", "-")
        self.assertEqual(code, 2)
        self.assertIn("the prompt is empty", error)

    def test_help(self):
        self.assertEqual(run(">/dev/full", "--help")[0], 1)

    def test_sockets_take_no_place_of_a_closed_stream(self):
        node = self.start(">&- 2>&- <&-")
        folder = f"/proc/{node.pid}/fd"
        links = {}
        while not any(link.startswith("socket:") for link in links.values()):
            self.assertIsNone(node.poll())
            try:
                links = {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
            except OSError:
                continue  # a file was closed while we looked
        self.assertEqual([links[name] for name in "012"], ["/dev/null"] * 3)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
