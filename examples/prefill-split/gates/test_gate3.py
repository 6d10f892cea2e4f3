# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D103, INP001, S101
"""Gate 3: A1, B1, B2, A2, each a fresh process; exactness decides, and time is reported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from prefill_split.runs import run_arm

from pytest_laguna.campaign import Campaign
from pytest_laguna.fixtures import Prove
from pytest_laguna.run.arm_runner import ArmRunner

ORDER = ("A1", "B1", "B2", "A2")
Legs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def legs(arm_runner: ArmRunner, campaign: Campaign, tmp_path_factory: pytest.TempPathFactory) -> Legs:
    """Run the four legs; return their records in run order."""
    place = tmp_path_factory.mktemp("legs")
    pair = arm_runner.tiny_pair(place / "models", interpreter=Path(sys.executable), layers=12)
    flags = {"A": campaign.candidate.control, "B": campaign.candidate.treatment}
    return {leg: run_arm(arm_runner, place / leg, flags[leg[0]], pair.target, pair.prompts["letters"]) for leg in ORDER}


@pytest.mark.gate(3)
@pytest.mark.clause("legs-in-order")
def test_four_fresh_legs_ran_in_their_order(legs: Legs, prove: Prove) -> None:
    assert tuple(legs) == ORDER
    assert len({leg["pid"] for leg in legs.values()}) == len(ORDER)
    prove("four processes in the order A1, B1, B2, A2", legs=list(legs))


@pytest.mark.gate(3)
@pytest.mark.clause("cross-leg-exact")
def test_the_legs_agree_token_by_token(legs: Legs, prove: Prove) -> None:
    first = legs["A1"]["tokens"]
    assert all(leg["tokens"] == first for leg in legs.values())
    prove("every leg has the first one's tokens", legs=len(legs), tokens=len(first))


@pytest.mark.gate(3)
@pytest.mark.clause("speed-reported")
def test_speed_is_reported(legs: Legs, prove: Prove) -> None:
    seconds = {name: leg["seconds"] for name, leg in legs.items()}
    assert all(value > 0 for value in seconds.values())
    prove("one block describes and does not decide; the generation took so many seconds", **seconds)
