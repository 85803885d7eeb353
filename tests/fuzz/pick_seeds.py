#!/usr/bin/env python3
"""Picks the few inputs that reach most: what is committed under tests/fuzz/corpus.

  pick_seeds.py BINARY CORPUS COUNT [MAX_BYTES]

Takes the inputs that runs of the libFuzzer BINARY have kept in BINARY.corpus and those in CORPUS, and leaves in CORPUS
the COUNT that together reach the most of the code, each at most MAX_BYTES (default 256) long, named by their content.
Inputs in CORPUS whose name does not look like that (they are there for a reason) are left alone and counted.
"""

import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile


def features_of(binary, folders):
    """Input -> what it reaches, as libFuzzer measures it when it merges."""
    with tempfile.TemporaryDirectory() as scratch:
        control = pathlib.Path(scratch) / "control"
        empty = pathlib.Path(scratch) / "empty"
        empty.mkdir()
        subprocess.run([binary, "-set_cover_merge=1", f"-merge_control_file={control}", empty, *folders], check=True,
                       stderr=subprocess.DEVNULL)
        lines = control.read_text().splitlines()
    count = int(lines[0])
    files = [pathlib.Path(line) for line in lines[2 : 2 + count]]
    features = {path: set() for path in files}
    for line in lines[2 + count :]:
        words = line.split()
        if words[0] == "FT":
            features[files[int(words[1])]] |= set(words[2:])
    return features


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    binary, corpus, count = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
    max_bytes = int(sys.argv[4]) if len(sys.argv) == 5 else 256
    features = features_of(binary, [f"{binary}.corpus", corpus])
    named = [path for path in corpus.iterdir() if not re.fullmatch(r"[0-9a-f]{16}", path.name)]
    picked = {path: path.read_bytes() for path in named}
    reached = set().union(*(features.get(path, set()) for path in named))
    choice = {path: found for path, found in features.items() if 0 < path.stat().st_size <= max_bytes}
    while choice and len(picked) < count:
        best = max(choice, key=lambda path: (len(choice[path] - reached), -path.stat().st_size))
        reached |= choice.pop(best)
        picked[best] = best.read_bytes()
    for path in corpus.iterdir():
        if path not in named:
            path.unlink()
    for path, data in picked.items():
        if path not in named:
            (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    everything = len(set().union(*features.values()))
    print(f"{corpus}: {len(picked)} inputs, {sum(map(len, picked.values()))} bytes, {len(reached)} of {everything} features")


if __name__ == "__main__":
    main()
