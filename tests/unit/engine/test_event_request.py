# SPDX-License-Identifier: Apache-2.0
"""What an arm can be asked of events, the variables that ask it, and what a record may answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import pytest

from pytest_laguna.engine import event_settings
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm, EventReport
from tests.unit.engine import support

ORDER = "e5" * 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arm": Arm.Q1, "draft": None, "event_profile": ORDER}, "expected an event profile in graph-control"),
        ({"arm": Arm.EAGER, "event_profile": ORDER}, "expected an event profile in graph-control"),
        ({"arm": Arm.GRAPH_CANDIDATE, "event_profile": ORDER}, "expected an event profile in graph-control"),
        ({"event_profile": ORDER, "profile_samples": 3}, "with 0 profile samples"),
        ({"event_fitness_rounds": 3}, "none without an event profile"),
        ({"event_sparse_replays": 3}, "none without an event profile"),
        (
            {"event_profile": ORDER, "event_fitness_rounds": 3, "event_sparse_replays": 4},
            "3 rounds of fitness and 4 sparse replays; expected one of them at most",
        ),
        ({"event_profile": "e5"}, "event_profile"),
    ],
)
def test_what_cannot_be_asked_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        support.request(**changes)


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({}, {}),
        ({"event_fitness_rounds": 9}, {event_settings.ROUNDS: "9"}),
        ({"event_sparse_replays": 40}, {event_settings.REPLAYS: "40"}),
    ],
    ids=["profile", "fitness", "sparse"],
)
def test_the_variables_ask_for_what_the_request_does(changes: dict[str, Any], numbers: dict[str, str]) -> None:
    request = support.request(event_profile=ORDER, **changes)
    variables = arm_settings.profile(request, Path("/arm"))
    assert variables == {event_settings.ROOT: "/arm/profile", event_settings.ORDER: ORDER} | numbers
    settings = event_settings.settings_from(arm_settings.environment(request) | variables)
    rounds, replays = changes.get("event_fitness_rounds", 0), changes.get("event_sparse_replays", 0)
    assert settings == (Path("/arm/profile"), ORDER, rounds, replays)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, EventReport(rounds=0, replays=0, sha256=None)),
        ({"event_profile": ORDER}, None),
        ({"event_profile": ORDER}, EventReport(rounds=3, replays=0, sha256=None)),
        ({"event_profile": ORDER, "event_sparse_replays": 4}, EventReport(rounds=0, replays=3, sha256=None)),
    ],
    ids=["unasked", "untold", "rounds", "replays"],
)
def test_a_record_answers_what_was_asked(asked: dict[str, Any], told: EventReport | None) -> None:
    with pytest.raises(pydantic.ValidationError, match=r"an event profile of .*expected that of the request"):
        support.record(request=support.request(**asked), ranks=[support.rank_report(event_profile=told)])


def test_a_whole_answer_is_taken() -> None:
    told = EventReport(rounds=0, replays=0, sha256=support.DIGEST)
    record = support.record(
        request=support.request(event_profile=ORDER), ranks=[support.rank_report(event_profile=told)]
    )
    assert record.ranks[0].event_profile == told
