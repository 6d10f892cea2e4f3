# SPDX-License-Identifier: Apache-2.0
"""From a session's journal to the verdict of each clause and of the gate.

Every clause starts as NOT_PROVEN and becomes PASS only if each rule below holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from pytest_laguna.analysis.findings import Finding, gravest
from pytest_laguna.evidence.journal import Event
from pytest_laguna.evidence.schemas import Analysis, ClauseProof, ClauseResult, Phase, parse_model
from pytest_laguna.verdict import Verdict, worst


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """Findings from the raw files, whatever the tests said.

    Attributes:
        machine: findings on cards, host and processes, or on the files themselves.
        clauses: findings by clause.
        unexercised: clause, rule and reason of each rule that is reported only, or that this lane cannot exercise.
        figures: by name, as text.
        notice: remark on the worth of the gate, for every reason; may be empty.
    """

    machine: Sequence[Finding] = ()
    clauses: Mapping[str, Finding] = dataclasses.field(default_factory=dict)
    unexercised: Sequence[tuple[str, str, str]] = ()
    figures: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notice: str = ""


PHASES = ("setup", "call", "teardown")

CAUSE_VERDICT: Mapping[str, Verdict] = {
    "assertion": Verdict.FAIL,
    "stop": Verdict.STOP,
    "unusable": Verdict.VOID,
    "not-proven": Verdict.NOT_PROVEN,
    "skip": Verdict.NOT_PROVEN,
    "error": Verdict.VOID,
}
"""Verdict of a clause by the cause of its failed phase; an unplanned exception is a defect of the harness."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClauseEvents:
    """Events of one clause in the journal."""

    clause: str
    nodeid: str
    starts: int
    phases: tuple[Phase, ...]
    proofs: tuple[ClauseProof, ...]


def ran_once(observed: ClauseEvents) -> Finding | None:
    """Rule ``ran-once``: a test of the frozen list starts once and has each phase at most once; none is run again."""
    whens = [phase.when for phase in observed.phases]
    if observed.starts == 0:
        return Verdict.NOT_PROVEN, "did not run"
    if observed.starts > 1 or len(set(whens)) != len(whens):
        return Verdict.VOID, f"ran {observed.starts} times; expected once, without a retry"
    return None


def phases_clean(observed: ClauseEvents) -> Finding | None:
    """Rule ``phases-clean``: a failed or skipped phase decides, set-up before call before teardown."""
    for phase in observed.phases:
        if phase.outcome != "passed":
            verdict = CAUSE_VERDICT.get(phase.cause, Verdict.VOID)
            if phase.when != "call" and verdict is Verdict.FAIL:
                verdict = Verdict.VOID
            return verdict, f"{phase.when}: {phase.reason}"
    return None


def phases_complete(observed: ClauseEvents) -> Finding | None:
    """Rule ``phases-complete``: every test has set-up, call and teardown."""
    whens = tuple(phase.when for phase in observed.phases)
    if whens != PHASES:
        return (
            Verdict.NOT_PROVEN,
            f"ended early: {', '.join(whens) or 'no phase'} of {', '.join(PHASES)} is recorded",
        )
    return None


def proof_given(observed: ClauseEvents) -> Finding | None:
    """Rule ``proof-given``: a passed test has a proof; a bare return counts as passed."""
    if not observed.proofs:
        return Verdict.NOT_PROVEN, "passed without a proof; expected the test to call prove(...)"
    return None


CLAUSE_RULES: Mapping[str, Callable[[ClauseEvents], Finding | None]] = {
    "ran-once": ran_once,
    "phases-clean": phases_clean,
    "phases-complete": phases_complete,
    "proof-given": proof_given,
}


def session_finished(events: Sequence[Event]) -> Finding | None:
    """Rule ``session-finished``: the journal starts and ends as a whole session does."""
    kinds = [event.kind for event in events]
    if kinds[:1] != ["session-started"] or kinds.count("session-started") != 1:
        return Verdict.NOT_PROVEN, "the journal does not start with the session's start"
    if kinds[-1:] != ["session-finished"] or kinds.count("session-finished") != 1:
        return Verdict.NOT_PROVEN, "the session ended early: the journal has no end"
    return None


def session_ended_well(events: Sequence[Event]) -> Finding | None:
    """Rule ``session-ended-well``: pytest's own exit status is 0 or 1; an interrupt or a crash proves nothing."""
    statuses = [event.data.get("exit_status") for event in events if event.kind == "session-finished"]
    if statuses not in ([0], [1]):
        told = ", ".join(_PYTEST_ENDED.get(status, status) for status in map(str, statuses)) or "none"
        return Verdict.NOT_PROVEN, f"pytest ended with exit status {told}; expected 0 or 1"
    return None


_PYTEST_ENDED = {"2": "2 (interrupted)", "3": "3 (internal error)"}


def no_problem(events: Sequence[Event]) -> Finding | None:
    """Rule ``no-problem``: the session recorded no problem; one is VOID unless it states another verdict."""
    return gravest([
        (_PROBLEM_VERDICT.get(str(event.data.get("verdict")), Verdict.VOID), str(event.data.get("reason")))
        for event in events
        if event.kind == "problem"
    ])


_PROBLEM_VERDICT: Mapping[str, Verdict] = {
    Verdict.FAIL.value: Verdict.FAIL,
    Verdict.NOT_PROVEN.value: Verdict.NOT_PROVEN,
}


def nothing_else_ran(events: Sequence[Event], nodeids: frozenset[str]) -> Finding | None:
    """Rule ``nothing-else-ran``: only tests of the frozen list ran."""
    others = sorted({str(event.data["nodeid"]) for event in events if "nodeid" in event.data} - nodeids)
    if others:
        return Verdict.VOID, f"{others[0]} ran; it is not in the campaign's frozen list"
    return None


SESSION_RULES: Mapping[str, Callable[[Sequence[Event]], Finding | None]] = {
    "session-finished": session_finished,
    "session-ended-well": session_ended_well,
    "no-problem": no_problem,
}


def judge(clauses: Sequence[tuple[str, str]], events: Sequence[Event], evidence: Evidence | None = None) -> Analysis:
    """Judge a session.

    Args:
        clauses: the frozen clause ids and node ids, in order.
        events: the journal.
        evidence: findings from the raw files; None if the gate has only its journal.

    Returns:
        The verdicts of the clauses, and the gate's: the worst of theirs, of the session's rules and of the evidence. A
        finding on an unlisted clause counts for the gate.

    Raises:
        UnusableEvidenceError: an event does not have the fields of its kind.
    """
    raw = evidence or Evidence()
    results = [_judge_clause(_observe(clause, nodeid, events), raw.clauses.get(clause)) for clause, nodeid in clauses]
    of_session = judge_session(clauses, events, raw)
    of_clauses = [(result.verdict, f"{result.clause}: {result.reason}") for result in results]
    verdict = worst(verdict for verdict, _ in of_session + of_clauses)
    reason = next((text for found, text in of_session + of_clauses if found is verdict), "the gate has no clause")
    if verdict is Verdict.PASS:
        reason = f"{len(results)} clauses proven"
    if raw.notice not in reason:  # a clause may have said it
        reason = f"{reason} ({raw.notice})"
    return Analysis(
        verdict=verdict, reason=reason, clauses=results, unexercised=list(raw.unexercised), figures=dict(raw.figures)
    )


def judge_session(clauses: Sequence[tuple[str, str]], events: Sequence[Event], raw: Evidence) -> list[Finding]:
    """Return the findings on the gate beside those on its clauses; arguments as ``judge``."""
    findings = [rule(events) for rule in SESSION_RULES.values()]
    findings.append(nothing_else_ran(events, frozenset(nodeid for _, nodeid in clauses)))
    return [finding for finding in findings if finding is not None] + [*raw.machine, *_unlisted(clauses, raw)]


def _unlisted(clauses: Sequence[tuple[str, str]], raw: Evidence) -> list[Finding]:
    """Return the findings on clauses without a test: leaving a test out proves nothing."""
    listed = {clause for clause, _ in clauses}
    return [
        (verdict, f"{clause}: {reason}") for clause, (verdict, reason) in raw.clauses.items() if clause not in listed
    ]


def _judge_clause(observed: ClauseEvents, raw: Finding | None) -> ClauseResult:
    """Judge a clause by its first finding; the journal's come before the evidence's."""
    findings = (*(rule(observed) for rule in CLAUSE_RULES.values()), raw)
    verdict, reason = next((finding for finding in findings if finding is not None), (Verdict.PASS, ""))
    return ClauseResult(
        clause=observed.clause,
        nodeid=observed.nodeid,
        verdict=verdict,
        reason=reason,
        detail="\n".join(phase.detail for phase in observed.phases if phase.detail),
        seconds=round(sum(phase.seconds for phase in observed.phases), 3),
        proofs=list(observed.proofs),
    )


def _observe(clause: str, nodeid: str, events: Sequence[Event]) -> ClauseEvents:
    own = [event for event in events if event.data.get("nodeid") == nodeid]
    return ClauseEvents(
        clause=clause,
        nodeid=nodeid,
        starts=sum(event.kind == "test-started" for event in own),
        phases=tuple(_phase(event) for event in own if event.kind == "phase"),
        proofs=tuple(_proof(event) for event in own if event.kind == "proof"),
    )


def _phase(event: Event) -> Phase:
    return parse_model(event.data, Phase, f"journal event {event.sequence}")


def _proof(event: Event) -> ClauseProof:
    data = {name: value for name, value in event.data.items() if name != "nodeid"}
    return parse_model(data, ClauseProof, f"journal event {event.sequence}")
