#!/usr/bin/env python3
"""Options in a file and in the environment: the same names as on the command line, wrong ones named."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""


class ConfigTest(unittest.TestCase):
    def run_lynx(self, text, *arguments, **environment):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "node.toml")
            path.write_text(text)
            result = subprocess.run([PROGRAM, "--config", str(path), *arguments], capture_output=True, text=True,
                                    stdin=subprocess.DEVNULL, timeout=30, env={**os.environ, **environment})
        return result.returncode, result.stdout, result.stderr

    def test_a_file_is_enough(self):
        for command, more in (("prefill", 'listen = "127.0.0.1:0"'), ("decode", 'prefill = ["127.0.0.1:1", "127.0.0.1:2"]'),
                              ("serve", "requests = 2")):
            code, out, errors = self.run_lynx(f'[{command}]\nmodel = "toy"\ncodec-threads = 2\n{more}\n', command,
                                              "--check-config")
            self.assertEqual((code, errors), (0, ""))
            self.assertEqual(out, f"the configuration of lynx {command} is fine\n")

    def test_what_is_wrong_is_named(self):
        for text, words in (('[prefill]\nmodel = "toy"\nlisen = "x"\n', "prefill.lisen"),
                            ('[prefill]\nmodel = "toy"\ncodec-threads = "many"\n', "--codec-threads"),
                            ('[prefill]\nmodel = "toy"\nlisten = "10.0.0.1:7000"\n', "10.0.0.1:7000 is not loopback"),
                            ('[prefill]\nmodel = "/nowhere/m.gguf"\n', "/nowhere/m.gguf"), ("", "--model is required")):
            code, out, errors = self.run_lynx(text, "prefill", "--check-config")
            self.assertNotEqual(code, 0, text)
            self.assertEqual(len(errors.splitlines()), 1, errors)
            self.assertIn(words, errors)

    def test_all_but_the_model_is_read(self):
        """What a node would refuse when it starts."""
        tls = 'tls-cert = "/nowhere/c"\ntls-key = "/nowhere/k"\ntls-ca = "/nowhere/a"'
        away = 'prefill = ["127.0.0.1:1"]'
        for command, text, words in (
                ("prefill", 'profile = "/dev/null"', "profile is damaged"), ("prefill", tls, "/nowhere/"),
                ("serve", 'profile = "/nowhere/p"', "/nowhere/p"), ("serve", 'profile = "/dev/null"', "profile is damaged"),
                ("serve", 'codec = "zip"', 'no codec "zip"'), ("serve", 'codec = "lynx:anchor_bits=9"', "anchor_bits"),
                ("serve", tls, "/nowhere/"), ("decode", f'{away}\ncodec = "lynx:exact=2"', "exact"),
                ("decode", f"{away}\n{tls}", "/nowhere/"), ("decode", 'prefill = ["zz"]', '"zz" is not an address'),
                ("decode", 'prefill = ["10.0.0.1:7000"]', "10.0.0.1:7000 is not loopback"),
                ("decode", 'prefill-file = "/nowhere/list"', "/nowhere/list"),
                ("generate", 'prompt = "x"\nprefill = "127.0.0.1:1"\ncodec = "nested:anchor=9"', "anchor")):
            code, out, errors = self.run_lynx(f'[{command}]\nmodel = "toy"\n{text}\n', command, "--check-config")
            self.assertNotEqual((code, out), (0, out), text)
            self.assertEqual(len(errors.splitlines()), 1, errors)
            self.assertIn(words, errors)

    def test_what_counts_more(self):
        """The command line, then the file, then the environment."""
        text = '[prefill]\nmodel = "toy"\ncodec-threads = 1000\n'
        self.assertEqual(self.run_lynx(text, "prefill", "--check-config", "--codec-threads", "2")[0], 0)
        self.assertEqual(self.run_lynx("[prefill]\ncodec-threads = 2\n", "prefill", "--check-config",
                                       LYNX_PREFILL_MODEL="toy", LYNX_PREFILL_CODEC_THREADS="1000")[0], 0)
        self.assertIn("1000", self.run_lynx("", "prefill", "--check-config", LYNX_PREFILL_MODEL="toy",
                                            LYNX_PREFILL_CODEC_THREADS="1000")[2])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
