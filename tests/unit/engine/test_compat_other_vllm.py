# SPDX-License-Identifier: Apache-2.0
"""What is changed on device lanes, on vLLM 0.26.0's and 0.33.0's own Python files, each in a fresh process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
ON_OTHER_VLLM = HERE.parent / "laguna_kv" / "on_other_vllm.py"
FILES = ("test_collectives.py", "test_rendezvous.py")


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0"])
def test_the_changes_on_another_vllm(version: str, tmp_path: Path) -> None:
    folder = ROOT / "wheels" / f"vllm-{version}"
    assert folder.is_dir(), f"{folder}: expected vLLM {version}'s Python files, seen nothing: run `make vllm-sources`"
    arguments = [*(str(HERE / file) for file in FILES), "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "VLLM_"))}
    environ |= {"VLLM_CACHE_ROOT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ON_OTHER_VLLM), str(folder), *arguments, f"--basetemp={tmp_path / 'child'}"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert f"vllm {version} from {folder / 'vllm'}" in done.stdout, done.stderr
    assert done.returncode == 0, done.stdout
    assert re.search(r"\n9 passed in [^\n]*\n?$", done.stdout), f"nothing skipped or deselected: {done.stdout}"
