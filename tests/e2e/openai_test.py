#!/usr/bin/env python3
"""The official OpenAI client against lynx serve: openai_test.py PROGRAM [--real]

LYNX_OPENAI is the folder that the client is installed in (pip install --target; scripts/test does it). Without it the
test is skipped (exit code 77).
"""

import concurrent.futures
import os
import subprocess
import sys
import unittest

from http_processes import HttpNode

PROGRAM = MODEL = ""
QUESTION = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is a lynx?"}]


class OpenAiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = HttpNode(PROGRAM, "serve", "--model", MODEL, "--context", "1024", "--requests", "2")
        cls.client = openai.OpenAI(base_url=cls.node.address + "/v1", api_key="none needed", max_retries=0, timeout=120)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.node.stop()

    def chat(self, **more):
        arguments = {"model": self.model, "messages": QUESTION, "max_completion_tokens": 20, "temperature": 0, **more}
        return self.client.chat.completions.create(**arguments)

    def test_chat_whole_and_streamed(self):
        whole = self.chat()
        text = whole.choices[0].message.content
        self.assertTrue(text)
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertIn(whole.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        self.assertEqual(whole.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertGreater(sum(whole.usage.model_extra["lynx"]["bytes"]), 0)
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), text)
        self.assertEqual([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1],
                         whole.choices[0].finish_reason)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)

    def test_drafts_can_be_passed_over(self):
        text = self.chat().choices[0].message.content
        chunks = list(self.chat(stream=True, extra_body={"lynx": {"drafts": True}}))
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), text)
        lynx = [chunk.model_extra["lynx"] for chunk in chunks if not chunk.choices]
        self.assertEqual("".join(event["text"] for event in lynx if event["event"] == "commit"), text)

    def test_completions(self):
        arguments = {"model": self.model, "prompt": "The lynx is", "max_tokens": 12, "temperature": 0.8, "seed": 5}
        whole = self.client.completions.create(**arguments)
        streamed = self.client.completions.create(**arguments, stream=True)
        self.assertEqual("".join(chunk.choices[0].text for chunk in streamed), whole.choices[0].text)
        self.assertEqual(whole.usage.completion_tokens, 12)
        stop = whole.choices[0].text[4]
        stopped = self.client.completions.create(**arguments, stop=[stop])
        self.assertNotIn(stop, stopped.choices[0].text)
        self.assertEqual(stopped.choices[0].finish_reason, "stop")

    def test_errors_are_its_own(self):
        with self.assertRaises(openai.NotFoundError):
            self.chat(model="gpt-99")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(n=2)
        self.assertEqual(caught.exception.param, "n")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model=self.model, prompt="word " * 2000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError):
            self.chat(extra_body={"lynx": {"codec": "unheard-of"}})

    def test_several_at_once(self):
        expected = self.chat().choices[0].message.content
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(self.chat) for _ in range(4)]
            self.assertEqual({answer.result().choices[0].message.content for answer in answers}, {expected})

    def test_a_stream_that_is_closed_ends(self):
        stream = self.chat(stream=True, max_completion_tokens=900)
        next(iter(stream))
        stream.close()
        self.node.wait_counter("lynx_requests_open", 0)

    def test_async_client(self):
        code = ("import asyncio, openai, sys\n"
                "async def main():\n"
                "  client = openai.AsyncOpenAI(base_url=sys.argv[1], api_key='x')\n"
                "  stream = await client.chat.completions.create(model=sys.argv[2], stream=True, max_tokens=5,\n"
                "    messages=[{'role': 'user', 'content': 'hi'}])\n"
                "  print(len([chunk async for chunk in stream]))\n"
                "asyncio.run(main())\n")
        done = subprocess.run([sys.executable, "-c", code, self.node.address + "/v1", self.model], text=True,
                              capture_output=True, timeout=120,
                              env={**os.environ, "PYTHONPATH": os.environ["LYNX_OPENAI"]})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreaterEqual(int(done.stdout), 2)


if __name__ == "__main__":
    if not os.environ.get("LYNX_OPENAI"):
        print("skipped: LYNX_OPENAI does not name the folder of the OpenAI client; scripts/test sets it")
        sys.exit(77)
    sys.path.insert(0, os.environ["LYNX_OPENAI"])
    import openai
    PROGRAM = sys.argv.pop(1)
    MODEL = os.environ["LYNX_MODEL"] if "--real" in sys.argv else "toy"
    sys.argv = [argument for argument in sys.argv if argument != "--real"]
    unittest.main(verbosity=2)
