# SPDX-License-Identifier: Apache-2.0
"""The packet's vLLM classes in versions 0.26.0 and 0.33.0, each in a fresh process on that version's Python files."""

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


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0"])
def test_packet_classes_on_another_vllm(version: str, tmp_path: Path) -> None:
    folder = ROOT / "wheels" / f"vllm-{version}"
    assert folder.is_dir(), f"{folder}: expected vLLM {version}'s Python files, seen nothing: run `make vllm-sources`"
    arguments = [str(HERE / "test_parity_packet.py"), "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
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
    passed = re.fullmatch(r"(\d+) passed in .*", done.stdout.strip().splitlines()[-1])
    assert passed, "nothing skipped, deselected or expected to fail"
    assert int(passed[1]) >= 20  # all of the file above, not a remnant of it
