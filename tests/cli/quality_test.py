#!/usr/bin/env python3
"""lynx eval quality: what it can't write it says first, and what is left of an earlier run counts only if it fits."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
LIMIT_S = 60


class QualityTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.folder / "text"
        self.text.write_text("the quick brown fox jumps over the lazy dog " * 20)
        self.json = self.folder / "figures.json"
        self.partial = self.folder / "figures.json.partial"

    def run_quality(self, *more):
        return subprocess.run([PROGRAM, "eval", "quality", "--model", "toy", "--context", "32", "--windows", "2",
                               "--tokens", "2", "--text", self.text, "--codecs", "lynx,raw", *more],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)

    def kept_figures(self):
        """What an interrupted run leaves: one that can't write its last file."""
        done = self.run_quality("--json", self.json, "--plot", "/dev/full")
        self.assertEqual(done.returncode, 1)
        return [json.loads(line) for line in self.partial.read_text().splitlines()]

    def resumed(self, lines):
        self.partial.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = self.run_quality("--json", self.json)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr.count(": ")

    def test_outputs_are_tried_first_and_leave_nothing(self):
        for flag in ("--json", "--csv", "--plot"):
            done = self.run_quality(flag, "/nowhere/file")
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("can't write /nowhere/file", done.stderr)
        self.run_quality("--json", self.json, "--codecs", "zip")
        self.assertEqual(list(self.folder.iterdir()), [self.text])

    def test_figures_are_kept(self):
        self.assertEqual(self.resumed(self.kept_figures()), 0)

    def test_another_text_of_the_same_name_is_measured(self):
        lines = self.kept_figures()
        self.text.write_text("many small birds sing about rivers and old stones " * 20)
        self.assertGreater(self.resumed(lines), 0)

    def test_damaged_figures_are_measured_again(self):
        for at, wrong in [(0, None), (0, "text"), (1, {}), (1, 5)]:
            lines = self.kept_figures()
            lines[at]["value"] = wrong
            self.assertGreater(self.resumed(lines), 0)
        for name in self.kept_figures()[1]["value"]:
            lines = self.kept_figures()
            lines[1]["value"][name] = []
            self.assertGreater(self.resumed(lines), 0, name)
        self.assertGreater(self.resumed([None, [], {"identity": 5}, {"key": 7, "value": 1}]), 0)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
