#!/usr/bin/env python3
"""Checks what docs/design.md says about the tree: which folder may include which, where third parties may enter, and
the sizes, names and words of files.

  layering.py ROOT         exit 1 with one line per violation
  layering.py --self-test  a tree with every kind of violation must fail, and a clean one must pass
"""

import pathlib
import re
import sys
import tempfile

# The arrows: module -> modules that it may include. Every module may include include/lynx and itself.
ARROWS = {
    "base": set(),
    "codec": {"base"},
    "baselines": {"codec", "base"},
    "wire": {"base"},
    "transfer": {"wire", "base"},
    "speculate": {"base"},
    "engine/toy": {"base"},
    "engine/llama": {"base"},
    "net": {"transfer", "wire", "base"},
    "serve": {"net", "transfer", "wire", "speculate", "codec", "base"},
    "front": {"serve", "net", "transfer", "wire", "speculate", "codec", "base"},
    "sim": {"serve", "transfer", "wire", "speculate", "codec", "base"},
    "eval": {"speculate", "codec", "base"},
}
PUBLIC_ONLY = {"python", "examples"}  # include/lynx and nothing of src/

# Doors: headers of others, and the places (regular expressions of paths) where they may be included.
# Tests and the headers that only they use: x_test.cc, x_test.h, x_test_cache.h, test_x.h.
TEST = r"(.*_test(_\w+)?|.*/test_.*|tests/.*)\.(cc|h)"
PROCESS = r"(unistd|signal|fcntl|termios|spawn|poll)\.h|sys/(wait|types|stat|ioctl|resource|prctl)\.h"
DOORS = [
    ("llama.cpp", r"(llama|ggml|gguf)[\w-]*\.h", [r"src/engine/llama/.*"]),
    ("Highway", r"(hwy|highway)/.*", [r".*_simd\.cc"]),
    ("CUDA", r"(cuda|cooperative_groups|cub/|thrust/)\w*.*", [r".*\.cu"]),
    ("OpenSSL", r"openssl/.*", [r"src/net/(tls|certificates)\.cc", r"src/net/openssl_pointers\.h",
                                  r"src/net/tls_hostile_test\.cc", r"src/front/api_keys\.cc"]),
    ("CLI11", r"CLI/.*", [r"(tools|bench)/.*"]),
    ("JSON", r"nlohmann/.*", [r"(tools|bench)/.*", r"src/(front|serve|eval)/.*", TEST]),
    ("cpp-httplib", r"httplib\.h", [r"src/front/(http_connection|http_get)\.cc"]),
    ("GoogleTest", r"(gtest|gmock)/.*", [TEST]),
    ("processes", PROCESS, [r"src/net/.*", r"tools/.*", TEST]),
    ("system calls", r"(sys|netinet|arpa|linux)/.*|net/(if|if_arp|route)\.h|(netdb|ifaddrs|dlfcn|pthread|sched)\.h",
     [r"src/net/.*", TEST]),
    ("threads", r"thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|stop_token",
     [r"src/(base|engine/\w+|net|front|serve|eval)/.*", r"(tools|bench|examples|python)/.*", TEST]),
    ("clocks", r"chrono|ctime|time\.h", [r"src/(base|engine/\w+|net|front|serve|eval)/.*",
                                         r"(tools|bench|examples|python)/.*", TEST]),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
CPP = {".h", ".cc", ".cu", ".cuh"}
CODE = CPP | {".py", ".sh", ".cmake"}
TEXT = CODE | {".md", ".txt", ".json", ""}
MAX_LINES = 600
REPEATABLE = {"CMakeLists.txt", "README.md", "__init__.py", "conftest.py"}
FORBIDDEN = [
    ("an unfinished mark", re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")),
    ("a path of one machine", re.compile(r"(?<![\w./-])/(work|root|home/\w+)/")),
]

# The library never prints; a broken contract of its own is the exception.
PRINTS = re.compile(r"\b(printf|fprintf|vfprintf|puts|fputs|perror)\s*\(|\bstd::(cout|cerr|clog)\b")
MAY_PRINT = r"src/base/check\.h|(?!src/|include/).*|" + TEST


def sources(root):
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
        if path.is_file() and not hidden and relative.parts[0] != "build":
            yield relative.as_posix(), path


def module_of(name):
    """The module that a file under src/ (path without src/) belongs to."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == "engine" else parts[0]


def declared_modules(root):
    """module -> (DEPENDS, TEST_DEPENDS) of the lynx_module lines in CMakeLists.txt."""
    cmake = root / "CMakeLists.txt"
    modules = {}
    for match in re.finditer(r"lynx_module\(([^)]*)\)", cmake.read_text() if cmake.exists() else ""):
        words = match.group(1).split()
        lists = {"DEPENDS": set(), "TEST_DEPENDS": set(), "LINKS": set()}
        current = None
        for word in words[1:]:
            if word in lists:
                current = word
            else:
                lists[current].add(word)
        modules[words[0]] = (lists["DEPENDS"], lists["TEST_DEPENDS"])
    return modules


def check_arrow(path, target, modules):
    """Why a file may not include "target", or None."""
    top = path.split("/")[0]
    if target.startswith("lynx/"):
        return None
    if top == "include":
        return "a public header includes only lynx/… and the standard library"
    if top in PUBLIC_ONLY:
        return f"{top} uses only include/lynx"
    if top != "src":
        return None
    if "/" not in target:
        return 'write "module/file.h"'
    module, other = module_of(path[4:]), module_of(target)
    if module not in ARROWS:
        return f"module {module} has no arrows in tests/layering.py"
    allowed = ARROWS[module] | {module}
    if re.fullmatch(TEST, path):
        allowed |= modules.get(module, (set(), set()))[1]
    return None if other in allowed else f"{module} may not include {other}"


def check_includes(path, text, modules):
    for bracket, target in INCLUDE.findall(text):
        for name, headers, places in DOORS:
            if re.fullmatch(headers, target):
                if not any(re.fullmatch(place, path) for place in places):
                    yield f"{path}: {target}: {name} may not enter here"
                break
        else:
            if bracket == '"':
                reason = check_arrow(path, target, modules)
            elif path.startswith("include/") and not re.fullmatch(r"[a-z_0-9]+", target):
                reason = "a public header includes only lynx/… and the standard library"
            else:
                reason = None
            if reason:
                yield f"{path}: {target}: {reason}"


def check_file(path, text, modules):
    suffix = pathlib.PurePosixPath(path).suffix
    if suffix in CODE and text.count("\n") > MAX_LINES:
        yield f"{path}: {text.count(chr(10))} lines, {MAX_LINES} are allowed"
    for what, pattern in FORBIDDEN:
        match = pattern.search(text)
        if match:
            yield f"{path}: {what}: {match.group(0)}"
    if suffix in CPP:
        match = PRINTS.search(text)
        if match and not re.fullmatch(MAY_PRINT, path):
            yield f"{path}: the library never prints: {match.group(0)}"
        yield from check_includes(path, text, modules)


def check(root):
    modules = declared_modules(root)
    for module, (depends, _) in modules.items():
        extra = depends - ARROWS.get(module, set())
        if extra:
            yield f"CMakeLists.txt: {module} may not depend on {', '.join(sorted(extra))}"
    seen = {}
    for relative, path in sources(root):
        if path.suffix in CODE and path.name not in REPEATABLE:
            if path.name in seen:
                yield f"{relative}: the same file name as {seen[path.name]}"
            seen[path.name] = relative
        if path.suffix in TEXT and path.name != "LICENSE":
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # data without a suffix
            yield from check_file(relative, text, modules)


BAD = {  # file -> (content, what the violation must say)
    "src/codec/a.cc": ('#include "transfer/x.h"\n', "codec may not include transfer"),
    "src/speculate/b.cc": ('#include "codec/x.h"\n', "speculate may not include codec"),
    "src/serve/c.cc": ('#include "engine/toy/toy.h"\n', "serve may not include engine/toy"),
    "src/wire/c_test.cc": ('#include "engine/toy/toy.h"\n', "wire may not include engine/toy"),
    "src/base/d.h": ('#include "wire/x.h"\n', "base may not include wire"),
    "src/net/e.cc": ('#include "llama.h"\n', "llama.cpp may not enter"),
    "src/codec/f.cc": ("#include <hwy/highway.h>\n", "Highway may not enter"),
    "src/codec/g.cc": ("#include <cuda_runtime.h>\n", "CUDA may not enter"),
    "src/net/w.cc": ("#include <openssl/ssl.h>\n", "OpenSSL may not enter"),
    "src/transfer/h.cc": ("  #  include <sys/socket.h>\n", "system calls may not enter"),
    "src/serve/i.cc": ("#include <unistd.h>\n", "processes may not enter"),
    "tools/j.cc": ("#include <netinet/in.h>\n", "system calls may not enter"),
    "src/wire/k.cc": ("#include <mutex>\n", "threads may not enter"),
    "src/transfer/l.cc": ("#include <chrono>\n", "clocks may not enter"),
    "src/codec/m.cc": ('std::fprintf(stderr, "x");\n', "the library never prints"),
    "src/base/n.cc": ("#include <gtest/gtest.h>\n", "GoogleTest may not enter"),
    "include/lynx/o.h": ('#include "base/x.h"\n', "a public header includes only"),
    "include/lynx/p.h": ("#include <vendor/x.h>\n", "a public header includes only"),
    "examples/q.cc": ('#include "codec/x.h"\n', "examples uses only include/lynx"),
    "src/other/r.cc": ('#include "base/x.h"\n', "has no arrows"),
    "src/serve/z.cc": ("#include <httplib.h>\n", "cpp-httplib may not enter"),
    "src/serve/x.cc": ('#include "front/x.h"\n', "serve may not include front"),
    "src/codec/y.cc": ("#include <openssl/sha.h>\n", "OpenSSL may not enter"),
    "src/base/s.cc": ('#include "bytes.h"\n', 'write "module/file.h"'),
    "src/base/t.cc": ("// TO" + "DO: more\n", "an unfinished mark"),
    "docs/u.md": ("see /wo" + "rk/notes\n", "a path of one machine"),
    "src/base/v.cc": ("\n" * (MAX_LINES + 1), "601 lines"),
    "src/wire/v.cc": ("", "the same file name as src/base/v.cc"),
    "CMakeLists.txt": ("lynx_module(codec DEPENDS base net)\n", "codec may not depend on net"),
}
GOOD = {
    "CMakeLists.txt": "lynx_module(serve DEPENDS base codec\n  TEST_DEPENDS engine/toy LINKS x)\n",
    "src/serve/a.cc": 'std::snprintf(a, 1, "");\n#include <thread>\n#include <nlohmann/json.hpp>\n'
                      '#include "net/socket.h"\n#include "lynx/page.h"\n',
    "src/serve/a_test.cc": '#include <gtest/gtest.h>\n#include "engine/toy/toy.h"\n',
    "src/engine/llama/b.cc": '#include <llama.h>\n#include "base/x.h"\n',
    "src/net/c.cc": "#include <sys/socket.h>\n#include <unistd.h>\n",
    "src/net/tls.cc": "#include <openssl/ssl.h>\n",
    "src/codec/c_simd.cc": "#include <hwy/highway.h>\n",
    "tools/d.cc": '#include <sys/wait.h>\n#include "engine/toy/toy.h"\n#include "serve/x.h"\n',
    "include/lynx/e.h": '#include <vector>\n#include "lynx/page.h"\n',
    "build/f.cc": '#include "anything"\n',
}


def violations_of(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return list(check(root))


def self_test():
    found = violations_of({name: text for name, (text, _) in BAD.items()})
    missed = [name for name, (_, words) in BAD.items()
              if not any(line.startswith(f"{name}:") and words in line for line in found)]
    wrong = violations_of(GOOD)
    for name in missed:
        print(f"not found: {name}: {BAD[name][1]}")
    for line in wrong:
        print(f"wrongly found: {line}")
    if len(found) != len(BAD):
        print("\n".join(["not one violation per bad file:"] + found))
    return 1 if missed or wrong or len(found) != len(BAD) else 0


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    if sys.argv[1] == "--self-test":
        return self_test()
    violations = list(check(pathlib.Path(sys.argv[1])))
    print("\n".join(violations) or "the tree is in order")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
