# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of ``in_cpu_lane`` in a process of its own: the lane changes vLLM for as long as a process lives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CHECKS = sorted((Path(__file__).parent / "in_cpu_lane").glob("*.py"))


def test_vllm_in_the_cpu_lane(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LAGUNA_LANE": "cpu",
        "VLLM_USE_BREAKABLE_CUDAGRAPH": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    argv = [sys.executable, "-m", "pytest", *map(str, CHECKS), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # vLLM's imports warn; warnings are errors elsewhere.
    argv += ["-W", "default"]
    root = Path(__file__).parents[3]
    seen = subprocess.run(argv, cwd=root, env=environment, capture_output=True, check=False, text=True)
    report = seen.stdout + seen.stderr
    assert seen.returncode == 0, report
    assert re.fullmatch(r"\d+ passed(, \d+ warnings?)? in .*", seen.stdout.splitlines()[-1]), report
