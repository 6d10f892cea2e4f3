# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_laguna.machine.cards_cpu import CpuCards
from pytest_laguna.machine.cards_cuda import CudaCards
from pytest_laguna.machine.cards_xpu import XpuCards
from tests.unit.machine.fakes import MEBIBYTE, Bench, Nvml, NvmlCard, XpuHost


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    cards = [NvmlCard(f"GPU-{number}a6f2c41-7d1e-4f6e-b3a1-0c2d4e6f8a1b", used=2 * MEBIBYTE) for number in range(4)]
    module = Nvml(*cards)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


@pytest.fixture
def xpu_host(tmp_path: Path) -> XpuHost:
    return XpuHost(tmp_path / "host")


@pytest.fixture
def xpu(xpu_host: XpuHost) -> XpuCards:
    return XpuCards(xpu_host.program, xpu_host.sys, xpu_host.proc)


@pytest.fixture(params=["cpu", "cuda", "xpu"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Each vendor's source, with four cards of which the tests use any."""
    if request.param == "cpu":
        return Bench(CpuCards(64), lambda _card, _pid: None)
    if request.param == "cuda":
        nvml: Nvml = request.getfixturevalue("nvml")
        return Bench(CudaCards(), lambda card, pid: nvml.cards[card.ordinal].compute.append(pid))
    host: XpuHost = request.getfixturevalue("xpu_host")
    return Bench(
        request.getfixturevalue("xpu"),
        lambda card, pid: host.say(foreign=[*host.facts["foreign"], [card.ordinal, pid]]),
    )
