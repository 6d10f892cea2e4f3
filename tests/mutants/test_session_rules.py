# SPDX-License-Identifier: Apache-2.0
"""Every rule that judges a session has a mutant: a good journal with one fact changed, refused by that rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest

from pytest_laguna.analysis import clauses
from pytest_laguna.analysis.clauses import CAUSE_VERDICT, CLAUSE_RULES, SESSION_RULES
from pytest_laguna.evidence import files
from pytest_laguna.evidence.journal import Event, Journal, read_journal
from pytest_laguna.verdict import Verdict
from pytest_laguna.verify.verification import verify_attempt
from tests.caught_first import caught_first
from tests.demo import writable
from tests.sealed import Events, build, good_events, phase, restamp

FIRST = "checks/test_first.py::test_first"
SECOND = "checks/test_first.py::test_second"

# good_events(): start, setup, proof, call, teardown of the first test at 0 to 4, of the second at 5 to 9.


def _replaced(index: int, event: tuple[Any, dict[str, Any]]) -> Callable[[Events], Events]:
    return lambda events: [*events[:index], event, *events[index + 1 :]]


def _without(*indices: int) -> Callable[[Events], Events]:
    return lambda events: [event for index, event in enumerate(events) if index not in indices]


def _and(*more: tuple[Any, dict[str, Any]]) -> Callable[[Events], Events]:
    return lambda events: [*events, *more]


MUTANTS: list[tuple[str, Callable[[Events], Events], int, str, str]] = [
    ("ran-once", _without(5, 6, 7, 8, 9), 0, "NOT_PROVEN", "second: did not run"),
    ("ran-once", _and(("test-started", {"nodeid": SECOND})), 0, "VOID", "second: ran 2 times"),
    ("ran-once", _and(phase(SECOND, "call")), 0, "VOID", "second: ran 1 times; expected once"),
    ("phases-complete", _without(9), 0, "NOT_PROVEN", "second: ended early: setup, call of"),
    ("phases-complete", _without(6), 0, "NOT_PROVEN", "second: ended early: call, teardown of"),
    ("proof-given", _without(7), 0, "NOT_PROVEN", "second: passed without a proof"),
    ("session-ended-well", _and(), 2, "NOT_PROVEN", "pytest ended with exit status 2 (interrupted); expected 0 or 1"),
    ("session-ended-well", _and(), 5, "NOT_PROVEN", "pytest ended with exit status 5; expected 0 or 1"),
    (
        "session-ended-well",
        _and(),
        3,
        "NOT_PROVEN",
        "pytest ended with exit status 3 (internal error); expected 0 or 1",
    ),
    ("session-finished", _and(("session-started", {})), 0, "NOT_PROVEN", "does not start with the session's start"),
    ("session-finished", _and(("session-finished", {"exit_status": 0})), 0, "NOT_PROVEN", "ended early"),
    ("no-problem", _and(("problem", {"reason": "torch was loaded"})), 0, "VOID", "torch was loaded"),
    ("no-problem", _and(("problem", {"reason": "of no verdict", "verdict": ["FAIL"]})), 0, "VOID", "of no verdict"),
    ("nothing-else-ran", _and(("test-started", {"nodeid": "a.py::b"})), 0, "VOID", "a.py::b ran; it is not in"),
]
MUTANTS += [
    (
        "phases-clean",
        _replaced(8, phase(SECOND, "call", outcome="failed", cause=cause, reason="because")),
        1,
        verdict,
        "second: call: because",
    )
    for cause, verdict in CAUSE_VERDICT.items()
]
MUTANTS += [
    (
        "phases-clean",
        _replaced(index, phase(SECOND, when, outcome="failed", cause="assertion", reason="because")),
        1,
        "VOID",
        f"second: {when}: because",
    )
    for index, when in ((6, "setup"), (9, "teardown"))
]


def test_the_good_root_passes(tmp_path: Path) -> None:
    lane = build(tmp_path).parent.parent
    assert verify_attempt(lane, 1, 1).verdict is Verdict.PASS


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} == {*CLAUSE_RULES, *SESSION_RULES, "nothing-else-ran"}


def _first_against(attempt: Path) -> str | None:
    """The first rule that has something to say, in the order in which a session is judged."""
    events = read_journal(attempt / "journal.jsonl", files.sha256_file(attempt / "attempt.json"))
    for nodeid in (FIRST, SECOND):
        observed = clauses._observe("clause", nodeid, events)
        for name, rule in CLAUSE_RULES.items():
            if rule(observed) is not None:
                return name
    found = [name for name, session_rule in SESSION_RULES.items() if session_rule(events) is not None]
    others = clauses.nothing_else_ran(events, frozenset({FIRST, SECOND}))
    return next(iter([*found, *(["nothing-else-ran"] if others else [])]), None)


@caught_first("rule mutate exit_status verdict reason", MUTANTS)
def test_the_mutant_is_caught_for_its_reason_by_its_rule_before_any_other(
    tmp_path: Path, mutate: Callable[[Events], Events], exit_status: int, verdict: str, reason: str
) -> list[str | None]:
    attempt = build(tmp_path, mutate(good_events()), exit_status=exit_status)
    report = verify_attempt(attempt.parent.parent, 1, 1)
    assert report.verdict == verdict
    assert reason in report.reason
    return [_first_against(attempt)]


def test_a_day_that_there_is_not_is_no_time() -> None:
    good = {"sequence": 0, "previous": "", "kind": "problem", "data": {}}
    assert Event.model_validate(good | {"time": "2026-02-28T00:00:00.000000+00:00"}).sequence == 0
    with pytest.raises(pydantic.ValidationError, match="day is out of range"):
        Event.model_validate(good | {"time": "2026-02-30T00:00:00.000000+00:00"})


@pytest.mark.parametrize(
    "event",
    [
        phase(SECOND, "nowhere"),
        phase(SECOND, "call", seconds=-1),
        phase(SECOND, "call", surprise=1),
        ("proof", {"nodeid": SECOND, "statement": 3, "observed": {}}),
        ("proof", {"nodeid": SECOND}),
    ],
)
def test_an_event_without_its_form_is_void_and_never_an_exception(
    tmp_path: Path, event: tuple[Any, dict[str, Any]]
) -> None:
    attempt = build(tmp_path)
    with writable(attempt):
        (attempt / "journal.jsonl").unlink()
        journal = Journal(attempt / "journal.jsonl", files.sha256_file(attempt / "attempt.json"))
        journal.append("session-started")
        journal.append(event[0], **event[1])
        journal.close()
        restamp(attempt, lambda manifest: manifest)
    report = verify_attempt(attempt.parent.parent, 1, 1)
    assert report.verdict is Verdict.VOID
    assert "journal event 1: " in report.reason
