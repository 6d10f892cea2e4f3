# SPDX-License-Identifier: Apache-2.0
"""What each rule over all legs, over a pair and over the blocks says, to the letter, and what it lets pass."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from pytest_laguna.analysis.endpoint.campaign_rules import CAMPAIGN_RULES, PROGRESS_RULES, due_legs
from pytest_laguna.analysis.endpoint.case import CampaignCase
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence.endpoint.analysis import PhaseOne
from pytest_laguna.evidence.endpoint.plan import EndpointPlan, Repetition
from pytest_laguna.verdict import Verdict
from tests import endpoint_legs as lab
from tests.unit.analysis.test_endpoint_reasons import put as put_in_leg

Legs = list[lab.Leg]
Change = Callable[[Legs], object]

A1, B1, B2, A2 = 0, 1, 2, 3
MADE = lab.legs(lab.metadata_starts())
REPETITION = Repetition(blocks=2, margin_percent=0.5, confidence=0.95, sign_flip_level=0.025, effect_percent=1.0)
RANK = MADE[A1]["ranks_captured"][0]
ORDERS = [graph["order_sha256"] for graph in RANK["graphs"]]
SHORT = lab.TEACHER.model_copy(update={"rows": lab.TEACHER.rows[:12]})
V, F, N = Verdict.VOID, Verdict.FAIL, Verdict.NOT_PROVEN
STOPS = PhaseOne(passed=False, stops=True, reasons=["r"])
GOES_ON = PhaseOne(passed=False, stops=False, reasons=["r"])


def case(change: Change, plan: EndpointPlan | None = None, *, short: bool = False, ended: str = "") -> CampaignCase:
    legs = copy.deepcopy(MADE)
    change(legs)
    teacher = SHORT if short else lab.TEACHER
    return CampaignCase(plan or lab.plan(), teacher, lab.CAMPAIGN, tuple(lab.records(legs)), frozenset(ended.split()))


def put(leg: int, path: str, *values: Any) -> Change:
    """Set one field of one leg."""
    change = put_in_leg(path, *values)
    return lambda legs: change(legs[leg])


def each(*changes: Change) -> Change:
    return lambda legs: [change(legs) for change in changes]


def keep(*places: int) -> Change:
    return lambda legs: legs.__setitem__(slice(None), [legs[place] for place in places])


def nothing(_: Legs) -> None:
    """The legs as they are."""


REASONS: list[tuple[str, Change, Verdict | None, str]] = [
    ("legs-as-planned", keep(0, 1, 3), F, "leg 3: seen block 1 A2, number 4; expected block 1 B2"),
    ("legs-as-planned", put(B1, "request|sequence", 3), F, "leg 2: seen block 1 B1, number 3; expected block 1 B1"),
    ("legs-as-planned", put(B1, "request|block", 2), F, "leg 2: seen block 2 B1, number 2; expected block 1 B1"),
    ("legs-as-planned", keep(0, 1, 2, 3, 3), F, "block 1 A2: seen as leg 5 with a record; expected no more than 4"),
    ("legs-as-planned", keep(0, 1), None, ""),
    ("legs-as-planned", keep(), None, ""),
    ("legs-in-order", put(A1, "ended", "2026-07-01T01:00:00.000000+00:00"), V,
        ("block 1 A1: seen start 2026-07-01T01:00:00.000000+00:00, end 2026-07-01T01:00:00.000000+00:00; "
        "expected the end later")),
    ("legs-in-order", put(B2, "started", "2026-07-01T02:29:59.999999+00:00"), V,
        ("block 1 B2: seen its start 2026-07-01T02:29:59.999999+00:00 before the end 2026-07-01T02:30:00.000000+00:00"
        " of block 1 B1; expected one at a time")),
    ("legs-in-order", put(A1, "ended", "2026-07-01T01:00:00.000001+00:00"), None, ""),
    ("legs-in-order", put(B2, "started", "2026-07-01T02:30:00.000000+00:00"), None, ""),
    ("servers-fresh", each(put(A2, "server|pid", 1001), put(A2, "server|start_ticks", 5001)), V,
        "block 1 A1 and block 1 A2: seen the server process in both; expected fresh ones"),
    ("servers-fresh", put(A2, "server|pid", 1001), None, ""),
    ("servers-fresh", put(A2, "server|start_ticks", 5001), None, ""),
    ("servers-fresh", put(A2, "server|nonce", f"{3:032x}"), V,
        "block 1 B2 and block 1 A2: seen the nonce in both; expected fresh ones"),
    ("servers-fresh", put(B2, "rows|12|request_id", "leg-2-row-3"), V,
        "block 1 B1 and block 1 B2: seen a request id in both; expected fresh ones"),
    ("servers-fresh", each(put(B1, "server|nonce", f"{1:032x}"), put(B1, "rows|0|request_id", "leg-1-row-0")), V,
        "block 1 A1 and block 1 B1: seen the nonce in both; expected fresh ones"),
    ("sole-treatment", put(B1, "request|variables|VLLM_X", "absent"), V,
        "block 1 B1: variable VLLM_X: seen absent; expected absent as in block 1 A1"),
    ("sole-treatment", put(B1, "ranks_captured|2|variables|model runner", "x"), V,
        "block 1 B1: rank 2's variable model runner: seen x; expected absent as in block 1 A1"),
    ("sole-treatment", put(B1, "request|lane", "cpu"), V, "block 1 B1: lane: seen cpu; expected xpu as in block 1 A1"),
    ("sole-treatment", put(A2, "request|model", "other"), V,
        "block 1 A2: model: seen other; expected laguna as in block 1 A1"),
    ("sole-treatment", put(B1, "server|argv|0", "/x"), V,
        "block 1 B1: interpreter: seen /x; expected /python as in block 1 A1"),
    ("sole-treatment", put(A1, "request|variables|OMP_NUM_THREADS", "2"), V,
        "block 1 B1: variable OMP_NUM_THREADS: seen 1; expected 2 as in block 1 A1"),
    ("sole-treatment", put(B1, "request|variables|X", "2"), V,
        "block 1 B1: variable X: seen 2; expected absent as in block 1 A1"),
    ("sole-treatment", lambda legs: legs[B2]["request"]["engine_arguments"].pop("max_model_len"), V,
        "block 1 B2: argument max_model_len: seen absent; expected 8192 as in block 1 A1"),
    ("sole-treatment", put(B1, "ranks_captured", []), V,
        "block 1 B1: rank 0's variable OMP_NUM_THREADS: seen absent; expected 1 as in block 1 A1"),
    ("sole-treatment", put(B1, "ranks_captured|2|versions|vllm", "1"), V,
        "block 1 B1: rank 2's version of vllm: seen 1; expected 0.32.0 as in block 1 A1"),
    ("sole-treatment", put(B1, "ranks_captured|2|model_runner", "x"), V,
        f"block 1 B1: rank 2's model runner: seen x; expected {RANK['model_runner']} as in block 1 A1"),
    ("sole-treatment", put(B1, "ranks_captured|3|graphs", RANK["graphs"][:1]), V,
        f"block 1 B1: rank 3's segment orders: seen {ORDERS[:1]}; expected {ORDERS} as in block 1 A1"),
    ("sole-treatment", put(B1, "ranks_captured|2|variables|PYTHONHASHSEED", "1"), V,
        "block 1 B1: rank 2's variable PYTHONHASHSEED: seen 1; expected 0 as in block 1 A1"),
    ("sole-treatment", put(B1, f"ranks_captured|2|variables|{lab.FLAG}", "x"), None, ""),
    ("sole-treatment", put(B1, "ranks_captured|2|variables|LAGUNA_RANK_PIPES", "x"), None, ""),
    ("sole-treatment", put(B1, "ranks_captured|2|variables|LAGUNA_RANK_STATES", "x"), None, ""),
    ("cross-leg-exact", put(B2, "rows|7|usage|cached_tokens", 1), F,
        "block 1 B2 against block 1 A1: row 7: seen 1 prompt tokens from a cache; expected 0"),
    ("cross-leg-exact", each(put(A2, "rows|9|usage|cached_tokens", 1), put(A2, "rows|4|index", 5)), F,
        ("block 1 A2 against block 1 A1: row 4: seen number 5, prompt 'arithmetic-reasoning'; expected 4, "
        "'arithmetic-reasoning' and its text")),
    ("cross-leg-exact", put(A1, "rows|7|usage|cached_tokens", 1), None, ""),
    ("cross-leg-exact", put(A1, "rows|7|prompt_id", "x"), F,
        (f"block 1 B1 against block 1 A1: row 7: seen number 7, prompt {MADE[B1]['rows'][7]['prompt_id']!r}; "
        "expected 7, 'x' and its text")),
    ("cross-leg-exact", keep(0), None, ""),
    ("cross-leg-exact", lambda legs: legs[A2]["rows"].pop(), F,
        "block 1 A2 against block 1 A1: row 12: seen none; expected one"),
]  # fmt: skip
IDS = [f"{rule}-{number}" for number, (rule, *_) in enumerate(REASONS)]


@pytest.mark.parametrize(("rule", "change", "verdict", "reason"), REASONS, ids=IDS)
def test_a_rule_over_all_legs_says_what_it_saw_and_what_it_expected(
    rule: str, change: Change, verdict: Verdict | None, reason: str
) -> None:
    assert CAMPAIGN_RULES[rule](case(change)) == (None if verdict is None else (verdict, reason))


@pytest.mark.parametrize(
    ("ended", "places", "reason"),
    [
        ("03-B2", (0, 1, 3), ""),
        ("01-A1 03-B2", (1, 3), ""),
        ("01-A1 02-B1 03-B2 04-A2", (), ""),
        ("01-A1", (1, 3), "leg 3: seen block 1 A2, number 4; expected block 1 B2"),
        ("02-A1", (1,), "leg 1: seen block 1 B1, number 2; expected block 1 A1"),
        ("01-A1 02-B1 03-B2 04-A2", (0,), "block 1 A1: seen as leg 1 with a record; expected no more than 0"),
    ],
)
def test_a_leg_that_ended_keeps_its_place(ended: str, places: tuple[int, ...], reason: str) -> None:
    found = CAMPAIGN_RULES["legs-as-planned"](case(keep(*places), ended=ended))
    assert found == ((F, reason) if reason else None)


@pytest.mark.parametrize(
    ("changed", "short", "found"),
    [
        ({}, False, None),
        ({"teacher_sha256": "0" * 64}, False,
            (V, f"teacher: seen digest {lab.TEACHER.digest}; expected {'0' * 64}")),
        ({"teacher_sha256": SHORT.digest}, True, (V, "teacher: seen 12 rows; expected 13")),
    ],
)  # fmt: skip
def test_a_teacher_is_the_pinned_one(changed: dict[str, Any], short: bool, found: Finding | None) -> None:
    assert CAMPAIGN_RULES["teacher-pinned"](case(nothing, lab.plan(**changed), short=short)) == found


TWO_BLOCKS = lab.plan(repetition=REPETITION)
OTHER_BLOCK = each(*(put(place, "request|block", 2) for place in range(4)))
PROGRESS: list[tuple[str, EndpointPlan, Change, PhaseOne | None, Finding | None]] = [
    ("phase-1-stop", lab.plan(), keep(0, 1, 2), STOPS,
        (F, "block 1 B2: seen after a failed phase 1; expected no further leg")),
    ("phase-1-stop", lab.plan(), keep(0, 1), STOPS, None),
    ("phase-1-stop", lab.plan(), nothing, GOES_ON, None),
    ("phase-1-stop", lab.plan(), nothing, None, None),
    ("a2-after-b2", lab.plan(), keep(0, 1, 2), None,
        (N, "block 1 A2: seen no record, though one of B2; expected it for any result of B2")),
    ("a2-after-b2", TWO_BLOCKS, each(keep(2), put(0, "request|block", 2)), None,
        (N, "block 2 A2: seen no record, though one of B2; expected it for any result of B2")),
    ("a2-after-b2", lab.plan(), each(keep(2), put(0, "request|block", 2)), None, None),
    ("a2-after-b2", lab.plan(), keep(0, 1), None, None),
    ("a2-after-b2", lab.plan(), keep(3), None, None),
    ("legs-complete", lab.plan(), keep(0, 1, 3), None, (N, "block 1 B2: seen no record; expected all of 4 legs")),
    ("legs-complete", lab.plan(), keep(0, 1), GOES_ON, (N, "block 1 B2: seen no record; expected all of 4 legs")),
    ("legs-complete", lab.plan(), keep(0), STOPS, (N, "block 1 B1: seen no record; expected all of 2 legs")),
    ("legs-complete", lab.plan(), keep(0, 1), STOPS, None),
    ("legs-complete", TWO_BLOCKS, OTHER_BLOCK, None, (N, "block 1 A1: seen no record; expected all of 8 legs")),
    ("candidate-ran", lab.plan(null=True), nothing, None,
        (N, "A/A campaign: seen a control in every leg; expected the candidate in the B legs")),
    ("candidate-ran", lab.plan(), nothing, None, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "plan", "change", "phase_1", "found"),
    PROGRESS,
    ids=[f"{rule}-{number}" for number, (rule, *_) in enumerate(PROGRESS)],
)
def test_a_rule_over_the_progress_says_what_is_missing(
    rule: str, plan: EndpointPlan, change: Change, phase_1: PhaseOne | None, found: Finding | None
) -> None:
    assert PROGRESS_RULES[rule](case(change, plan), phase_1) == found


def test_what_is_due_are_all_legs_or_two() -> None:
    every = [(1, "A1"), (1, "B1"), (1, "B2"), (1, "A2")]
    assert [due_legs(case(nothing), phase_1) for phase_1 in (None, GOES_ON, STOPS)] == [every, every, every[:2]]
