# SPDX-License-Identifier: Apache-2.0
"""Chooses the source of a lane's cards."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from pytest_laguna.machine.cards import CardSource
from pytest_laguna.machine.cards_cpu import CpuCards
from pytest_laguna.machine.cards_cuda import CudaCards
from pytest_laguna.machine.cards_xpu import XpuCards
from pytest_laguna.machine.errors import CardError

LANES = ("cpu", "cuda", "xpu")
SLOT = r"(?:cpu-slot-)?(\d{1,9})"


def card_source(lane: str, requested: Sequence[str]) -> CardSource:
    """Return the source of a lane's cards; the cpu lane has at least one slot a core, and the requested ones.

    Raises:
        CardError: the lane is unknown.
    """
    if lane == "cpu":
        numbers = [int(found[1]) + 1 for entry in requested if (found := re.fullmatch(SLOT, entry))]
        return CpuCards(max([len(os.sched_getaffinity(0)), *numbers]))
    if lane == "cuda":
        return CudaCards()
    if lane == "xpu":
        return XpuCards()
    raise CardError(f"lane: seen {lane}; expected one of {', '.join(LANES)}", "choose one of them")
