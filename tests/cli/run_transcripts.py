#!/usr/bin/env python3
"""Runs the transcripts in cases/ and compares exit code, standard output and standard error.

A case is a text file:
    # why the case is there
    needs: llama                 optional; skipped unless --have names it
    file NAME: TEXT * COUNT      optional; written into the case's own folder
    node NAME: ARGUMENTS         optional; a lynx process that says "listening on ADDRESS"; {NAME} is its address
    run: ARGUMENTS               of lynx; quoted as in a shell
    exit: 2
    stdout:
    stderr:
    | one line, as it must come out

{TMP} is the case's folder, {FREE} an address where nobody listens. In the output these and versions, other addresses
and decimal fractions are replaced by names in braces. --update writes what came out into the cases.
"""

import argparse
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile

CASES = pathlib.Path(__file__).resolve().parent / "cases"
TIMEOUT_S = 20


class Case:
    def __init__(self, path):
        self.path = path
        self.head, self.needs, self.files, self.nodes, self.arguments = [], [], [], [], None
        self.expected = []
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            value = value.strip()
            if key in ("exit", "stdout", "stderr") or line.startswith("|"):
                self.expected.append(line)
                continue
            self.head.append(line)
            if line.startswith("#") or not line:
                continue
            word, _, name = key.partition(" ")
            if word == "needs":
                self.needs.append(value)
            elif word == "file":
                text, _, count = value.rpartition(" * ")
                self.files.append((name, text.encode().decode("unicode_escape") * int(count)))
            elif word == "node":
                self.nodes.append((name, value))
            elif word == "run":
                self.arguments = value
            else:
                sys.exit(f"{path}: don't know {key!r}")
        if self.arguments is None:
            sys.exit(f"{path}: has no run: line")


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start_node(program, arguments, folder):
    process = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, cwd=folder, text=True)
    line = process.stdout.readline()
    if not line.startswith("listening on "):
        process.kill()
        process.wait()
        raise RuntimeError(f"lynx {' '.join(arguments)} did not start: {line!r}")
    return process, line.split()[-1]


def normalise(text, names):
    for name, value in names.items():
        text = text.replace(value, "{" + name + "}")
    text = re.sub(r"lynx \d+\.\d+\.\d+\S* \(\S+\)", "lynx {VERSION}", text)
    text = re.sub(r"127\.0\.0\.1:(?!700\d\b)\d+", "{ADDRESS}", text)
    text = re.sub(r"connection closed by the peer|connection lost: Connection reset by peer", "{CONNECTION LOST}", text)
    text = re.sub(r"process \d+", "process {PID}", text)
    text = re.sub(r"\|.*\|", "|{TIMELINE}|", text)
    text = re.sub(r" +\d+\.\d\d", " {SECONDS}", text)
    return text


def run_case(case, program):
    """The lines that follow the case's head."""
    with tempfile.TemporaryDirectory(prefix="lynx-cli-") as folder:
        names = {"TMP": folder, "FREE": free_address()}
        for name, text in case.files:
            (pathlib.Path(folder) / name).write_text(text)

        def filled(arguments):
            words = shlex.split(arguments)
            for name, value in names.items():
                words = [word.replace("{" + name + "}", value) for word in words]
            return words

        nodes = []
        try:
            for name, arguments in case.nodes:
                process, address = start_node(program, filled(arguments), folder)
                nodes.append(process)
                names[name] = address
            result = subprocess.run([program, *filled(case.arguments)], stdin=subprocess.DEVNULL, cwd=folder,
                                    capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return [f"exit: none, it still runs after {TIMEOUT_S} s"]
        finally:
            for process in nodes:
                process.terminate()
                process.wait()
                process.stdout.close()
    lines = [f"exit: {result.returncode}"]
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        lines.append(f"{name}:")
        lines += [("| " + line).rstrip() for line in normalise(text, names).splitlines()]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the lynx program")
    parser.add_argument("--have", action="append", default=[], help="what the build has, for needs:")
    parser.add_argument("--update", action="store_true", help="write what came out into the cases")
    parser.add_argument("names", nargs="*", help="cases to run; all by default")
    options = parser.parse_intermixed_args()
    program = str(pathlib.Path(options.program).resolve())

    paths = [CASES / f"{name}.txt" for name in options.names] or sorted(CASES.glob("*.txt"))
    if not paths:
        sys.exit(f"no cases in {CASES}")
    failed = 0
    for path in paths:
        case = Case(path)
        missing = [need for need in case.needs if need not in options.have]
        if missing:
            print(f"SKIPPED {path.stem}: needs {', '.join(missing)}")
            continue
        got = run_case(case, program)
        if options.update:
            path.write_text("\n".join(case.head + got) + "\n")
        elif got != case.expected:
            failed += 1
            print(f"FAILED {path.stem}: lynx {case.arguments}", "--- expected", *case.expected, "--- got", *got,
                  sep="\n")
    print(f"{len(paths)} transcripts, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
