# SPDX-License-Identifier: Apache-2.0
"""Time of a lease: all cards taken and released again, in a separate directory.

``python -m benchmarks.leases`` prints one line, ``--json`` the raw figures. ``median_ms`` is for one take and one
release of ``--cards`` slots together; the bar is 5 ms.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pytest_laguna.machine import leases
from pytest_laguna.machine.cards_cpu import CpuCards
from pytest_laguna.machine.sweep import Sweep

NANOSECONDS_IN_A_MILLISECOND = 1_000_000


def measure(runs: int, slots: int) -> list[float]:
    """Milliseconds of each take and release."""
    cards = CpuCards(slots).discover()
    timings = []
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "leases"
        for _ in range(runs):
            start = time.perf_counter_ns()
            lease = leases.acquire(
                cards, directory, sweep=lambda _token: Sweep([], []), idle=lambda _card: None, directory=directory
            )
            lease.release()
            timings.append((time.perf_counter_ns() - start) / NANOSECONDS_IN_A_MILLISECOND)
    return timings


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leases", description="Cost of a lease.")
    parser.add_argument("--runs", type=int, default=1000, help="how often (default: 1000)")
    parser.add_argument("--cards", type=int, default=4, help="slots in each lease (default: 4)")
    parser.add_argument("--json", action="store_true", help="print the raw figures as one JSON document")
    arguments = parser.parse_args()
    timings = measure(arguments.runs, arguments.cards)
    result: dict[str, Any] = {
        "schema": "laguna-leases-v1",
        "python": platform.python_version(),
        "runs": arguments.runs,
        "cards": arguments.cards,
        "median_ms": statistics.median(timings),
        "p99_ms": statistics.quantiles(timings, n=100)[-1],
        "max_ms": max(timings),
        "raw_ms": timings,
    }
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        figures = ", ".join(f"{name} {result[name]:.3f}" for name in ("median_ms", "p99_ms", "max_ms"))
        print(f"{arguments.runs} leases of {arguments.cards} cards: {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
