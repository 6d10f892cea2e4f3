# SPDX-License-Identifier: Apache-2.0
"""What the entry point does to a vLLM process, with each value of the flag."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from laguna_kv.plugin import register
from laguna_kv.settings import FLAG
from tests.short_lived import SHORT_LIVED

OBSERVE = """
import json
import vllm.envs
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins
known = set(vllm.envs.environment_variables)
load_general_plugins()
from vllm.v1.attention.backends.registry import AttentionBackendEnum, _ATTN_OVERRIDES
print("OBSERVED", json.dumps({
    "path": AttentionBackendEnum.FLASH_ATTN.get_path(),
    "name": AttentionBackendEnum.FLASH_ATTN.get_class().get_name(),
    "overrides": [member.name for member in _ATTN_OVERRIDES],
    "known": sorted(set(vllm.envs.environment_variables) - known),
    "imported": "laguna_kv.backend" in __import__("sys").modules,
}))
current_platform.validate_environ(hard_fail=True)
"""
STOCK = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"
OURS = "laguna_kv.backend.LagunaFlashAttentionBackend"


def process(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environ = {
        **keep,
        "VLLM_PLUGINS": "laguna_kv",
        "VLLM_CACHE_ROOT": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-c", SHORT_LIVED + OBSERVE],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def observed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("OBSERVED ")]
    result: dict[str, Any] = json.loads(line.removeprefix("OBSERVED "))
    return result


def test_the_entry_point_is_installed() -> None:
    (entry,) = entry_points(group="vllm.general_plugins", name="laguna_kv")
    assert entry.load() is register


def test_an_unset_flag_touches_nothing(tmp_path: Path) -> None:
    done = process(tmp_path)
    assert done.returncode == 0, done.stderr
    assert observed(done) == {"path": STOCK, "name": "FLASH_ATTN", "overrides": [], "known": [], "imported": False}


def test_flag_zero_registers_no_backend_and_passes_strict_validation(tmp_path: Path) -> None:
    done = process(tmp_path, **{FLAG: "0", "LAGUNA_KV_LANE": "nonsense: not read"})
    assert done.returncode == 0, done.stderr
    assert observed(done) == {"path": STOCK, "name": "FLASH_ATTN", "overrides": [], "known": [FLAG], "imported": False}


def test_flag_one_takes_the_place_of_flash_attn(tmp_path: Path) -> None:
    done = process(tmp_path, **{FLAG: "1"})
    assert done.returncode == 0, done.stderr
    assert observed(done) == {
        "path": OURS, "name": "FLASH_ATTN", "overrides": ["FLASH_ATTN"], "known": [FLAG], "imported": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("variable", "value"), [(FLAG, "true"), (FLAG, ""), ("LAGUNA_KV_LANE", "gpu"), ("LAGUNA_KV_VALIDATOR", "fast")]
)
def test_a_value_that_means_nothing_ends_the_process(tmp_path: Path, variable: str, value: str) -> None:
    done = process(tmp_path, **{FLAG: "1", variable: value})
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith(f"laguna_kv.errors.SettingError: {variable}: seen ")
    assert "OBSERVED" not in done.stdout
