# SPDX-License-Identifier: Apache-2.0
"""Counters that decide (target cycle, acceptance) against what the rows and the request say: each lie is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.verdict import Verdict
from tests import endpoint_legs as lab

Leg = dict[str, Any]


def after(change: Callable[[dict[str, Any]], None], arms: str = "AB") -> Callable[[list[Leg]], None]:
    def changed(legs: list[Leg]) -> None:
        for leg in legs:
            if leg["request"]["leg"][0] in arms:
                change(leg["counters_after"])

    return changed


def half_the_drafts(counters: dict[str, Any]) -> None:
    """Twice the time for a target cycle: any candidate saves enough against it."""
    counters["drafts"] //= 2


def a_proposal_too_many(counters: dict[str, Any]) -> None:
    counters["draft_tokens"] += 1


def nothing_accepted(counters: dict[str, Any]) -> None:
    """6,354 tokens from 1,719 verifications, of which none accepted a proposal."""
    counters["accepted"] = 0
    counters["accepted_per_position"] = dict.fromkeys(counters["accepted_per_position"], 0)


def everything_accepted(counters: dict[str, Any]) -> None:
    counters["accepted"] = counters["draft_tokens"]
    counters["accepted_per_position"] = dict.fromkeys(counters["accepted_per_position"], counters["drafts"])


def slower(counters: dict[str, Any]) -> None:
    """The control says that it decoded for longer than its rows took."""
    counters["decode_seconds"] *= 10


def faster(counters: dict[str, Any]) -> None:
    """The candidate says that it decoded for a tenth of the time in which its tokens came."""
    counters["decode_seconds"] /= 10


def half_the_time(legs: list[Leg]) -> None:
    """The record's times, which nothing else that is kept holds, against the decode time of the server's counter."""
    for leg in legs:
        if leg["request"]["leg"][0] == "B":
            for row in leg["rows"]:
                row["arrival_ns"] = [time // 2 for time in row["arrival_ns"]]
                row["done_ns"] //= 2


def eight_positions(legs: list[Leg]) -> None:
    """Seven tokens are proposed at once."""
    for leg in legs:
        for moment in ("counters_before", "counters_after"):
            leg[moment]["accepted_per_position"]["7"] = 0


LIES: dict[str, Callable[[list[Leg]], None]] = {
    "half the drafts": after(half_the_drafts, "A"),
    "a proposal too many": after(a_proposal_too_many),
    "nothing accepted": after(nothing_accepted),
    "everything accepted": after(everything_accepted),
    "slower control": after(slower, "A"),
    "faster candidate": after(faster, "B"),
    "half the time": half_the_time,
    "eight positions": eight_positions,
}


@pytest.mark.parametrize("name", LIES)
def test_a_counter_that_lies_is_named(name: str) -> None:
    legs = lab.legs(lab.metadata_starts())
    LIES[name](legs)
    plan = lab.plan(decides="exactness")
    judged = analyse_endpoint(plan, lab.records(legs), teacher=lab.TEACHER, campaign=lab.CAMPAIGN)
    assert judged.verdict is Verdict.VOID, judged.reason
