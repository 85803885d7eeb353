#!/usr/bin/env python3
"""Nodes with the toy engine among clients, operators and machines that mean ill or do ill: they go on answering."""

import json
import os
import pathlib
import resource
import socket
import subprocess
import tempfile
import threading
import time

from http_processes import Curl, HttpNode
from lynx_processes import TOY, Generate, Node, ProcessTest, main


class HostileTest(ProcessTest):
    def ask(self, node, prompt="The lynx waits in the snow"):
        curl = Curl(node.address + "/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0})
        self.addCleanup(curl.leave)
        return curl.wait()

    def connect(self, node):
        host, port = node.address.removeprefix("http://").rsplit(":", 1)
        client = socket.create_connection((host, int(port)), 10)
        self.addCleanup(client.close)
        return client

    def memory(self, node, name):
        """Bytes of a line of /proc/PID/status."""
        for line in pathlib.Path(f"/proc/{node.process.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
        raise AssertionError(name)

    def test_bodies_of_many_values(self):
        """Whatever they contain, many bodies at once take little more memory than one does."""
        node = self.start(HttpNode, "serve", *TOY)
        body = b'{"prompt":[' + b"1," * 4_000_000 + b"1]}"
        head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        count = 12
        together = threading.Barrier(count)

        def post():
            client = self.connect(node)
            client.sendall(head + body[:-1])
            together.wait(60)
            client.sendall(body[-1:])
            answers.append(client.recv(1000))

        answers = []
        clients = [threading.Thread(target=post) for _ in range(count)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        self.assertEqual([answer.split()[1] for answer in answers], [b"400"] * count)
        self.assertLess(self.memory(node, "VmHWM"), 3 * count * len(body) + (64 << 20))
        self.assertEqual(self.ask(node)[0], 200)

    def test_no_thread_left(self):
        node = self.start(HttpNode, "serve", *TOY)
        limit = self.memory(node, "VmSize") + (4 << 20)
        resource.prlimit(node.process.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        for client in [self.connect(node) for _ in range(20)]:
            client.close()
        time.sleep(0.5)
        self.assertIsNone(node.process.poll())
        resource.prlimit(node.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.assertEqual(self.ask(node)[0], 200)

    def test_log_without_a_reader(self):
        """One that went away, and one that stopped reading."""
        for gone in (True, False):
            with self.subTest(gone=gone):
                out, into = os.pipe()
                process = subprocess.Popen([self.program, "prefill", *TOY, "--listen", "127.0.0.1:0"], stderr=into,
                                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
                self.addCleanup(process.stdout.close)
                self.addCleanup(process.wait)
                self.addCleanup(process.kill)
                address = process.stdout.readline().split()[-1]
                if gone:
                    os.close(out)
                else:
                    self.addCleanup(os.close, out)
                    os.set_blocking(into, False)
                    with self.assertRaises(BlockingIOError):
                        while True:
                            os.write(into, b"x" * 4096)
                    os.set_blocking(into, True)  # of the pipe, so the node's end too
                os.close(into)
                for _ in range(2):
                    generate = Generate(self.program, *TOY, "--prefill", address, "--prompt", "Hi", "--max-tokens", "4")
                    self.assertEqual(generate.wait(20), 0, generate.stderr)

    def test_dead_machines_keep_nobody_waiting(self):
        """Prefill nodes whose machines don't answer at all, beside one that restarts."""
        dead = []
        for _ in range(5):
            listener = socket.socket()
            self.addCleanup(listener.close)
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for _ in range(3):  # its queue is full: who connects hears nothing
                client = socket.socket()
                self.addCleanup(client.close)
                client.setblocking(False)
                client.connect_ex(listener.getsockname())
            dead += ["--prefill", f"127.0.0.1:{listener.getsockname()[1]}"]
        prefill = self.start(Node, "prefill", *TOY, "--listen", "127.0.0.1:0")
        node = self.start(HttpNode, "decode", *TOY, "--prefill", prefill.address, *dead)
        node.wait_counter("lynx_prefill_ready", 1, 20)
        time.sleep(11)  # all have failed
        prefill.kill()
        time.sleep(0.3)
        self.start(Node, "prefill", *TOY, "--listen", prefill.address)
        node.wait_counter("lynx_prefill_ready", 1, 6)
        self.assertEqual(self.ask(node)[0], 200)
        node.process.terminate()
        self.assertEqual(node.process.wait(5), 0)

    def test_a_prefill_node_that_does_not_fit(self):
        """Not the client's fault, and the log says why."""
        prefill = self.start(Node, "prefill", *TOY, "--listen", "127.0.0.1:0")
        node = self.start(HttpNode, "decode", *TOY, "--prefill", prefill.address)
        prefill.kill()
        other = self.start(Node, "prefill", "--model", "toy:2", "--context", "4000", "--listen", prefill.address)
        node.wait_for("revision differs", 10)
        status, body = self.ask(node)
        self.assertEqual(status, 503, body)
        self.assertIn("revision differs", body)
        other.kill()
        self.start(Node, "prefill", "--model", "toy", "--context", "16", "--listen", prefill.address)
        node.wait_counter("lynx_prefill_ready", 1)
        status, body = self.ask(node)
        self.assertEqual(status, 400, body)  # 429 would be tried again and again
        self.assertIn("the prefill node takes 16", body)

    def test_lists_that_are_none(self):
        prefill = self.start(Node, "prefill", *TOY, "--listen", "127.0.0.1:0")
        with tempfile.TemporaryDirectory(prefix="lynx-e2e-") as folder:
            path = pathlib.Path(folder, "nodes")
            path.write_text(prefill.address)
            node = self.start(HttpNode, "decode", *TOY, "--prefill-file", str(path))
            for make in (lambda: path.symlink_to("/dev/zero"), path.mkdir, lambda: path.write_bytes(b"\0" * 100)):
                path.rmdir() if path.is_dir() else path.unlink()
                make()
                node.wait_for("the old list stays", 10)
                self.assertEqual(self.ask(node)[0], 200)
            self.assertLess(self.memory(node, "VmHWM"), 200 << 20)


if __name__ == "__main__":
    main()
