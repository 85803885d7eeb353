"""What the tests of the HTTP front share: nodes with --http, curl, and the counters of /metrics."""

import json
import subprocess
import time
import urllib.request

from lynx_processes import Node


class HttpNode(Node):
    """A lynx serve or lynx decode; `address` is its URL."""

    def __init__(self, program, command, *arguments):
        super().__init__(program, command, "--http", "127.0.0.1:0", *arguments)

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=20) as response:
            return response.read().decode()

    def counters(self):
        """name{label} -> value"""
        lines = [line for line in self.get("/metrics").splitlines() if not line.startswith("#")]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}

    def wait_counter(self, name, value, timeout_s=10):
        end = time.monotonic() + timeout_s
        while (now := self.counters())[name] != value:
            assert time.monotonic() < end, f"{name} is {now[name]}, not {value}, after {timeout_s} s"
            time.sleep(0.02)


class Curl:
    """curl that posts JSON and runs beside the test."""

    def __init__(self, url, body, *arguments):
        self.process = subprocess.Popen(
            ["curl", "-sS", "-N", "--max-time", "60", "-w", "\n%{http_code}", "-H", "Content-Type: application/json",
             "-d", json.dumps(body), *arguments, url],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait(self):
        """(status, body)"""
        out, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        body, _, status = out.rpartition("\n")
        return int(status), body

    def leave(self):
        """Closes the connection as a client that was killed; harmless when it has ended."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


def events(body):
    """[(name or None, JSON or "[DONE]")] of server-sent events."""
    found = []
    for event in body.strip().split("\n\n"):
        lines = event.split("\n")
        name = lines[0].removeprefix("event: ") if lines[0].startswith("event: ") else None
        data = lines[-1].removeprefix("data: ")
        found.append((name, data if data == "[DONE]" else json.loads(data)))
    return found
