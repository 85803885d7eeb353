"""What the end-to-end tests share: lynx processes, and a TCP tap between them that counts frames and can hold them."""

import json
import pathlib
import queue
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

# Frame header, docs/wire.md.
HEADER_BYTES = 40
REQUEST, PAGE, END = 5, 10, 11

TOY = ("--model", "toy", "--context", "4000")
PROMPT = "The lynx waits in the snow and listens to the small sounds under it. " * 7

# Where Tap holds a transfer: (up, frame type, stream, count, in the middle of the frame).
BEFORE_REQUEST = (True, REQUEST, 0, 1, False)
DURING_ANCHOR = (False, PAGE, 0, 3, True)
AFTER_ANCHOR = (False, PAGE, 1, 1, False)
DURING_RESIDUAL = (False, PAGE, 1, 3, True)
UNFINISHED = {"before the request": BEFORE_REQUEST, "during the anchor": DURING_ANCHOR,
              "after the anchor": AFTER_ANCHOR, "during the residual": DURING_RESIDUAL}


class Node:
    """A lynx process that listens; its log can be waited on."""

    def __init__(self, program, *arguments):
        self.process = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.log = []
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = self.wait_for("listening on ", 30).split()[-1]

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, words, timeout_s):
        """The next log line that contains the words; AssertionError with the log when it doesn't come."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"no {words!r} within {timeout_s} s in the log: {self.log}")
            self.log.append(line)
            if words in line:
                return line

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Ends the process whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        self.process.stdout.close()


class Generate:
    """A lynx generate that runs beside the test."""

    def __init__(self, program, *arguments):
        self.process = subprocess.Popen([program, "generate", *arguments], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.stdout = self.stderr = ""

    def wait(self, timeout_s):
        """The exit code; AssertionError when it hangs."""
        try:
            self.stdout, self.stderr = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"lynx generate still runs after {timeout_s} s") from None
        return self.process.returncode

    def kill(self):
        self.process.kill()
        self.stdout, self.stderr = self.process.communicate()

    def stop(self):
        if self.process.poll() is None:
            self.kill()


class _FrameReader:
    """Gives (bytes, type, stream) for each frame of a byte stream, header and payload together."""

    def __init__(self):
        self.waiting = b""

    def feed(self, data):
        self.waiting += data
        while len(self.waiting) >= HEADER_BYTES:
            size = HEADER_BYTES + struct.unpack_from("<I", self.waiting, 24)[0]
            if len(self.waiting) < size:
                return
            frame, self.waiting = self.waiting[:size], self.waiting[size:]
            yield frame, frame[5], frame[7]


class Tap:
    """A proxy for one connection at a time in front of a prefill node.

    hold(up, type, stream, count) stops that direction before the count-th such frame (with half of it passed on if
    `split`); held() says that it has come. close() then drops what was held and closes both sides, as a machine that
    died would; release() passes it on.
    """

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._rule = None
        self._sockets = []
        self._held = threading.Event()
        self._released = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, up, frame_type, stream=0, count=1, split=False):
        self._rule = [up, frame_type, stream, count, split]
        self._held.clear()
        self._released.clear()

    def held(self, timeout_s=10):
        assert self._held.wait(timeout_s), "the frame to hold did not come"

    def release(self):
        self._rule = None
        self._released.set()

    def close(self):
        for end in self._sockets:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._sockets = []
        self._rule = ["closed"]
        self._released.set()

    def stop(self):
        self.close()
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, 5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            threading.Thread(target=self._connect, args=(client, server), daemon=True).start()

    def _connect(self, client, server):
        up = threading.Thread(target=self._pump, args=(client, server, True), daemon=True)
        up.start()
        self._pump(server, client, False)
        up.join()
        client.close()
        server.close()

    def _wanted(self, up, frame_type, stream):
        rule = self._rule
        if not rule or rule[:3] != [up, frame_type, stream]:
            return False
        rule[3] -= 1
        return rule[3] == 0

    def _pump(self, source, sink, up):
        reader = _FrameReader()
        try:
            while data := source.recv(65536):
                for frame, frame_type, stream in reader.feed(data):
                    if self._wanted(up, frame_type, stream):
                        sent = len(frame) // 2 if self._rule[4] else 0
                        sink.sendall(frame[:sent])
                        frame = frame[sent:]
                        self._held.set()
                        self._released.wait()
                        if self._rule == ["closed"]:
                            return
                    sink.sendall(frame)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class ProcessTest(unittest.TestCase):
    """Ends what it starts."""

    program = ""

    def start(self, kind, *arguments):
        process = kind(self.program, *arguments)
        self.addCleanup(process.stop)
        return process

    def node(self, *arguments):
        return self.start(Node, *arguments)

    def prefill_node(self, *arguments, listen="127.0.0.1:0"):
        return self.node("prefill", *TOY, "--listen", listen, *arguments)

    def tap_of(self, node):
        tap = Tap(node.address)
        self.addCleanup(tap.stop)
        return tap


def main():
    """Runs the tests of a script whose first argument is the lynx program."""
    ProcessTest.program = sys.argv.pop(1)
    unittest.main(verbosity=2)


RUN_FIELDS = {
    "codec": str, "overlap": str, "bytes": dict, "elements": int, "bits_per_element": dict, "prefill_end_s": float,
    "first_token_exact_s": float, "ttft_s": float, "ttft_kind": str, "tt_s": dict, "anchor_done_s": float,
    "anchor_ideal_s": (float, type(None)), "stream_done_s": list, "drafted": int, "accepted": int,
    "verify_s": (float, int), "peak_kv_bytes": int, "exact": (bool, type(None)), "tokens": list,
}
REPORT_FIELDS = {
    "version": str, "commit": str, "cpu": str, "model": str, "prompt_tokens": int, "bandwidth_bps": (float, int),
    "delay_s": (float, int), "runs": list,
}


def check_report(path):
    """Reads a --json file, checks its fields, their types and what must hold between them; gives the report."""
    report = json.loads(pathlib.Path(path).read_text())
    for name, kind in REPORT_FIELDS.items():
        assert isinstance(report[name], kind), f"{name}: {report[name]!r}"
    assert report["runs"], "no runs"
    for run in report["runs"]:
        check_run(run)
    return report


def check_run(run):
    for name, kind in RUN_FIELDS.items():
        assert name in run and isinstance(run[name], kind), f"{name}: {run.get(name)!r} in {run['codec']}"
    streams = run["bytes"]["streams"]
    assert run["bytes"]["total"] == sum(streams) and all(isinstance(count, int) and count > 0 for count in streams)
    assert len(run["stream_done_s"]) == len(streams)
    assert run["overlap"] in ("on", "off") and run["ttft_kind"] in ("draft", "committed")
    assert set(run["tt_s"]) == {"1", "32", "64"}
    times = [run["tt_s"][count] for count in ("1", "32", "64") if run["tt_s"][count] is not None]
    assert times == sorted(times), times
    assert run["stream_done_s"] == sorted(run["stream_done_s"]) and run["anchor_done_s"] == run["stream_done_s"][0]
    assert 0 < run["prefill_end_s"] <= run["ttft_s"]
    assert run["first_token_exact_s"] == run["prefill_end_s"]
    assert 0 <= run["accepted"] <= run["drafted"]
    bits = run["bits_per_element"]
    assert abs(bits["anchor"] - 8 * streams[0] / run["elements"]) < 1e-6
    assert abs(bits["total"] - 8 * sum(streams) / run["elements"]) < 1e-6
    assert run["tokens"] and all(isinstance(token, int) for token in run["tokens"])
