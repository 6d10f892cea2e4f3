# SPDX-License-Identifier: Apache-2.0
"""Which rule proves which clause of gate 3, and what a leg without a record does to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.analysis.endpoint.analyse import RULES
from pytest_laguna.analysis.endpoint.clauses import CLAUSES, ENDED, judge_clauses
from pytest_laguna.analysis.findings import Finding, decide, decisive, gravest
from pytest_laguna.campaign import read_campaign
from pytest_laguna.evidence.arms.arm_record import token_digest
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.evidence.endpoint.plan import EndpointPlan
from pytest_laguna.verdict import Verdict, worst
from tests import endpoint_legs as lab

CAMPAIGNS = Path(__file__).parents[3] / "campaigns"


def analysis(legs: list[lab.Leg], plan: EndpointPlan | None = None) -> EndpointAnalysis:
    return analyse_endpoint(plan or lab.plan(), lab.records(legs), teacher=lab.TEACHER, campaign=lab.CAMPAIGN)


def test_every_rule_belongs_to_exactly_one_clause() -> None:
    rules = [rule for clause in CLAUSES.values() for rule in clause]
    assert len(rules) == len(set(rules))
    assert set(rules) == {*RULES, ENDED}


@pytest.mark.parametrize("name", ["laguna-persistent-kv-views", "laguna-persistent-kv-views-quick"])
def test_the_campaigns_gate_3_has_them_all(name: str) -> None:
    named = read_campaign(CAMPAIGNS / f"{name}.toml").gate_clauses(3)
    assert set(named) == {*CLAUSES, "identity-exact", "cards-idle"}


def test_nothing_speaks_against_good_legs() -> None:
    assert judge_clauses(analysis(lab.legs(lab.metadata_starts())), {}) == {}


@pytest.mark.parametrize("decides", ["exactness", "exactness+timing"])
def test_a_null_campaign_never_passes_the_gate_of_a_candidate_that_did_not_run(decides: str) -> None:
    found = judge_clauses(analysis(lab.legs(lab.null_starts(), null=True), lab.plan(null=True, decides=decides)), {})
    assert found.keys() == {"sole-treatment"}
    assert found["sole-treatment"][0] is Verdict.NOT_PROVEN
    assert "candidate-ran: A/A campaign: seen a control in every leg" in found["sole-treatment"][1]


def test_a_lawful_stop_after_phase_1_is_a_stop_of_the_gate() -> None:
    """Promotion was not asked of two legs, and still the campaign is over: it was measured, and the answer is no."""
    judged = analysis(lab.legs(lab.scaled(lab.metadata_starts(), B1=0.97))[:2])
    found = judge_clauses(judged, {})
    assert found.keys() == {"adjacent-pairs", "promotion"}
    assert judged.phase_1 is not None
    first, *others = judged.phase_1.reasons
    assert first.startswith("block 1 B1-A1: headline: median throughput: seen a gain of -0.5")
    assert len(others) == 3
    assert found["promotion"] == (Verdict.STOP, f"phase 1: seen a stop; expected a pass: {first}")
    assert worst(verdict for verdict, _ in found.values()) is Verdict.STOP


def test_a_pair_without_figures_is_measured_by_no_rule_and_promotes_nothing() -> None:
    legs = lab.legs(lab.metadata_starts())[:2]
    legs[1]["counters_after"]["drafts"] = None
    found = judge_clauses(analysis(legs), {})
    assert found["adjacent-pairs"] == (Verdict.NOT_PROVEN, "seen no evidence for its rules; expected some")
    missing = "counters after the suite: seen no drafts; expected each"
    assert found["counters-true"] == (Verdict.NOT_PROVEN, f"block 1 B1: counters-present: {missing}")
    reason = f"phase 1: seen no judgement; expected a pass: block 1 B1: counters-present: {missing}"
    assert found["promotion"] == (Verdict.NOT_PROVEN, reason)


def test_why_a_leg_is_missing_is_told_where_it_is_missed_and_nowhere_else() -> None:
    legs = lab.legs(lab.metadata_starts())[:1]
    legs[0]["freshness"]["prompt_ids"][0] = "other"
    found = judge_clauses(analysis(legs), {"02-B1": (Verdict.NOT_PROVEN, "no card")})
    assert found["legs-in-order"][1].endswith("seen no record; expected all of 4 legs; 02-B1: no card")
    assert found["prompts-fresh"] == (
        Verdict.VOID,
        "block 1 A1: fresh-unique: prompt ids: seen others in the freshness block; expected those of the rows",
    )


def test_a_stop_over_other_legs_than_the_first_pair_is_none() -> None:
    """The second leg calls itself B2: phase 1 has no pair, and the campaign is not over by it."""
    legs = lab.legs(lab.metadata_starts())[:2]
    legs[1]["request"]["leg"] = "B2"
    found = judge_clauses(analysis(legs), {})
    assert found["promotion"] == (Verdict.NOT_PROVEN, "seen no evidence for its rules; expected some")
    assert found["legs-in-order"][0] is Verdict.FAIL


def test_phase_1_is_of_the_first_two_places_and_not_of_what_is_left() -> None:
    legs = lab.records([lab.legs(lab.metadata_starts())[place] for place in (0, 2, 3)])
    judged = analyse_endpoint(lab.plan(), legs, teacher=lab.TEACHER, campaign=lab.CAMPAIGN, ended=["02-B1"])
    assert judged.phase_1 is None
    assert judge_clauses(judged, {})["legs-in-order"] == (
        Verdict.NOT_PROVEN,
        "campaign: legs-complete: block 1 B1: seen no record; expected all of 4 legs",
    )


def test_two_legs_of_a_campaign_that_may_go_on_prove_no_promotion() -> None:
    found = judge_clauses(analysis(lab.legs(lab.metadata_starts())[:2]), {})
    assert found["promotion"] == (Verdict.NOT_PROVEN, "seen no evidence for its rules; expected some")


def test_one_wrong_token_speaks_against_the_clauses_that_see_it() -> None:
    legs = lab.legs(lab.metadata_starts())
    row = legs[1]["rows"][4]
    row["token_ids"][7] += 1
    row["token_sha256"] = token_digest(row["token_ids"])
    found = judge_clauses(analysis(legs), {})
    # Phase 1 stops at an inexact leg, so that the two legs after it should not have run.
    assert found.keys() == {"teacher-exact", "cross-leg-exact", "legs-in-order"}
    assert found["teacher-exact"][0] is Verdict.FAIL
    assert found["teacher-exact"][1].startswith("block 1 B1: teacher-exact: 12 of 13 rows are exact; row 4")


def test_a_leg_without_a_record_is_void_and_named_where_it_is_missed() -> None:
    ended: dict[str, Finding] = {"02-B1": (Verdict.VOID, "an error event after 13 tokens")}
    found = judge_clauses(analysis(lab.legs(lab.metadata_starts())[:1]), ended)
    assert found["legs-fresh"] == (Verdict.VOID, "02-B1: legs-ended: an error event after 13 tokens")
    assert found["legs-in-order"][0] is Verdict.NOT_PROVEN
    verdict, reason = found["adjacent-pairs"]
    assert (verdict, reason) == (
        Verdict.NOT_PROVEN,
        "seen no evidence for its rules; expected some; 02-B1: an error event after 13 tokens",
    )


@pytest.mark.parametrize("missing", [2, 3], ids=["B2", "A2"])
def test_a_leg_without_a_record_keeps_its_place_and_the_campaign_stays_open(missing: int) -> None:
    """Its control ran after it, as it must: no contract is broken, so that the gate may be attempted again."""
    legs = lab.legs(lab.metadata_starts())
    name = f"{missing + 1:02d}-{legs.pop(missing)['request']['leg']}"
    told = lab.records(legs)
    judged = analyse_endpoint(lab.plan(), told, teacher=lab.TEACHER, campaign=lab.CAMPAIGN, ended=[name])
    found = judge_clauses(judged, {name: (Verdict.VOID, "row 3 broke off")})
    assert found.keys() == {*CLAUSES}
    assert not any(verdict.closes for verdict, _ in found.values())
    rule = {"B2": "legs-complete", "A2": "a2-after-b2"}[name[3:]]
    assert found["legs-in-order"][1].startswith(f"campaign: {rule}: block 1 {name[3:]}: seen no record")
    assert found["legs-in-order"][1].endswith(f"; {name}: row 3 broke off")
    seen = (
        f"campaign: legs-complete: block 1 {name[3:]}: seen no record; expected all of 4 legs; {name}: row 3 broke off"
    )
    assert found["teacher-exact"] == (Verdict.NOT_PROVEN, f"seen some legs only: {seen}")
    assert found["promotion"] == (
        Verdict.NOT_PROVEN,
        f"seen no evidence for its rules; expected some; {name}: row 3 broke off",
    )


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("changed", [{}, {"teacher_sha256": None}, {"decides": "exactness"}])
def test_no_clause_is_proven_by_some_of_the_legs(count: int, changed: dict[str, Any]) -> None:
    """With no leg at all every row would equal the teacher's, and every later leg the first one."""
    legs = lab.legs(lab.metadata_starts())
    name = ["01-A1", "02-B1", "03-B2", "04-A2"][count]
    judged = analyse_endpoint(
        lab.plan(**changed), lab.records(legs[:count]), teacher=lab.TEACHER, campaign=lab.CAMPAIGN, ended=[name]
    )
    found = judge_clauses(judged, {name: (Verdict.VOID, "broke off")})
    assert {*CLAUSES} - found.keys() == set()
    planned = 0 if "teacher_sha256" in changed else 52
    assert (judged.exactness.teacher_planned, judged.exactness.cross_leg_planned) == (planned, 39)
    assert judged.exactness.teacher == (13 * count if planned else 0)


def test_a_campaign_that_phase_1_stopped_has_all_of_its_legs_and_rows() -> None:
    judged = analysis(lab.legs(lab.scaled(lab.metadata_starts(), B1=0.97))[:2])
    assert judged.exactness.model_dump() == {
        "teacher": 26,
        "teacher_planned": 26,
        "cross_leg": 13,
        "cross_leg_planned": 13,
    }


@pytest.mark.parametrize("ended", [[], ["04-A2"], ["03-A2"]])
def test_a_gap_that_no_ended_leg_explains_is_a_broken_order(ended: list[str]) -> None:
    legs = lab.legs(lab.metadata_starts())
    del legs[2]
    told = lab.records(legs)
    judged = analyse_endpoint(lab.plan(), told, teacher=lab.TEACHER, campaign=lab.CAMPAIGN, ended=ended)
    assert judge_clauses(judged, {})["legs-in-order"] == (
        Verdict.FAIL,
        "campaign: legs-as-planned: leg 3: seen block 1 A2, number 4; expected block 1 B2",
    )


def test_an_ended_leg_that_left_a_record_all_the_same_is_a_broken_order() -> None:
    told = lab.records(lab.legs(lab.metadata_starts()))
    judged = analyse_endpoint(lab.plan(), told, teacher=lab.TEACHER, campaign=lab.CAMPAIGN, ended=["04-A2"])
    assert judge_clauses(judged, {})["legs-in-order"] == (
        Verdict.FAIL,
        "campaign: legs-as-planned: block 1 A2: seen as leg 4 with a record; expected no more than 3",
    )


def test_without_a_frozen_teacher_its_rules_are_not_asked_and_the_clause_is_not_held_against_the_legs() -> None:
    """The first control is what rows are compared with; that it equals itself is nothing to be proven."""
    legs = lab.records(lab.legs(lab.metadata_starts()))
    plan = lab.plan(teacher_sha256=None)
    judged = analyse_endpoint(plan, legs, teacher=lab.TEACHER, campaign=lab.CAMPAIGN)
    assert {"teacher-exact", "teacher-pinned"} <= {*judged.not_asked}
    assert (judged.exactness.teacher, judged.exactness.teacher_planned) == (0, 0)
    assert (judge_clauses(judged, {}), judged.verdict) == ({}, Verdict.PASS)


def test_where_no_control_left_a_record_there_is_no_teacher_and_what_needs_one_is_not_proven() -> None:
    """A block that begins with a candidate: its answers are never what the control is held to."""
    legs = lab.records(lab.legs(lab.metadata_starts()))[1:2]
    plan = lab.plan(teacher_sha256=None)
    found = judge_clauses(analyse_endpoint(plan, legs, teacher=None, campaign=lab.CAMPAIGN, ended=["01-A1"]), {})
    expected = "teacher: seen no control's record; expected one to compare the rows with"
    for clause in ("long-next", "rollover"):
        assert found[clause] == (Verdict.NOT_PROVEN, f"block 1 B1: {clause}: {expected}")
    assert found["teacher-exact"][1].startswith("seen some legs only: campaign: legs-complete: block 1 A1: seen no")


def test_a_frozen_teacher_that_is_not_there_is_not_proven() -> None:
    legs = lab.records(lab.legs(lab.metadata_starts()))
    found = judge_clauses(analyse_endpoint(lab.plan(), legs, teacher=None, campaign=lab.CAMPAIGN), {})
    assert found["teacher-exact"] == (
        Verdict.NOT_PROVEN,
        f"campaign: teacher-pinned: teacher: seen none; expected {lab.TEACHER.digest}",
    )


def test_a_server_that_left_something_is_a_broken_contract_whatever_is_missing() -> None:
    ended: dict[str, Finding] = {"01-A1": (Verdict.FAIL, "nothing-left: left behind: pid 7")}
    assert judge_clauses(analysis([]), ended)["legs-fresh"] == (
        Verdict.FAIL,
        "01-A1: legs-ended: nothing-left: left behind: pid 7",
    )


def test_findings_come_to_the_first_of_the_gravest_and_a_broken_contract_decides() -> None:
    missing, void, broken = (Verdict.NOT_PROVEN, "m"), (Verdict.VOID, "v"), (Verdict.FAIL, "f")
    assert gravest([]) is None
    assert gravest([broken, void, missing, (Verdict.NOT_PROVEN, "n")]) == missing
    assert decisive([]) is None
    assert decisive([missing, void]) == missing
    assert decisive([missing, void, broken, (Verdict.FAIL, "g")]) == broken
    assert decide({"a": None, "b": void}, "well") == (Verdict.VOID, "b: v")
    assert decide({"a": None}, "well") == (Verdict.PASS, "well")
