#!/usr/bin/env python3
"""Leaves a small cluster alone with bad luck: two prefill nodes and a decode node on this machine, clients that ask,
leave in the middle and come back, prefill nodes that are killed, stopped and started again. Every answer must be the
one that the same prompt had when all was quiet; in the end nothing may be left: no request, no descriptor, no thread.

    scripts/soak --minutes 10
"""

import argparse
import json
import pathlib
import random
import signal
import sys
import threading
import time

from http_processes import Curl, HttpNode
from lynx_processes import Node

TOY = ("--model", "toy", "--context", "2000")
PROMPTS = [f"Prompt {i}: " + "snow falls on the hill and the lynx waits. " * (1 + 5 * i) for i in range(8)]
ANSWER_TOKENS = 48
REQUESTS = 4
GROWTH_KIB = 64 << 10  # of a node's memory, beyond what it had after the quiet round


class Cluster:
    def __init__(self, program):
        self.program = program
        self.prefill = [self.start_prefill("127.0.0.1:0"), self.start_prefill("127.0.0.1:0")]
        self.addresses = [node.address for node in self.prefill]
        more = [word for address in self.addresses for word in ("--prefill", address)]
        self.decode = HttpNode(program, "decode", *TOY, "--requests", str(REQUESTS), *more)

    def start_prefill(self, listen):
        return Node(self.program, "prefill", *TOY, "--listen", listen, "--drain", "1")

    def restart_prefill(self, index):
        self.prefill[index].stop()
        self.prefill[index] = self.start_prefill(self.addresses[index])

    def ask(self, prompt, stream):
        return Curl(self.decode.address + "/v1/completions",
                    {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": stream})

    def held(self):
        """Descriptors, threads and resident KiB of the decode node."""
        proc = pathlib.Path(f"/proc/{self.decode.process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
        return len(list((proc / "fd").iterdir())), int(status["Threads"]), int(status["VmRSS"].split()[0])

    def settled(self, before, timeout_s=10):
        """held() once it is no more than `before`; threads of answers end a little later than their connections."""
        end = time.monotonic() + timeout_s
        while True:
            now = self.held()
            if (now[0] <= before[0] and now[1] <= before[1]) or time.monotonic() > end:
                return now
            time.sleep(0.1)

    def quiet(self):
        for name in ("lynx_requests_open", "lynx_requests_running", "lynx_requests_waiting"):
            self.decode.wait_counter(name, 0, 30)

    def stop(self):
        for node in [self.decode, *self.prefill]:
            node.stop()


class Client(threading.Thread):
    """Asks until told to stop; leaves in the middle of every third answer."""

    def __init__(self, cluster, expected, seed, until):
        super().__init__()
        self.cluster, self.expected, self.random, self.until = cluster, expected, random.Random(seed), until
        self.counts = {"answered": 0, "refused": 0, "failed": 0, "left": 0}
        self.wrong = []

    def run(self):
        while time.monotonic() < self.until:
            try:
                self.ask_once()
            except AssertionError as error:  # curl could not even connect
                self.wrong.append(str(error))

    def ask_once(self):
        prompt = self.random.choice(PROMPTS)
        if self.random.random() < 0.33:
            curl = self.cluster.ask(prompt, stream=True)
            time.sleep(self.random.random() * 0.2)
            curl.leave()
            self.counts["left"] += 1
            return
        status, body = self.cluster.ask(prompt, stream=False).wait()
        if status == 200:
            self.counts["answered"] += 1
            text = json.loads(body)["choices"][0]["text"]
            if text != self.expected[prompt]:
                self.wrong.append(f"{prompt[:12]}… was answered by {text!r}, not {self.expected[prompt]!r}")
        elif status == 503:
            self.counts["refused"] += 1
        else:
            self.counts["failed"] += 1
            if "error" not in json.loads(body):
                self.wrong.append(f"status {status} without an error: {body!r}")


def misfortune(cluster, chance, until):
    """What happens to prefill nodes; at most one of the two at a time."""
    counts = {"killed": 0, "stopped": 0}
    while time.monotonic() < until:
        time.sleep(0.2 + chance.random())
        index = chance.randrange(2)
        if chance.random() < 0.5:
            cluster.restart_prefill(index)
            counts["killed"] += 1
        else:  # longer than a peer may be silent
            process = cluster.prefill[index].process
            process.send_signal(signal.SIGSTOP)
            time.sleep(min(2.5, max(0.0, until - time.monotonic())))
            process.send_signal(signal.SIGCONT)
            counts["stopped"] += 1
    return counts


def quiet_answers(cluster):
    answers = {}
    for prompt in PROMPTS:
        status, body = cluster.ask(prompt, stream=False).wait()
        assert status == 200, body
        answers[prompt] = json.loads(body)["choices"][0]["text"]
    return answers


def soak(cluster, seconds, seed, clients):
    cluster.decode.wait_counter("lynx_prefill_ready", 1)
    expected = quiet_answers(cluster)
    for _ in range(REQUESTS + 1):  # every sequence and every codec thread has been used
        quiet_answers(cluster)
    cluster.quiet()
    before = cluster.held()
    until = time.monotonic() + seconds
    threads = [Client(cluster, expected, seed * 1000 + i, until) for i in range(clients)]
    for thread in threads:
        thread.start()
    bad_luck = misfortune(cluster, random.Random(seed), until)
    for thread in threads:
        thread.join()
    cluster.quiet()
    time.sleep(3)  # the last connections find out
    cluster.decode.wait_counter("lynx_prefill_ready", 1)
    wrong = [text for thread in threads for text in thread.wrong]
    if quiet_answers(cluster) != expected:
        wrong.append("the answers afterwards are others")
    cluster.quiet()
    after = cluster.settled(before)
    if after[0] > before[0] or after[1] > before[1]:
        wrong.append(f"descriptors and threads: {before[:2]} before, {after[:2]} after")
    if after[2] > before[2] + GROWTH_KIB:
        wrong.append(f"memory: {before[2]} KiB before, {after[2]} KiB after")
    totals = {name: sum(thread.counts[name] for thread in threads) for name in threads[0].counts}
    if min(totals["answered"], totals["left"], *bad_luck.values()) == 0:
        wrong.append("something that should happen did not happen once")
    counters = cluster.decode.counters()
    print(json.dumps({"seed": seed, "seconds": seconds, **totals, **bad_luck, "retries": counters["lynx_retries_total"],
                      "before": before, "after": after, "wrong": wrong}, indent=2))
    return not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the lynx program")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of clients and misfortune (default: the clock)")
    arguments = parser.parse_args()
    cluster = Cluster(arguments.program)
    try:
        return 0 if soak(cluster, arguments.minutes * 60, arguments.seed, arguments.clients) else 1
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
