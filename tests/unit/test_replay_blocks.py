# SPDX-License-Identifier: Apache-2.0
"""What replays in blocks make of their legs."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import replay_blocks
from pytest_laguna.analysis.diagnostic.timing import GATES
from pytest_laguna.evidence.arms.arm_record import Arm


def leg(place: Arm, microseconds: float, **others: float) -> dict[str, Any]:
    return {"place": place, **dict.fromkeys(replay_blocks.QUANTITIES, microseconds), **others}


def block(control: float, candidate: float, **others: float) -> list[dict[str, Any]]:
    """Control, candidate, candidate, control."""
    ours = leg(replay_blocks.CANDIDATE, candidate, **others)
    return [leg(replay_blocks.CONTROL, control), ours, ours, leg(replay_blocks.CONTROL, control)]


def test_every_gate_looks_at_a_quantity_of_a_leg() -> None:
    assert replay_blocks.GATED.keys() == GATES.keys()
    assert set(replay_blocks.GATED.values()) <= set(replay_blocks.QUANTITIES)


def test_a_pair_passes_when_all_six_gates_hold_in_whichever_order_it_ran() -> None:
    passes = replay_blocks._passes([*block(5, 4), *reversed(block(4, 5))])
    assert (passes["pairs"], passes["passed"]) == (4, 2)


@pytest.mark.parametrize("quantity", sorted(replay_blocks.GATED.values()))
def test_one_gate_that_does_not_hold_is_enough(quantity: str) -> None:
    assert replay_blocks._passes(block(5, 4, **{quantity: 6}))["passed"] == 0


def test_equal_tails_and_waits_hold_and_equal_medians_do_not() -> None:
    assert replay_blocks._passes(block(5, 4, whole_p90=5, synchronize=5))["passed"] == 2
    assert replay_blocks._passes(block(5, 4, whole=5))["passed"] == 0


def test_the_interval_of_the_rate_is_the_exact_one() -> None:
    passes = replay_blocks._passes([*block(5, 4) * 3, *block(4, 5) * 3])
    assert (passes["pairs"], passes["passed"]) == (12, 6)
    assert passes["interval"] == pytest.approx((0.2109, 0.7891), abs=1e-4)


def test_savings_are_of_the_blocks_means() -> None:
    savings = replay_blocks._savings([*block(5, 4), *block(7, 3)], "views")
    assert (savings["blocks"], savings["median"], savings["interval"]) == ([1, 4], 2.5, [1, 4])
