#!/usr/bin/env python3
"""lynx decode and lynx serve with the toy engine, as curl sees them: answers, clients that leave at every phase, a
prefill node that goes and comes, and the ways to stop."""

import hashlib
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from http_processes import Curl, HttpNode, events
from lynx_processes import DURING_ANCHOR, END, PROMPT, TOY, UNFINISHED, Generate, ProcessTest, main

LEAVE_AT = {**UNFINISHED, "before the end": (False, END, 1, 1, False)}


class HttpTest(ProcessTest):
    def serve(self, *arguments):
        return self.start(HttpNode, "serve", *TOY, *arguments)

    def decode(self, prefill, *arguments):
        return self.start(HttpNode, "decode", *TOY, "--prefill", prefill.address, *arguments)

    def ask(self, node, stream=False, tokens=24, **more):
        curl = Curl(node.address + "/v1/completions",
                    {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "stream": stream, **more})
        self.addCleanup(curl.leave)
        return curl

    def test_top_shows_the_counters(self):
        node = self.serve()
        address = node.address.removeprefix("http://")
        top = subprocess.Popen([self.program, "top", "--http", address, "--interval", "2",
                                "--count", "1", "--json"], stdout=subprocess.PIPE, text=True)
        time.sleep(0.3)  # its first look
        self.assertEqual(self.ask(node).wait()[0], 200)
        row = json.loads(top.communicate(timeout=20)[0])
        self.assertEqual((row["done"], row["failed"], row["open"], row["prefill_ready"]), (1, 0, 0, True))
        self.assertGreater(row["tokens_per_s"], 0)
        self.assertGreater(row["ttft_s"], 0)
        self.assertEqual(len(row["stream_bytes_per_s"]), 2)
        screen = subprocess.run([self.program, "top", "--http", address, "--interval", "0.1", "--count", "1"],
                                capture_output=True, text=True, timeout=20)
        self.assertEqual(screen.returncode, 0)
        self.assertIn("done 1 ", screen.stdout)
        node.stop()
        gone = subprocess.run([self.program, "top", "--http", address], capture_output=True, text=True, timeout=20)
        self.assertEqual(gone.returncode, 1)
        self.assertIn("nothing answers at", gone.stderr)

    def test_answers_as_generate_does(self):
        prefill = self.prefill_node()
        node = self.decode(prefill)
        generate = self.start(Generate, *TOY, "--prefill", prefill.address, "--prompt", PROMPT, "--max-tokens", "24")
        self.assertEqual(generate.wait(30), 0, generate.stderr)
        expected = generate.stdout.removesuffix("\n")
        status, body = self.ask(node).wait()
        self.assertEqual((status, json.loads(body)["choices"][0]["text"]), (200, expected))
        for drafts in (False, True):
            status, body = self.ask(node, stream=True, lynx={"drafts": drafts}).wait()
            chunks = [chunk for name, chunk in events(body) if name is None]
            self.assertEqual(chunks.pop(), "[DONE]")
            self.assertEqual("".join(chunk["choices"][0]["text"] for chunk in chunks), expected)
            self.assertEqual(drafts, any(name == "commit" for name, _ in events(body)))

    def test_a_conversation_goes_on(self):
        node = self.serve("--keep-mb", "8")
        said = json.loads(self.ask(node).wait()[1])
        self.assertEqual(said["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        prompt = PROMPT + said["choices"][0]["text"] + " And then?"
        usage = json.loads(self.ask(node, prompt=prompt).wait()[1])["usage"]
        kept = usage["prompt_tokens_details"]["cached_tokens"]
        self.assertGreaterEqual(kept, said["usage"]["prompt_tokens"])
        self.assertLess(sum(usage["lynx"]["bytes"]), sum(said["usage"]["lynx"]["bytes"]) / 2)
        self.assertEqual(node.counters()["lynx_kept_tokens_total"], kept)
        self.assertGreater(node.counters()["lynx_kept_bytes"], 0)

    def test_many_at_once(self):
        node = self.serve("--requests", "3", "--waiting", "1")
        answers = [curl.wait() for curl in [self.ask(node, tokens=2000, ignored=i) for i in range(12)]]
        statuses = [status for status, _ in answers]
        self.assertIn(200, statuses)
        self.assertLessEqual(set(statuses), {200, 503})
        texts = {json.loads(body)["choices"][0]["text"] for status, body in answers if status == 200}
        self.assertEqual(len(texts), 1)
        counters = node.counters()
        self.assertEqual(counters['lynx_requests_total{outcome="done"}'], statuses.count(200))
        self.assertEqual(counters['lynx_requests_total{outcome="refused"}'], statuses.count(503))

    def test_clients_leave_at_every_phase(self):
        prefill = self.prefill_node()
        for name, where in LEAVE_AT.items():
            for stream in (False, True):
                with self.subTest(name, stream=stream):
                    tap = self.tap_of(prefill)
                    node = self.decode(tap)
                    tap.hold(*where)
                    curl = self.ask(node, stream, lynx={"codec": "nested"})
                    tap.held()
                    curl.leave()
                    node.wait_counter("lynx_requests_open", 0)
                    self.assertEqual(node.counters()["lynx_requests_running"], 0)
                    self.assertEqual(node.counters()['lynx_requests_total{outcome="left"}'], 1)
                    tap.release()
                    self.assertEqual(self.ask(node).wait()[0], 200)
                    node.stop()

    def test_prefill_node_goes_and_comes(self):
        prefill = self.prefill_node()
        node = self.decode(prefill)
        self.assertEqual(self.ask(node).wait()[0], 200)
        prefill.kill()
        status, body = self.ask(node).wait()
        self.assertEqual(status, 503, body)
        self.assertIn("error", json.loads(body))
        self.prefill_node(listen=prefill.address)
        node.wait_counter("lynx_prefill_ready", 1)
        self.assertEqual(self.ask(node).wait()[0], 200)

    def test_keys(self):
        with tempfile.TemporaryDirectory(prefix="lynx-e2e-") as folder:
            keys = pathlib.Path(folder) / "keys"
            keys.write_text(hashlib.sha256(b"open sesame").hexdigest() + " test\n")
            node = self.serve("--api-keys", str(keys))
            url = node.address + "/v1/completions"
            for key, expected in ("", 401), ("Bearer sesame", 401), ("Bearer open sesame", 200):
                self.assertEqual(Curl(url, {"prompt": "A"}, "-H", f"Authorization: {key}").wait()[0], expected)
            node.process.send_signal(signal.SIGTERM)
            node.process.wait(10)
            node.wait_for("stopping", 10)
            self.assertNotIn("sesame", "".join(node.log))

    def held_request(self, *node_arguments):
        """A node with a request that does not end."""
        prefill = self.prefill_node()
        tap = self.tap_of(prefill)
        node = self.decode(tap, *node_arguments)
        tap.hold(*DURING_ANCHOR)
        curl = self.ask(node)
        tap.held()
        return node, tap, curl

    def test_sigterm_lets_requests_end(self):
        node, tap, curl = self.held_request()
        node.process.send_signal(signal.SIGTERM)
        node.wait_for("stopping", 10)
        tap.release()
        self.assertEqual(curl.wait()[0], 200)
        self.assertEqual(node.process.wait(10), 0)

    def test_sigterm_has_a_limit(self):
        node, _, curl = self.held_request("--drain", "0.3")
        node.process.send_signal(signal.SIGTERM)
        status, body = curl.wait()
        self.assertEqual(status, 503)
        self.assertIn("stopping", body)
        self.assertEqual(node.process.wait(10), 0)

    def test_second_sigterm_ends_at_once(self):
        node, _, _ = self.held_request()
        node.process.send_signal(signal.SIGTERM)
        node.wait_for("stopping", 10)
        node.process.send_signal(signal.SIGTERM)
        self.assertEqual(node.process.wait(10), 130)


if __name__ == "__main__":
    main()
