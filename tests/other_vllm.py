# SPDX-License-Identifier: Apache-2.0
"""Runs test files again on another vLLM version's own Python files, in a fresh process under this torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests" / "unit" / "laguna_kv" / "on_other_vllm.py"
VERSIONS = ("0.26.0", "0.33.0")


def count_passed(version: str, files: Iterable[Path], scratch: Path) -> int:
    """How many tests of these files pass on a version; asserts that none failed, was skipped or deselected."""
    folder = ROOT / "wheels" / f"vllm-{version}"
    assert folder.is_dir(), f"{folder}: expected vLLM {version}'s Python files, seen nothing: run `make vllm-sources`"
    arguments = [*map(str, files), "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "VLLM_"))}
    environ |= {"VLLM_CACHE_ROOT": str(scratch), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *arguments, f"--basetemp={scratch / 'child'}"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert f"vllm {version} from {folder / 'vllm'}" in done.stdout, done.stderr
    assert done.returncode == 0, done.stdout
    passed = re.fullmatch(r"(\d+) passed in .*", done.stdout.strip().splitlines()[-1])
    assert passed, f"nothing skipped, deselected or expected to fail: {done.stdout}"
    return int(passed[1])
