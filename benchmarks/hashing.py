# SPDX-License-Identifier: Apache-2.0
"""Time to hash a tree, compared with one ``sha256sum`` process over the same files, all in memory.

``python -m benchmarks.hashing`` prints one line, ``--json`` the raw figures. ``ratio_sha256sum``, the time of
``sha256sum`` over ours, has a bar of 1.8 on two cores. Cores do not explain all of it: a ``sha256sum`` built without
OpenSSL, like Debian's, does not use the processor's SHA instructions. So ``ratio_one_core`` is our time on one core
over that on all. ``peak_megabytes`` is of this process, and does not grow with the files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pytest_laguna.identity.stamps import digest_all, digest_stamped

MEGABYTE = 1 << 20


def build(directory: Path, megabytes: int, count: int) -> list[Path]:
    """Files of random bytes with a given total size; the first two hold half of it, as a model's do."""
    large, small = megabytes * MEGABYTE // 4, megabytes * MEGABYTE // 2 // (count - 2)
    paths = []
    for number, size in enumerate([large, large, *[small] * (count - 2)]):
        paths.append(directory / f"{number:04d}")
        with paths[-1].open("wb") as stream:
            for begin in range(0, size, MEGABYTE):
                stream.write(os.urandom(min(MEGABYTE, size - begin)))
    return paths


def seconds(work: Callable[[], object]) -> float:
    """Wall time in seconds."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hashing", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048, help="in all (default: 2048)")
    parser.add_argument("--files", type=int, default=400, help="how many (default: 400)")
    parser.add_argument("--rounds", type=int, default=5, help="of each, in turn (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the raw figures as one JSON document")
    chosen = parser.parse_args()
    own, alone, other = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        paths = build(Path(directory), chosen.megabytes, chosen.files)
        command = ["sha256sum", *map(str, paths)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # what is read is in memory for both
        for _ in range(chosen.rounds):
            other.append(seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)))
            alone.append(seconds(lambda: [digest_stamped(path) for path in paths]))
            own.append(seconds(lambda: digest_all(paths)))
    figures = {
        "megabytes": chosen.megabytes,
        "files": chosen.files,
        "cores": len(os.sched_getaffinity(0)),
        "seconds": statistics.median(own),
        "seconds_sha256sum": statistics.median(other),
        "ratio_sha256sum": statistics.median(theirs / ours for theirs, ours in zip(other, own, strict=True)),
        "ratio_one_core": statistics.median(one / ours for one, ours in zip(alone, own, strict=True)),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures) if chosen.json else "  ".join(f"{name} {value}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
