# SPDX-License-Identifier: Apache-2.0
"""Time of a gate session beyond its tests, and of the plugin in a pytest run without a gate.

``python -m benchmarks.session --json`` prints medians over interleaved runs:

``overhead_seconds``: a gate of two trivial tests minus pytest on two trivial tests, each a whole process.
``ratio``: the same as a ratio.
``plugin_import_milliseconds``: ``import pytest_laguna.plugin`` in a process that has imported pytest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.demo import Project

PLAIN = "def test_one():\n    pass\n\n\ndef test_two():\n    pass\n"
IMPORT = """
import time, pytest
start = time.perf_counter()
import pytest_laguna.plugin
print(1000 * (time.perf_counter() - start))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    gates, plains, imports = [], [], []
    for _ in range(chosen.runs):
        with tempfile.TemporaryDirectory() as directory:
            project = Project(Path(directory))
            (project.directory / "test_plain.py").write_text(PLAIN)
            gates.append(_seconds(project, "--gate=1"))
            plains.append(_seconds(project, "test_plain.py"))
            _unseal(project.sealed)
        output = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout
        imports.append(float(output))
    gate, plain = statistics.median(gates), statistics.median(plains)
    figures = {
        "runs": chosen.runs,
        "gate_seconds": gate,
        "plain_seconds": plain,
        "overhead_seconds": gate - plain,
        "ratio": gate / plain,
        "plugin_import_milliseconds": statistics.median(imports),
    }
    if chosen.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:28} {value:10.3f}" for name, value in figures.items()))


def _seconds(project: Project, *arguments: str) -> float:
    start = time.perf_counter()
    result = project.pytest(*arguments)
    elapsed = time.perf_counter() - start
    if result.returncode != 0:
        raise SystemExit(result.stdout + result.stderr)
    return elapsed


def _unseal(sealed: Path) -> None:
    for directory in [sealed, *sealed.rglob("*")]:
        if directory.is_dir():
            directory.chmod(0o700)


if __name__ == "__main__":
    main()
