# SPDX-License-Identifier: Apache-2.0
"""The candidate on vLLM 0.26.0 and 0.33.0: class-level, under this environment's torch 2.13.

Each version's own attention, configuration and runner classes run this folder's tests again in a fresh process. It
says nothing of those versions' kernels, nor of their own torch (2.11 and 2.14).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FILES = ["test_backend.py", "test_eligibility.py", "test_proof.py", "test_state.py"]


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0"])
def test_class_level_on_another_vllm(version: str, tmp_path: Path) -> None:
    folder = ROOT / "wheels" / f"vllm-{version}"
    assert folder.is_dir(), f"{folder}: expected vLLM {version}'s Python files, seen nothing: run `make vllm-sources`"
    arguments = [*(str(HERE / name) for name in FILES), "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "VLLM_"))}
    environ |= {"VLLM_CACHE_ROOT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "on_other_vllm.py"), str(folder), *arguments, f"--basetemp={tmp_path / 'child'}"],
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
    assert passed, "nothing skipped, deselected or expected to fail"
    assert int(passed[1]) > 100  # all of the files above, not a remnant of them


def test_another_installed_vllm_than_the_one_asked_for_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "on_other_vllm.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"vllm: expected the one in {tmp_path}, seen " in done.stderr
