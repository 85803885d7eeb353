#!/usr/bin/env python3
"""Anchors on a really shaped link: network namespaces joined by a bridge, tbf at 200 Mbit/s.

    prefill 0 --+
                +-- switch --- decode 0 (, decode 1)
    prefill 1 --+

Workload: 8 requests, one every 400 ms, with anchors of 0.7 and residuals of 0.7 of what the link carries in that time,
so that residuals of earlier requests always wait when an anchor comes. A request's ideal is that of a first-come
first-served queue of anchors alone, at the rate of a plain TCP copy over the same path. Each check has a control in the
same run that must fail it. Exit code 77: namespaces are refused here.
"""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
LYNX = ""
SKIPPED = 77
RATE = "200mbit"
BURST = "128kb"  # at least one GSO packet; smaller bursts cost a core in timers
LOCAL_LIMIT = "4mb"  # of the sender's own queue
SWITCH_LIMIT = "1mb"  # of a queue that senders share
ANCHOR_KIB = 6528  # 0.7 of 23.9 MB/s * 400 ms, in whole pages
INTERVAL_MS = 400
REQUESTS = 8
COPY_BYTES = 12 << 20
NODE_PORT, COPY_PORT = 7000, 7001
MIN_GOODPUT = 0.97  # of a plain copy
MIN_GOODPUT_WHEN_DISTURBED = 0.93  # where others may take the CPU

TAG = f"lx{os.getpid() % 100000:x}"


def sh(command, check=True):
    result = subprocess.run(command, shell=True, capture_output=True, text=True)
    if check and result.returncode != 0:
        raise RuntimeError(f"{command}: {result.stderr.strip()}")
    return result


def go_first():
    """Real-time class for this process and all that it starts: the transfer is measured, not who else wants the CPU. On
    a busy machine with two cores this makes 1.04 of a mean ratio of 1.15 to 1.3. False where it is not allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        return True
    except OSError:
        return False


class Network:
    """Namespaces on a switch; everything is removed by remove(), which runs at exit too."""

    def __init__(self):
        self.namespaces = []
        self.processes = []
        atexit.register(self.remove)
        self.switch = self.namespace("s")
        self.inside(self.switch, "ip link add br0 type bridge && ip link set br0 up")
        self.machines = []

    def namespace(self, name):
        name = f"{TAG}{name}"
        sh(f"ip netns add {name}")
        self.namespaces.append(name)
        sh(f"ip -n {name} link set lo up")
        return name

    def inside(self, namespace, command):
        return sh(f"ip netns exec {namespace} sh -c '{command}'")

    def machine(self):
        """(namespace, address); its link is eth0 there and portN on the switch."""
        number = len(self.machines)
        name, address = self.namespace(f"m{number}"), f"10.77.0.{number + 1}"
        sh(f"ip -n {name} link add eth0 type veth peer name port{number} netns {self.switch}")
        sh(f"ip -n {self.switch} link set port{number} master br0 up")
        sh(f"ip -n {name} addr add {address}/24 dev eth0 && ip -n {name} link set eth0 up")
        # One receiving CPU for each end: packets that come from two are reordered.
        mask = 1 + number % min(2, os.cpu_count() or 1)
        self.inside(name, f"echo {mask} > /sys/class/net/eth0/queues/rx-0/rps_cpus || true")
        self.machines.append(name)
        return name, address

    def shape(self, namespace, device, limit):
        sh(f"tc -n {namespace} qdisc add dev {device} root tbf rate {RATE} burst {BURST} limit {limit}")

    def start(self, namespace, *arguments):
        process = subprocess.Popen(["ip", "netns", "exec", namespace, PROGRAM, *arguments], stdout=subprocess.PIPE,
                                   text=True)
        self.processes.append(process)
        return process

    def end_processes(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
        self.processes = []

    def remove(self):
        self.end_processes()
        for name in self.namespaces:
            sh(f"ip netns del {name}", check=False)
        self.namespaces = []


def why_not():
    """Why this machine can't make namespaces; empty if it can."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (package iproute2)"
    probe = f"{TAG}p"
    try:
        sh(f"ip netns add {probe}")
        sh(f"ip -n {probe} link add v0 type veth peer name v1 && tc -n {probe} qdisc add dev v0 root tbf rate {RATE} "
           f"burst {BURST} limit {LOCAL_LIMIT}")
        return ""
    except RuntimeError as error:
        return str(error)
    finally:
        sh(f"ip netns del {probe}", check=False)


def ratios(report, anchor_bits, link_bps):
    """How long each anchor took, relative to anchors that queue alone on the link."""
    free_at = 0.0
    result = []
    for request in report["requests"]:
        sent = request["sent_s"]
        free_at = max(free_at, sent) + anchor_bits / link_bps
        result.append((request["anchor_done_s"] - sent) / (free_at - sent))
    return result


class NamespaceTest(unittest.TestCase):
    def setUp(self):
        self.network = Network()
        self.addCleanup(self.network.remove)

    def best_of_two(self, limit, *arguments, **options):
        """As run_workload; another try if a busy machine spoilt the first."""
        first = self.run_workload(*arguments, **options)
        good = first[0] <= limit and first[1] >= MIN_GOODPUT
        return first if good else min(first, self.run_workload(*arguments, **options))

    def run_workload(self, prefills, decodes, name, **options):
        """(mean anchor ratio, goodput / plain copy) over all decode machines."""
        flags = [word for key, value in options.items() for word in (f"--{key}", value)]
        addresses = []
        for namespace, address in prefills:
            process = self.network.start(namespace, "prefill", "--listen", f"{address}:{NODE_PORT}", "--copy-listen",
                                         f"{address}:{COPY_PORT}", *flags)
            self.assertTrue(process.stdout.readline().startswith("listening on "))
            addresses.append(address)
        copy = self.decode(decodes[0], addresses, ["--copy-connect", f"{addresses[0]}:{COPY_PORT}", "--copy-bytes",
                                                   str(COPY_BYTES), "--requests", "1", *flags])
        copy_bps = self.report(copy)["copy_bps"]
        start = time.monotonic() + 0.3
        running = [
            self.decode(machine, addresses,
                        ["--requests", str(REQUESTS // len(decodes)), "--interval-ms", str(INTERVAL_MS * len(decodes)),
                         "--start-at", str(start + i * INTERVAL_MS / 1000), *flags])
            for i, machine in enumerate(decodes)]
        reports = [self.report(process) for process in running]
        self.network.end_processes()
        anchor_bits = ANCHOR_KIB * 1024 * 8
        all_ratios = [ratio for report in reports for ratio in ratios(report, anchor_bits, copy_bps)]
        mean = sum(all_ratios) / len(all_ratios)
        seconds = max(report["last_s"] for report in reports) - reports[0]["requests"][0]["sent_s"]
        goodput = 8 * sum(report["bytes"] for report in reports) / seconds / copy_bps
        print(f"{name}: anchors {mean:.3f} x ideal (worst {max(all_ratios):.3f}), "
              f"plain copy {copy_bps / 1e6:.1f} Mbit/s, goodput {100 * goodput:.1f} % of it", flush=True)
        return mean, goodput

    def decode(self, machine, addresses, arguments):
        connect = [word for address in addresses for word in ("--connect", f"{address}:{NODE_PORT}")]
        return self.network.start(machine[0], "decode", *connect, "--anchor-kib", str(ANCHOR_KIB), "--residual-kib",
                                  str(ANCHOR_KIB), *arguments)

    def report(self, process):
        output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        return json.loads(output)

    def test_one_prefill_one_decode(self):
        prefill, decode = self.network.machine(), self.network.machine()
        self.network.shape(prefill[0], "eth0", LOCAL_LIMIT)
        strict, goodput = self.best_of_two(1.10, [prefill], [decode], "strict")
        fifo, _ = self.run_workload([prefill], [decode], "fifo", order="fifo")
        self.assertLessEqual(strict, 1.10)
        self.assertGreaterEqual(fifo, 2.5)
        self.assertGreaterEqual(goodput, MIN_GOODPUT)

    def test_one_prefill_one_decode_tls(self):
        """Encryption takes nothing from the order. The control is that of the test above."""
        folder = tempfile.TemporaryDirectory(prefix="lynx-certs-")
        self.addCleanup(folder.cleanup)
        sh(f"{LYNX} certs --dir {folder.name}")
        prefill, decode = self.network.machine(), self.network.machine()
        self.network.shape(prefill[0], "eth0", LOCAL_LIMIT)
        strict, goodput = self.best_of_two(1.10, [prefill], [decode], "strict, TLS", tls=folder.name)
        self.assertLessEqual(strict, 1.10)
        self.assertGreaterEqual(goodput, MIN_GOODPUT)

    def test_incast(self):
        """Two prefill nodes, one decode node: only the receiver knows both queues."""
        prefills, decode = [self.network.machine(), self.network.machine()], self.network.machine()
        self.network.shape(self.network.switch, "port2", SWITCH_LIMIT)
        pull, _ = self.best_of_two(1.15, prefills, [decode], "incast, pull")
        push, _ = self.run_workload(prefills, [decode], "incast, sender's priority only", pull="off")
        self.assertLessEqual(pull, 1.15)
        self.assertGreaterEqual(push, 1.5)

    def test_outcast(self):
        """One prefill node, two decode nodes: one order over all connections."""
        prefill, decodes = self.network.machine(), [self.network.machine(), self.network.machine()]
        self.network.shape(prefill[0], "eth0", LOCAL_LIMIT)
        strict, _ = self.best_of_two(1.15, [prefill], decodes, "outcast")
        fifo, _ = self.run_workload([prefill], decodes, "outcast, fifo", order="fifo")
        self.assertLessEqual(strict, 1.15)
        self.assertGreaterEqual(fifo, 1.5)


def interrupt(*_):
    raise KeyboardInterrupt  # which unittest does not take for a failed test


def main():
    global PROGRAM, LYNX, MIN_GOODPUT, RATE, BURST, ANCHOR_KIB, COPY_BYTES
    if "--gbit" in sys.argv:  # all of it five times as fast
        sys.argv.remove("--gbit")
        RATE, BURST, ANCHOR_KIB, COPY_BYTES = "1gbit", "640kb", 5 * ANCHOR_KIB, 5 * COPY_BYTES
    PROGRAM, LYNX = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)  # so that atexit runs
    reason = why_not()
    if reason:
        print(f"SKIPPED namespace_test: {reason}")
        return SKIPPED
    if not go_first():
        MIN_GOODPUT = MIN_GOODPUT_WHEN_DISTURBED
    return 0 if unittest.main(verbosity=2, exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
