#!/usr/bin/env python3
"""Checks docs/faults.md: every fault and every case has a row, every row a test or a reason, every test exists.

  faults.py ROOT         exit 1 with one line per violation
  faults.py --self-test  broken tables must fail, a good one must pass
"""

import pathlib
import re
import sys

ROWS = ([str(n) for n in range(1, 30)] + [f"B{n}" for n in range(4, 16)] + [f"C{n}" for n in range(5, 9)] +
        [f"P{n}" for n in range(1, 8)])


def tests_of(root):
    """Names as docs/faults.md writes them: Suite.Test of GoogleTest, Class.test of Python, programs of ctest."""
    names = set()
    for path in (root / "src").rglob("*_test.cc"):
        names |= {".".join(pair) for pair in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", path.read_text(), re.M)}
    for path in (root / "tests").rglob("*_test.py"):
        cls = ""
        for kind, name in re.findall(r"^(?:    )?(class|def) (\w+)", path.read_text(), re.M):
            cls = name if kind == "class" else cls
            if name.startswith("test_"):
                names.add(f"{cls}.{name}")
    for path in (root / "tests").rglob("CMakeLists.txt"):
        names |= set(re.findall(r"(?:add_test\(NAME|lynx_script_test\() ?(\w+)", path.read_text()))
    names |= {path.stem for path in (root / "tests/fuzz").glob("*_fuzz.cc")}
    return names


def violations(text, tests):
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[0] in ROWS:
            if cells[0] in rows:
                yield f"{cells[0]} has two rows"
            rows[cells[0]] = cells
    for name in ROWS:
        if name not in rows:
            yield f"{name} has no row"
            continue
        named = re.findall(r"`([^`]+)`", rows[name][3])
        if not named and not rows[name][3].startswith("none: "):
            yield f"{name} names no test and gives no reason"
        for test in named:
            if test not in tests:
                yield f"{name} names {test}, which does not exist"


def self_test():
    good = "\n".join(f"| {name} | a | b | `A.B` |" for name in ROWS)
    assert not list(violations(good, {"A.B"}))
    assert not list(violations(good.replace("| 7 | a | b | `A.B` |", "| 7 | a | b | none: it can't |"), {"A.B"}))
    for wrong in (good.replace("| 7 |", "| 77 |"), good.replace("| P3 | a | b | `A.B` |", "| P3 | a | b | |"),
                  good + "\n| 7 | a | b | `A.B` |", good.replace("| B9 | a | b | `A.B` |", "| B9 | a | b | `A.C` |")):
        assert len(list(violations(wrong, {"A.B"}))) == 1, wrong


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1])
    found = list(violations((root / "docs/faults.md").read_text(), tests_of(root)))
    for violation in found:
        print(f"docs/faults.md: {violation}")
    return 1 if found else None


if __name__ == "__main__":
    sys.exit(main())
