# SPDX-License-Identifier: Apache-2.0
"""The candidate on vLLM 0.26.0 and 0.33.0: class-level, under this environment's torch 2.13.

Each version's own attention, configuration and runner classes run this folder's tests again in a fresh process. It
says nothing of those versions' kernels, nor of their own torch (2.11 and 2.14).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.other_vllm import PROGRAM, VERSIONS, count_passed

HERE = Path(__file__).resolve().parent
FILES = ["test_backend.py", "test_eligibility.py", "test_proof.py", "test_state.py"]


@pytest.mark.parametrize("version", VERSIONS)
def test_class_level_on_another_vllm(version: str, tmp_path: Path) -> None:
    passed = count_passed(version, [HERE / name for name in FILES], tmp_path)
    assert passed > 100  # all of the files, not a remnant of them


def test_another_installed_vllm_than_the_one_asked_for_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"vllm: expected the one in {tmp_path}, seen " in done.stderr
