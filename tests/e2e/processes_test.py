#!/usr/bin/env python3
"""Two real processes with the toy engine over a slow link: killed, stopped and cut off at every phase.

The chain is: lynx generate -> lynx link -> tap -> lynx prefill. The tap holds the transfer at an exact frame, so a
phase does not depend on the machine's speed; what it holds is lost when a process is killed.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from lynx_processes import (BEFORE_REQUEST, DURING_ANCHOR, DURING_RESIDUAL, END, PROMPT, TOY, UNFINISHED, Generate,
                            ProcessTest, check_report, main)

VERDICT_S = 2.0  # dead or silent peers are noticed within this ...
SLACK_S = 1.5  # ... plus what a loaded machine needs to start and end a process


class ProcessesTest(ProcessTest):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lynx-e2e-")
        self.addCleanup(self.folder.cleanup)
        self.prefill = self.prefill_node()
        self.tap = self.tap_of(self.prefill)
        self.link = self.node("link", "--to", self.tap.address, "--bandwidth", "2mbit", "--delay", "1ms")

    def generate(self, *arguments, address=None):
        return self.start(Generate, *TOY, "--prefill", address or self.link.address, "--prompt", PROMPT, "--overlap",
                          "off", "--retries", "0", "--quiet", *arguments)

    def check_serves(self):
        """The prefill node still answers, around link and tap, and has forgotten the request that ended early."""
        again = self.generate("--max-tokens", "8", "--check", address=self.prefill.address)
        self.assertEqual(again.wait(20), 0, again.stderr)

    def check_one_error(self, generate, *words):
        lines = generate.stderr.splitlines()
        self.assertEqual(len(lines), 1, generate.stderr)
        self.assertTrue(lines[0].startswith("lynx generate: "), lines[0])
        for word in words:
            self.assertIn(word, lines[0])

    def verdict(self, generate, begin, limit_s):
        code = generate.wait(limit_s + 10)
        took = time.monotonic() - begin
        print(f"{took:.2f} s ", end="", file=sys.stderr, flush=True)
        self.assertLessEqual(took, limit_s, f"verdict after {took:.2f} s; {generate.stderr}")
        return code

    def test_prefill_killed(self):
        for name, where in UNFINISHED.items():
            with self.subTest(name):
                prefill = self.prefill_node()
                tap = self.tap_of(prefill)
                link = self.node("link", "--to", tap.address, "--bandwidth", "2mbit")
                tap.hold(*where)
                generate = self.generate("--max-tokens", "20", address=link.address)
                tap.held()
                begin = time.monotonic()
                prefill.kill()
                tap.close()
                self.assertEqual(self.verdict(generate, begin, VERDICT_S + SLACK_S), 1)
                self.check_one_error(generate, "connection")

    def test_prefill_killed_after_the_last_stream(self):
        whole = self.generate("--max-tokens", "2500", "--json", self.path("whole.json"), address=self.prefill.address)
        self.assertEqual(whole.wait(60), 0, whole.stderr)
        self.tap.hold(False, END, 1)
        generate = self.generate("--max-tokens", "2500", "--json", self.path("killed.json"))
        self.tap.held()
        self.tap.release()
        time.sleep(0.05)  # END crosses the link
        self.assertIsNone(generate.process.poll(), "the answer is too short to kill the prefill node beside it")
        self.prefill.kill()
        self.tap.close()
        self.assertEqual(generate.wait(60), 0, generate.stderr)
        tokens = [check_report(self.path(name))["runs"][0]["tokens"] for name in ("whole.json", "killed.json")]
        self.assertEqual(tokens[0], tokens[1])

    def path(self, name):
        return str(pathlib.Path(self.folder.name) / name)

    def test_decode_killed(self):
        for name, where in UNFINISHED.items():
            with self.subTest(name):
                self.tap.hold(*where)
                generate = self.generate("--max-tokens", "20")
                self.tap.held()
                begin = time.monotonic()
                generate.kill()
                if where is not BEFORE_REQUEST:
                    line = self.prefill.wait_for("ended early", VERDICT_S + SLACK_S)
                    self.assertTrue(line.endswith("; 0 open"), line)
                self.assertLessEqual(time.monotonic() - begin, VERDICT_S + SLACK_S)
                self.tap.close()
                self.check_serves()

    def test_decode_killed_after_the_last_stream(self):
        self.tap.hold(False, END, 1)
        generate = self.generate("--max-tokens", "2500")
        self.tap.held()
        self.tap.release()
        time.sleep(0.2)
        self.assertIsNone(generate.process.poll())
        generate.kill()
        self.check_serves()
        self.assertFalse([line for line in self.prefill.log if "ended early" in line])

    def test_prefill_stopped(self):
        """A process that no longer runs keeps its connections: only heartbeats tell."""
        self.tap.hold(*BEFORE_REQUEST)
        generate = self.generate()
        self.tap.held()
        os.kill(self.prefill.process.pid, signal.SIGSTOP)
        begin = time.monotonic()
        self.tap.release()
        self.assertEqual(self.verdict(generate, begin, VERDICT_S + SLACK_S), 1)
        self.check_one_error(generate, "heartbeat")
        os.kill(self.prefill.process.pid, signal.SIGCONT)
        self.check_serves()

    def test_blackhole_during_residual(self):
        self.tap.hold(*DURING_RESIDUAL)
        generate = self.generate()
        self.tap.held()
        begin = time.monotonic()
        self.assertEqual(self.verdict(generate, begin, VERDICT_S + SLACK_S), 1)
        self.check_one_error(generate, "heartbeat")
        self.tap.close()
        self.prefill.wait_for("0 open", VERDICT_S + SLACK_S)
        self.check_serves()

    def test_decode_stopped(self):
        self.tap.hold(*DURING_ANCHOR)
        generate = self.generate()
        self.tap.held()
        os.kill(generate.process.pid, signal.SIGSTOP)
        line = self.prefill.wait_for("ended early", VERDICT_S + SLACK_S)
        self.assertTrue(line.endswith("; 0 open"), line)
        self.check_serves()
        os.kill(generate.process.pid, signal.SIGCONT)
        self.tap.close()
        self.assertEqual(generate.wait(10), 1)
        self.check_one_error(generate)

    def test_interrupted_during_the_residual(self):
        """Ctrl-C while drafts stand: exit code 130, the request is gone on the other side."""
        self.tap.hold(*DURING_RESIDUAL)
        generate = self.generate()
        self.tap.held()
        generate.process.send_signal(signal.SIGINT)
        self.assertEqual(generate.wait(VERDICT_S + SLACK_S), 130, generate.stderr)
        self.tap.close()
        self.prefill.wait_for("0 open", VERDICT_S + SLACK_S)
        self.check_serves()

    def test_others_are_served_meanwhile(self):
        self.tap.hold(*DURING_ANCHOR)
        held = self.generate()
        self.tap.held()
        self.check_serves()
        self.tap.release()
        self.assertEqual(held.wait(30), 0, held.stderr)

    def test_json(self):
        for codec, streams in (("lynx", 2), ("nested", 2), ("paper", 2), ("int4", 1), ("int8", 1), ("raw", 1)):
            with self.subTest(codec):
                generate = self.generate("--codec", codec, "--max-tokens", "70", "--check", "--json",
                                         self.path("run.json"))
                self.assertEqual(generate.wait(30), 0, generate.stderr)
                report = check_report(self.path("run.json"))
                run = report["runs"][0]
                self.assertEqual(report["prompt_tokens"], len(PROMPT))
                self.assertEqual(len(run["bytes"]["streams"]), streams)
                self.assertIs(run["exact"], True)

    def test_demo(self):
        """Every codec over the slow link, drafts on the anchor, exact."""
        demo = subprocess.run([self.program, "demo", *TOY, "--prompt-tokens", "800", "--max-tokens", "40",
                               "--bandwidth", "1mbit", "--json", self.path("demo.json")],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        self.assertEqual(demo.returncode, 0, demo.stderr)
        self.assertEqual(demo.stderr, "")
        report = check_report(self.path("demo.json"))
        codecs = [(run["codec"].partition(":")[0], run["overlap"]) for run in report["runs"]]
        self.assertEqual(codecs, [(name, "off") for name in ("lynx", "nested", "paper", "int4", "int8", "raw")] +
                         [("lynx", "on")])
        for run in report["runs"]:
            self.assertIs(run["exact"], True, run["codec"])
            self.assertEqual(len(run["tokens"]), 40)
        for run in report["runs"][:2]:
            self.assertGreater(run["drafted"], 0, run["codec"])
        self.assertEqual(report["runs"][0]["tokens"], report["runs"][-1]["tokens"])


if __name__ == "__main__":
    main()
