#!/usr/bin/env python3
"""lynx demo with the real model and a short prompt: what it reports is complete, sane and exact."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from lynx_processes import check_report

PROGRAM = ""
PROMPT_TOKENS = 300
MAX_TOKENS = 24
CODECS = ["lynx", "nested", "paper", "int4", "int8", "raw"]
SLACK = 0.02  # headers of page streams
LYNX_SLACK = 0.06  # its rate depends on the values
SINKS, RECENT = 4 / PROMPT_TOKENS, 64 / PROMPT_TOKENS
CHANNELS = 192  # SmolLM2-135M: 3 KV heads of 64


def bits(page_bytes, chunk_bytes):
    """Bits per element of a stream of nibbles with so much metadata per channel and page, channel and chunk."""
    pages = [min(256, PROMPT_TOKENS - at) for at in range(0, PROMPT_TOKENS, 256)]
    chunks = sum(-(-tokens // 32) for tokens in pages)
    return 4 + 8 * (page_bytes * len(pages) + chunk_bytes * chunks) / PROMPT_TOKENS


# Of so short a prompt three quarters of anchor_bits go to symbols; 0.15 bits are fields, classes and means.
LYNX_ANCHOR = 0.75 * 2.25 + 0.15 + 16 * SINKS + 4 * RECENT

# Anchor and total, docs/codec.md §3.
EXPECTED_BITS = {
    "lynx": (LYNX_ANCHOR, LYNX_ANCHOR + 4 * (1 - SINKS - RECENT)),
    "nested": (bits(4, 2) + 12 * SINKS + 4 * RECENT, bits(4, 2) + 4 + 8 * SINKS), "paper": (bits(4, 4), bits(4, 4) + 4), "int4": (4 + 16 / CHANNELS,) * 2,
    "int8": (8 + 16 / CHANNELS,) * 2, "raw": (16, 16),
}


class ModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        model = os.environ.get("LYNX_MODEL", "")
        assert model, "set LYNX_MODEL to a GGUF file (scripts/test does)"
        with tempfile.TemporaryDirectory(prefix="lynx-e2e-") as folder:
            path = pathlib.Path(folder) / "demo.json"
            cls.demo = subprocess.run(
                [PROGRAM, "demo", "--model", model, "--context", "1024", "--prompt-tokens", str(PROMPT_TOKENS),
                 "--max-tokens", str(MAX_TOKENS), "--bandwidth", "50mbit", "--json", str(path)],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500)
            assert cls.demo.returncode == 0, cls.demo.stdout + cls.demo.stderr
            cls.report = check_report(path)
        cls.off = {run["codec"].partition(":")[0]: run for run in cls.report["runs"] if run["overlap"] == "off"}
        cls.on = [run for run in cls.report["runs"] if run["overlap"] == "on"]

    def test_runs(self):
        self.assertEqual(self.report["prompt_tokens"], PROMPT_TOKENS)
        self.assertEqual(self.report["bandwidth_bps"], 50e6)
        self.assertEqual(list(self.off), CODECS)
        self.assertEqual([run["codec"] for run in self.on], [self.off["lynx"]["codec"]])

    def test_every_run_is_exact(self):
        for run in self.report["runs"]:
            self.assertIs(run["exact"], True, run["codec"])

    def test_overlap_changes_no_token(self):
        self.assertEqual(self.on[0]["tokens"], self.off["lynx"]["tokens"])
        self.assertEqual(self.on[0]["bytes"]["streams"], self.off["lynx"]["bytes"]["streams"])

    def test_token_0_is_the_prefill_nodes(self):
        self.assertEqual(len({run["tokens"][0] for run in self.report["runs"]}), 1)

    def test_bytes(self):
        anchor = {name: run["bytes"]["streams"][0] for name, run in self.off.items()}
        total = {name: run["bytes"]["total"] for name, run in self.off.items()}
        self.assertLess(anchor["lynx"], total["int4"])
        self.assertLess(total["lynx"], total["int8"])
        self.assertLess(anchor["nested"], total["int8"])
        self.assertLess(anchor["paper"], total["int8"])
        self.assertLess(total["int4"], anchor["nested"])
        self.assertLess(total["int8"], total["nested"])
        self.assertLess(total["nested"], total["raw"])
        self.assertEqual({run["elements"] for run in self.report["runs"]}, {self.off["raw"]["elements"]})

    def test_bits_per_element(self):
        for name, (anchor, whole) in EXPECTED_BITS.items():
            bits = self.off[name]["bits_per_element"]
            slack = LYNX_SLACK if name == "lynx" else SLACK
            self.assertAlmostEqual(bits["anchor"] / anchor, 1, delta=slack, msg=name)
            self.assertAlmostEqual(bits["total"] / whole, 1, delta=slack, msg=name)

    def test_the_link_is_what_limits(self):
        for run in self.off.values():
            self.assertGreater(run["anchor_done_s"], run["anchor_ideal_s"] * 0.98, run["codec"])
            seconds = run["bytes"]["total"] * 8 / self.report["bandwidth_bps"]
            self.assertGreater(run["stream_done_s"][-1], seconds * 0.98, run["codec"])

    def test_drafts(self):
        self.assertGreater(sum(run["drafted"] for run in self.report["runs"]), 0)
        self.assertEqual(self.off["raw"]["drafted"], 0)  # one stream: nothing to draft on

    def test_what_people_see(self):
        for words in ("1. Starting", "anchor", "TT32T", "% of a plain copy", "yes"):
            self.assertIn(words, self.demo.stdout)
        self.assertNotIn("\033", self.demo.stdout)  # no colours into a file


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
