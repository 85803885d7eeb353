#!/usr/bin/env python3
"""Ctrl-C: every command ends at once, with its documented exit code, and leaves no process behind."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

PROGRAM = ""
LIMIT_S = 5


def start(*arguments):
    return subprocess.Popen([PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def children_of(pid):
    """Processes whose parent is pid."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def runs(pid):
    """Whether the process exists and is no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class InterruptTest(unittest.TestCase):
    def start(self, *arguments):
        process = start(*arguments)

        def end():
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()

        self.addCleanup(end)
        return process

    def node(self, *arguments):
        process = self.start(*arguments)
        line = process.stdout.readline()
        self.assertTrue(line.startswith("listening on "), line)
        return process, line.split()[-1]

    def interrupt(self, process, expected, signal_number=signal.SIGINT):
        process.send_signal(signal_number)
        begin = time.monotonic()
        self.assertEqual(process.wait(LIMIT_S), expected)
        self.assertLess(time.monotonic() - begin, LIMIT_S)

    def test_prefill(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process, _ = self.node("prefill", "--model", "toy", "--listen", "127.0.0.1:0")
            self.interrupt(process, 0, number)
            self.assertIn("Ctrl-C stops", process.stderr.read())

    def test_link(self):
        process, _ = self.node("link", "--to", "127.0.0.1:1")
        self.interrupt(process, 0)

    def test_generate_while_it_answers(self):
        _, address = self.node("prefill", "--model", "toy", "--listen", "127.0.0.1:0")
        process = self.start("generate", "--model", "toy", "--context", "1000000", "--prefill", address, "--prompt",
                             "a lynx", "--max-tokens", "900000")
        self.assertTrue(process.stdout.read(5))
        self.interrupt(process, 130)
        self.assertIn("codec", process.stderr.read())  # what there is, is reported

    def test_generate_while_the_cache_travels(self):
        _, prefill = self.node("prefill", "--model", "toy", "--listen", "127.0.0.1:0")
        _, link = self.node("link", "--to", prefill, "--bandwidth", "20kbit")
        process = self.start("generate", "--model", "toy", "--prefill", link, "--prompt", "a lynx " * 80)
        time.sleep(0.5)
        self.assertIsNone(process.poll())
        self.interrupt(process, 130)
        self.assertEqual(process.stderr.read(), "")

    def demo(self):
        process = self.start("demo", "--model", "toy", "--bandwidth", "1mbit", "--prompt-tokens", "800")
        for line in process.stdout:
            if line.startswith("2. "):
                break
        children = children_of(process.pid)
        self.assertEqual(len(children), 2)  # prefill node and link
        return process, children

    def check_gone(self, children):
        end = time.monotonic() + LIMIT_S
        while any(runs(child) for child in children) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual([child for child in children if runs(child)], [])

    def test_demo(self):
        process, children = self.demo()
        self.interrupt(process, 130)
        self.check_gone(children)

    def test_demo_twice_at_once(self):
        """Impatient Ctrl-C: the second ends the process without its own clearing up."""
        process, children = self.demo()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(LIMIT_S), 130)
        self.check_gone(children)

    def test_demo_killed(self):
        process, children = self.demo()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        self.check_gone(children)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
