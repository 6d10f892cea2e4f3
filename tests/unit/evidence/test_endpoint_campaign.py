# SPDX-License-Identifier: Apache-2.0
"""A threshold that cannot fail, or cannot hold, is refused before anything is measured."""

from __future__ import annotations

import hashlib
import tomllib
from typing import Any

import pydantic
import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint.plan import (
    ABBA,
    BAAB,
    EndpointPlan,
    EndpointThresholds,
    Gain,
    Repetition,
    block_orders,
    planned_legs,
)
from tests import endpoint_legs as lab

SETS = sorted((lab.CAMPAIGNS / "thresholds").glob("*.toml"))


def changed(**values: Any) -> EndpointThresholds:
    return EndpointThresholds.model_validate(lab.METADATA_20260725.model_dump() | values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows_won": 0}, "greater than or equal to 1"),
        ({"acceptance_drift": 1.0}, "less than or equal to 0.01"),
        ({"acceptance_drift": 0.0100001}, "less than or equal to 0.01"),
        ({"acceptance_drift": -0.001}, "greater than or equal to 0"),
        ({"cycle_saving_ms": 0.0}, "greater than 0"),
        ({"cycle_saving_ms": float("inf")}, "finite number"),
        ({"control_health_percent": 0.0}, "greater than 0"),
        ({"control_health_percent": 100.0}, "less than 100"),
        ({"headline": {"percent": 0.0, "strict": False}}, "at least 0 %: no gain"),
        ({"paired_median": {"percent": 0.0, "strict": False}}, "at least 0 %: no gain"),
        ({"practical_floor": 92.16352215694299}, "expected more than the record, 92.16352215694299"),
    ],
)
def test_a_threshold_that_decides_beforehand_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        changed(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"rows_won": 1},
        {"acceptance_drift": 0.0},
        {"acceptance_drift": 0.01},
        {"headline": {"percent": 0.0, "strict": True}},
        {"practical_floor": 92.163522156943},
        {"practical_floor": None},
    ],
)
def test_the_tightest_and_the_loosest_that_can_still_fail_and_hold_are_taken(values: dict[str, Any]) -> None:
    changed(**values)


def test_no_more_rows_can_be_won_than_there_are_prompts() -> None:
    assert lab.plan(thresholds=changed(rows_won=13)).thresholds.rows_won == 13
    with pytest.raises(pydantic.ValidationError, match="rows_won is 14; expected at most the 13 prompts"):
        EndpointPlan.model_validate(lab.plan().model_dump() | {"thresholds": changed(rows_won=14)})


@pytest.mark.parametrize("path", SETS, ids=lambda path: str(path.stem))
def test_a_published_set_is_a_whole_table_of_a_protocol(path: Any) -> None:
    content = tomllib.loads(path.read_text())
    assert content.keys() == {"thresholds"}
    assert EndpointThresholds.model_validate(content["thresholds"]).rows_won in {9, 10}


def test_the_published_sets_are_the_published_numbers() -> None:
    """Transcribed from the laboratory's two records; another number would be another campaign."""
    metadata, graph = lab.METADATA_20260725, lab.BREAKABLE_GRAPH_20260724
    assert len(SETS) == 2
    assert (metadata.headline, metadata.paired_median) == (Gain(percent=0.25, strict=False),) * 2
    assert (graph.headline, graph.paired_median) == (Gain(percent=0.0, strict=True),) * 2
    assert (metadata.rows_won, graph.rows_won) == (10, 9)
    assert (metadata.cycle_saving_ms, graph.cycle_saving_ms) == (0.15, 0.15)
    assert (metadata.acceptance_drift, graph.acceptance_drift) == (0.001, 0.001)
    assert (metadata.control_health_percent, graph.control_health_percent) == (2.0, None)
    assert (metadata.record, graph.record) == (92.16352215694299, 33.89498511171744)
    assert (metadata.practical_floor, graph.practical_floor) == (92.393930962335, None)


@pytest.mark.parametrize(
    ("strict", "just", "told"), [(True, False, "more than 0.5 %"), (False, True, "at least 0.5 %")]
)
def test_a_gain_is_reached_just_or_beyond(strict: bool, just: bool, told: str) -> None:
    gain = Gain(percent=0.5, strict=strict)
    assert [gain.reached(percent) for percent in (0.49, 0.5, 0.51)] == [False, just, True]
    assert str(gain) == told


def test_blocks_are_mixed_by_the_campaigns_digest_and_half_of_each_kind() -> None:
    assert block_orders("a" * 64, 1) == [ABBA]
    orders = [ABBA, ABBA, BAAB, BAAB]
    for campaign in ("a" * 64, "b" * 64, "c" * 64):
        places = sorted(range(4), key=lambda block: hashlib.sha256(f"{campaign}:{block}".encode()).hexdigest())
        assert block_orders(campaign, 4) == [orders[place] for place in places]
        planned = planned_legs(campaign, 4)
        assert planned == [
            (1 + number // 4, leg) for number, leg in enumerate(leg for place in places for leg in orders[place])
        ]


def test_a_teachers_rows_stand_in_the_order_of_their_prompts() -> None:
    content = lab.TEACHER.model_dump(mode="json", by_alias=True)
    assert lab.TEACHER.digest == files.digest_of(content)
    swapped = content | {"rows": [content["rows"][1], content["rows"][0], *content["rows"][2:]]}
    with pytest.raises(
        pydantic.ValidationError, match=r"prompt_index of the rows is \[1, 0, .*expected 0, 1, \.\.\. without"
    ):
        type(lab.TEACHER).model_validate(swapped)


def test_a_plan_without_a_repetition_has_one_block() -> None:
    repetition = Repetition(blocks=6, margin_percent=0.5, confidence=0.95, sign_flip_level=0.05, effect_percent=1.0)
    assert (lab.plan().blocks, lab.plan(repetition=repetition).blocks) == (1, 6)
