# SPDX-License-Identifier: Apache-2.0
"""Time of ``laguna verify`` for a root, beyond hashing it: ``python -m benchmarks.verify ROOT``.

Prints one line, ``--json`` the raw figures, medians over rounds. ``seconds`` is the wall time of a whole process, with
Python's start and imports; ``seconds_hashing`` is for SHA-256 of every file once, on all cores, as in verification;
``seconds_beyond``, the difference, has a bar of 1 s for a root of three gates; ``seconds_cpu`` is its processor
time, for a busy host. The first round is left out, as Python may compile in it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytest_laguna.evidence.files import sha256_file


def hash_all(sealed_root: Path) -> None:
    """Hash every file once, on all cores."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(sha256_file, (path for path in sorted(sealed_root.rglob("*")) if path.is_file())))


def processor_seconds() -> float:
    """Processor seconds of every child process so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Print the figures; the exit code is verification's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify", description=__doc__)
    parser.add_argument("root", type=Path, metavar="ROOT", help="a sealed root")
    parser.add_argument("--rounds", type=int, default=7, help="(default: 7)")
    parser.add_argument("--json", action="store_true", help="print the raw figures as one JSON document")
    chosen = parser.parse_args()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "pytest_laguna.cli", "verify", str(chosen.root), "--json"]
    whole, hashing, processor = [], [], []
    for _ in range(chosen.rounds + 1):
        before = processor_seconds()
        begin = time.perf_counter()
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        between = time.perf_counter()
        processor.append(processor_seconds() - before)
        hash_all(chosen.root)
        whole.append(between - begin)
        hashing.append(time.perf_counter() - between)
    found = json.loads(done.stdout)
    figures = {
        "gates": [gate["gate"] for gate in found["gates"]],
        "verdicts": [gate["verdict"] for gate in found["gates"]],
        "seconds": statistics.median(whole[1:]),
        "seconds_cpu": statistics.median(processor[1:]),
        "seconds_hashing": statistics.median(hashing[1:]),
        "seconds_beyond": statistics.median(w - h for w, h in zip(whole[1:], hashing[1:], strict=True)),
    }
    print(json.dumps(figures) if chosen.json else "  ".join(f"{name} {value}" for name, value in figures.items()))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
