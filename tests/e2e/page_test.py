#!/usr/bin/env python3
"""The page at / in headless Chromium, before nodes and a slow link: page_test.py PROGRAM ARTIFACTS [--real]

Screenshots go to the folder ARTIFACTS. --real takes the model that LYNX_MODEL names. Skipped (exit code 77) where there
is no chromium or no chromedriver.
"""

import hashlib
import json
import os
import pathlib
import random
import re
import sys
import tempfile
import unittest
import urllib.request

from browser import CHROMIUM, DRIVER, ENTER, ESCAPE, SHIFT, TAB, Browser
from http_processes import HttpNode
from lynx_processes import Node

PROGRAM = ARTIFACTS = ""
REAL = "--real" in sys.argv
MODEL = ("--model", os.environ.get("LYNX_MODEL", ""), "--context", "1024") if REAL else (
    "--model", "toy", "--context", "4000")
# The residual takes seconds, so that drafting pays also where prompts that were read before are read at once.
BANDWIDTH = "4mbit" if REAL else "150kbit"
WORDS = "lynx snow quiet forest moon small paw listens waits under tree river stone night owl hare track wind".split()
PROMPT = " ".join(random.Random(1).choices(WORDS, k=200)) + " <img src=x onerror=document.title='broken'>"

# Remembers what was drafted, kept and struck out, and of which colour.
WATCH = """
window.seen = {draft: '', struck: '', sure: '', colors: new Set()};
new MutationObserver(records => {
  for (const node of records.flatMap(record => [...record.addedNodes])) {
    if (node.nodeType !== 1) continue;
    const kind = node.matches('span.draft') ? 'draft' : node.matches('.struck') ? 'struck' :
      node.parentNode?.matches('.answer > span:first-child') ? 'sure' : '';
    if (!kind) continue;
    seen[kind] += node.textContent;
    if (kind === 'draft' && node.textContent) seen.colors.add(getComputedStyle(node).color);
  }
}).observe(document.getElementById('turns'), {childList: true, subtree: true});
"""
ANSWER = "[...document.querySelectorAll('.answer > span:first-child')].at(-1).textContent"
STATUS = "document.getElementById('status').textContent"
DONE = STATUS + ".startsWith('Answer complete')"
MODEL_NAME = "document.getElementById('model').textContent"


def luminance(color):
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefill = Node(PROGRAM, "prefill", *MODEL, "--listen", "127.0.0.1:0")
        cls.addClassCleanup(cls.prefill.stop)
        cls.link = Node(PROGRAM, "link", "--to", cls.prefill.address, "--bandwidth", BANDWIDTH, "--delay", "5ms")
        cls.addClassCleanup(cls.link.stop)
        cls.expected = cls.answer()
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.stop)

    @classmethod
    def answer(cls):
        """To PROMPT, without the page. The prefill node has read it from then on."""
        node = HttpNode(PROGRAM, "decode", *MODEL, "--prefill", cls.prefill.address)
        cls.addClassCleanup(node.stop)
        body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 60, "temperature": 0}
        request = urllib.request.Request(node.address + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)["choices"][0]["message"]["content"]

    def setUp(self):
        # A node of its own: one that has measured what drafts cost may not draft.
        self.node = HttpNode(PROGRAM, "decode", *MODEL, "--prefill", self.link.address)
        self.addCleanup(self.node.stop)
        self.browser.size(1000, 760)
        self.browser.media(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
        self.browser.complaints()
        self.browser.open(self.node.address + "/")
        self.browser.wait(MODEL_NAME)

    def shoot(self, name):
        self.browser.screenshot(pathlib.Path(ARTIFACTS) / f"page-{name}{'-model' if REAL else ''}.png")

    def send(self, prompt=PROMPT, tokens=60):
        """Types with the keyboard; a long prompt is pasted but for its last character."""
        self.browser.run("document.getElementById('max-tokens').value = arguments[0];"
                         "document.execCommand('insertText', false, arguments[1])", tokens, prompt[:-1])
        self.browser.press(prompt[-1] + ENTER)

    def style(self, selector, name):
        return self.browser.run("return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector,
                                name)

    def test_drafts_turn_into_the_answer(self):
        self.shoot("empty")
        self.assertEqual(self.browser.run("return document.activeElement.id"), "prompt")
        self.browser.run(WATCH)
        self.send()
        self.browser.wait("seen.draft.length > 4")
        self.shoot("drafts")
        self.browser.wait("seen.struck || " + DONE)
        self.shoot("verified")
        self.browser.wait(DONE)
        self.browser.wait("!document.querySelector('.answer .struck, .answer .draft:not(:empty)')", 10)
        self.shoot("done")
        answer = self.browser.run("return " + ANSWER)
        self.assertEqual(answer, self.expected)
        self.assertEqual(self.browser.run("return seen.sure"), answer)
        self.assertEqual(self.browser.run("return document.getElementById('spoken').textContent"), answer)
        self.assertEqual(self.browser.run("return document.querySelector('.prompt').textContent"), PROMPT)
        self.assertEqual(self.browser.run("return document.querySelectorAll('img').length"), 0)
        ink = self.style(".answer", "color")
        self.assertNotIn(ink, self.browser.run("return [...seen.colors]"))
        if not REAL:  # the toy model's drafts go wrong at once
            self.assertTrue(self.browser.run("return seen.struck"))
        self.check_timeline()
        self.assertRegex(self.browser.run("return document.querySelector('.facts').textContent"),
                         r"60.tokens.*first draft.*verified.*of.*kept")
        self.browser.wait("/answer.*drafts kept.*received/.test(document.getElementById('counters').textContent)", 10)
        self.assertEqual(self.browser.complaints(), [])

    def check_timeline(self):
        bars = self.browser.run("return [...document.querySelectorAll('.track i')].map("
                                "bar => [bar.className, parseFloat(bar.style.left.slice(4)), parseFloat(bar.style.width)])")
        begin = {kind: left for kind, left, _ in reversed(bars)}
        end = max(left + width for _, left, width in bars)
        self.assertLessEqual({"prefill", "anchor", "residual", "draft", "verify", "decode"}, set(begin))
        self.assertAlmostEqual(end, 100, delta=0.5)
        self.assertLess(begin["anchor"], begin["draft"])
        self.assertLess(begin["draft"], begin["verify"])
        self.assertLessEqual(begin["verify"], begin["decode"])

    def test_a_chat_goes_on(self):
        self.send("One.", 4)
        self.browser.wait(DONE)
        first = self.browser.run("return " + ANSWER)
        self.send("Two.", 4)
        self.browser.wait(DONE)
        sent = self.browser.run("return messages.map(message => message.content)")
        self.assertEqual(sent, ["One.", first, "Two.", self.browser.run("return " + ANSWER)])
        self.browser.click("#fresh")
        self.assertEqual(self.browser.run("return [messages.length, document.querySelectorAll('article').length]"),
                         [0, 0])

    def stop(self, prompt, until, how):
        """Asks, stops when it is so far, and gives what there is of the answer."""
        left = 'lynx_requests_total{outcome="left"}'
        before = self.node.counters()[left]
        self.send(prompt, 1000)
        self.browser.wait("document.getElementById('send').textContent === 'Stop' && " + until)
        how()
        self.browser.wait(STATUS + " === 'stopped'", 5)
        self.assertEqual(self.browser.run("return document.getElementById('send').textContent"), "Send")
        self.node.wait_counter(left, before + 1)
        self.node.wait_counter("lynx_requests_open", 0)
        self.assertEqual(self.browser.complaints(), [])
        return self.browser.run("return " + ANSWER)

    def test_stop_before_the_answer(self):
        prompt = PROMPT[::-1] + PROMPT  # takes a while to read
        self.assertEqual(self.stop(prompt, "true", lambda: self.browser.click("#send")), "")
        self.assertEqual(self.browser.run("return [document.getElementById('prompt').value, messages.length]"),
                         [prompt, 0])

    def test_stop_while_there_are_drafts(self):
        drafts = "document.querySelector('.answer .draft + .draft')"
        self.assertTrue(self.stop(PROMPT, drafts, lambda: self.browser.press(ESCAPE)))
        self.assertEqual(self.browser.run("return document.querySelectorAll('.answer .draft').length"), 0)
        self.send("Once more.", 4)
        self.browser.wait(DONE)

    def test_narrow(self):
        self.browser.size(360, 640)
        self.browser.run("document.getElementById('settings').open = true")
        fits = "document.documentElement.scrollWidth <= 360"
        self.assertTrue(self.browser.run("return " + fits))
        self.send()
        while not self.browser.run("return " + DONE):
            self.assertTrue(self.browser.run("return " + fits), "while the answer comes")
        self.assertTrue(self.browser.run("return " + fits))
        outside = ("return [...document.querySelectorAll('body *')].filter(node => node.getClientRects().length && "
                   "node.getBoundingClientRect().right > 360).map(node => node.outerHTML)")
        self.assertEqual(self.browser.run(outside), [])
        self.shoot("narrow")

    def test_colours_can_be_read(self):
        self.send("Hello there.", 8)
        self.browser.wait(DONE)
        papers = []
        for scheme in ("light", "dark"):
            self.browser.media(prefers_color_scheme=scheme)
            papers.append(self.style("html", "backgroundColor"))
            for selector in (".answer", ".prompt", ".facts", "summary", "#counters", ".legend", "#fresh"):
                self.assertGreaterEqual(contrast(papers[-1], self.style(selector, "color")), 4.5, (scheme, selector))
            button = contrast(self.style("#send", "backgroundColor"), self.style("#send", "color"))
            self.assertGreaterEqual(button, 4.5, scheme)
            self.shoot(scheme)
        self.assertGreater(luminance(papers[0]), 0.8)
        self.assertLess(luminance(papers[1]), 0.05)

    def test_motion_can_be_turned_off(self):
        self.browser.run("const word = document.createElement('s'); word.className = 'struck';"
                         "document.getElementById('turns').append(word)")
        self.assertNotEqual(self.style(".struck", "animationName"), "none")
        self.browser.media(prefers_reduced_motion="reduce")
        self.assertEqual(self.style(".struck", "animationName"), "none")

    def test_keyboard_and_names(self):
        self.browser.run("document.getElementById('settings').open = true")
        order = []
        for _ in range(6):
            self.browser.press(TAB)
            order.append(self.browser.run("return document.activeElement.id || document.activeElement.tagName"))
        self.assertEqual(order, ["send", "SUMMARY", "max-tokens", "temperature", "codec", "drafts"])
        self.browser.press(TAB * 4, held=SHIFT)
        tree = self.browser.devtools("Accessibility.getFullAXTree")["nodes"]
        used = ("button", "textbox", "spinbutton", "checkbox", "combobox", "DisclosureTriangle")
        names = [node["name"]["value"] for node in tree if node.get("role", {}).get("value") in used]
        self.assertGreaterEqual(len(names), 7)
        self.assertNotIn("", names)
        self.assertIn("Prompt", names)
        for role in ("status", "log"):
            self.assertTrue(any(node.get("role", {}).get("value") == role for node in tree), role)

    def test_shift_enter_is_a_new_line(self):
        self.browser.press("a")
        self.browser.press(ENTER, held=SHIFT)
        self.browser.press("b")
        self.assertEqual(self.browser.run("return document.getElementById('prompt').value"), "a\nb")

    def test_refusals_are_shown(self):
        self.browser.run("document.getElementById('codec').value = 'none'")
        self.send("Hello.", 8)
        self.browser.wait("document.querySelector('.error')", 10)
        self.assertIn("none", self.browser.run("return document.querySelector('.error').textContent"))
        self.assertEqual(self.browser.run("return document.getElementById('prompt').value"), "Hello.")

    def test_key(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write(hashlib.sha256(b"snow").hexdigest() + "  test\n")
            keys.flush()
            node = HttpNode(PROGRAM, "decode", *MODEL, "--prefill", self.prefill.address, "--api-keys", keys.name)
            self.addCleanup(node.stop)
        self.browser.open(node.address + "/")
        self.browser.wait("document.activeElement.id === 'key'", 10)
        self.shoot("key")
        self.browser.press("rain" + ENTER)
        self.browser.wait("document.activeElement.id === 'key'", 10)
        self.assertFalse(self.browser.run("return " + MODEL_NAME))
        self.browser.run("document.getElementById('key').select()")
        self.browser.press("snow" + ENTER)
        self.browser.wait(MODEL_NAME, 10)
        self.assertEqual(self.browser.run("return document.activeElement.id"), "prompt")
        self.send("Hello.", 4)
        self.browser.wait(DONE)

    def test_one_small_file(self):
        page = self.node.get("/")
        self.assertLess(len(page.encode()), 30_000)
        self.assertNotRegex(page, r"innerHTML|insertAdjacentHTML|document\.write|eval\(")
        self.assertEqual(re.findall(r"https?://[^'\" ]+", page), ["http://www.w3.org/2000/svg"])
        loaded = self.browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
        self.assertEqual({name.removeprefix(self.node.address) for name in loaded} - {"/v1/models", "/metrics"}, set())


if __name__ == "__main__":
    missing = [name for name, found in (("chromium", CHROMIUM), ("chromedriver", DRIVER)) if not found]
    if REAL and not os.environ.get("LYNX_MODEL"):
        missing.append("LYNX_MODEL")
    if missing:
        print("skipped: there is no " + ", no ".join(missing) + " (Debian: apt-get install chromium chromium-driver)")
        sys.exit(77)
    PROGRAM, ARTIFACTS = sys.argv[1:3]
    sys.argv = sys.argv[:1] + [argument for argument in sys.argv[3:] if argument != "--real"]
    unittest.main(verbosity=2)
