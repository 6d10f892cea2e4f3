# SPDX-License-Identifier: Apache-2.0
"""What raw evidence does to the verdict of a session whose tests all say that they passed."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_laguna.analysis.clauses import Evidence, judge
from pytest_laguna.evidence.journal import Event
from pytest_laguna.verdict import Verdict, raise_verdict, worst
from tests.sealed import good_events, phase

CLAUSES = [("first", "checks/test_first.py::test_first"), ("second", "checks/test_first.py::test_second")]
EVENTS: list[tuple[Any, dict[str, Any]]] = [
    ("session-started", {}),
    *good_events(),
    ("session-finished", {"exit_status": 0}),
]
JOURNAL = [
    Event(sequence=number, previous="", time="2026-07-25T00:00:00.000000+00:00", kind=kind, data=data)
    for number, (kind, data) in enumerate(EVENTS)
]


def test_without_anything_against_it_the_gate_passes() -> None:
    analysis = judge(CLAUSES, JOURNAL, Evidence())
    assert (analysis.verdict, analysis.reason, analysis.unexercised) == (Verdict.PASS, "2 clauses proven", [])
    assert analysis == judge(CLAUSES, JOURNAL)


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.PASS])
def test_evidence_against_the_machine_is_the_gates_verdict(verdict: Verdict) -> None:
    analysis = judge(CLAUSES, JOURNAL, Evidence(machine=[(verdict, "idle-after.json: held")]))
    assert (analysis.verdict, analysis.reason) == (verdict, "idle-after.json: held")
    assert [clause.verdict for clause in analysis.clauses] == [Verdict.PASS, Verdict.PASS]


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.PASS])
def test_evidence_against_a_clause_is_its_verdict_and_the_gates(verdict: Verdict) -> None:
    analysis = judge(CLAUSES, JOURNAL, Evidence(clauses={"second": (verdict, "rule: because")}))
    assert (analysis.verdict, analysis.reason) == (verdict, "second: rule: because")
    assert [clause.verdict for clause in analysis.clauses] == [Verdict.PASS, verdict]


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.PASS])
def test_evidence_against_a_clause_that_the_campaign_leaves_out_is_the_gates(verdict: Verdict) -> None:
    analysis = judge(CLAUSES, JOURNAL, Evidence(clauses={"drafts-bounded": (verdict, "rule: because")}))
    assert (analysis.verdict, analysis.reason) == (verdict, "drafts-bounded: rule: because")


def test_every_reason_of_the_gate_says_what_it_is_worth_once() -> None:
    passed = judge(CLAUSES, JOURNAL, Evidence(notice="diagnostic only"))
    assert passed.reason == "2 clauses proven (diagnostic only)"
    against = {"second": (Verdict.FAIL, "rule: because")}
    assert judge(CLAUSES, JOURNAL, Evidence(clauses=against, notice="diagnostic only")).reason == (
        "second: rule: because (diagnostic only)"
    )
    said = {"second": (Verdict.FAIL, "because (diagnostic only)")}
    assert judge(CLAUSES, JOURNAL, Evidence(clauses=said, notice="diagnostic only")).reason == (
        "second: because (diagnostic only)"
    )


def test_what_is_not_exercised_is_listed_and_proves_nothing() -> None:
    listed = [("second", "compiled-extension", "not applicable: the lane has none")]
    analysis = judge(CLAUSES, JOURNAL, Evidence(unexercised=listed, figures={"published": "exact_timing_stop"}))
    assert (analysis.verdict, analysis.unexercised) == (Verdict.PASS, listed)
    assert analysis.figures == {"published": "exact_timing_stop"}


def test_a_gate_without_a_clause_proves_nothing() -> None:
    analysis = judge([], [JOURNAL[0], JOURNAL[-1]])
    assert (analysis.verdict, analysis.reason) == (Verdict.NOT_PROVEN, "the gate has no clause")


def test_a_clause_has_the_details_and_the_seconds_of_all_its_phases() -> None:
    details = {"setup": "made", "call": "", "teardown": "unmade"}
    journal = [
        event.model_copy(update={"data": {**event.data, "detail": details[str(event.data["when"])], "seconds": 0.1111}})
        if event.kind == "phase"
        else event
        for event in JOURNAL
    ]
    for clause in judge(CLAUSES, journal).clauses:
        assert (clause.detail, clause.seconds) == ("made\nunmade", 0.333)


def test_a_phase_that_failed_for_no_cause_is_void() -> None:
    name, failed = phase(CLAUSES[1][1], "call", outcome="failed", reason="because")
    journal = [
        event.model_copy(update={"data": failed})
        if event.data.get("nodeid") == CLAUSES[1][1] and event.data.get("when") == "call"
        else event
        for event in JOURNAL
    ]
    assert name == "phase"
    analysis = judge(CLAUSES, journal)
    assert (analysis.verdict, analysis.reason) == (Verdict.VOID, "second: call: because")


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ({}, Verdict.VOID),
        ({"verdict": "FAIL"}, Verdict.FAIL),
        ({"verdict": "NOT_PROVEN"}, Verdict.NOT_PROVEN),
        ({"verdict": "STOP"}, Verdict.VOID),
        ({"verdict": "PASS"}, Verdict.VOID),
    ],
)
def test_a_problem_is_void_unless_it_says_what_else_it_is(said: dict[str, Any], verdict: Verdict) -> None:
    problem = JOURNAL[-1].model_copy(update={"kind": "problem", "data": {"reason": "because", **said}})
    analysis = judge(CLAUSES, [*JOURNAL[:-1], problem, JOURNAL[-1]])
    assert (analysis.verdict, analysis.reason) == (verdict, "because")


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.PASS])
def test_a_verdict_is_raised_as_what_gives_it(verdict: Verdict) -> None:
    with pytest.raises(Exception, match="because") as raised:
        raise_verdict(verdict, "because")
    names = {
        Verdict.STOP: "MeasuredNegativeError",
        Verdict.FAIL: "AssertionError",
        Verdict.VOID: "UnusableEvidenceError",
        Verdict.NOT_PROVEN: "NotProvenError",
    }
    assert raised.typename == names[verdict]


def test_a_pass_is_not_raised() -> None:
    with pytest.raises(ValueError, match="proven and not raised"):
        raise_verdict(Verdict.PASS, "")
    assert worst([]) is Verdict.NOT_PROVEN
