# SPDX-License-Identifier: Apache-2.0
"""Which rules prove which clause of gate 3, and what each clause comes to."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_laguna.analysis.findings import Finding, decisive
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.verdict import Verdict

ENDED = "legs-ended"
"""Not a rule of the analysis, which sees whole legs only: a leg that left no record says why, and that counts here."""

A2_AFTER_B2 = "a2-after-b2"
COMPLETE = "legs-complete"
"""Where it does not pass, what the other rules say of the legs that exist proves no clause."""

PROMOTION = "promotion"

CLAUSES: Mapping[str, tuple[str, ...]] = {
    "legs-fresh": (
        ENDED, "leg-named", "suite-passed", "server-ours", "server-called", "servers-fresh", "one-at-a-time",
        "fresh-service", "no-warm-up", "no-retry", "no-network", "rows-complete", "figures-taken", "cleanup-clean",
        "server-ended",
    ),
    "legs-in-order": ("legs-as-planned", "legs-in-order", "phase-1-stop", A2_AFTER_B2, COMPLETE),
    "sole-treatment": (
        "sole-treatment", "selector-observed", "candidate-active", "views-built-once", "views-used", "candidate-ran",
    ),
    "captures-proven": ("captures-proven", "draft-captured"),
    "cache-cold": ("cached-zero", "prefix-cache-cold", "no-prefix-reuse"),
    "prompts-fresh": ("fresh-unique", "same-prompts", "no-history", "no-ngram", "no-response-reuse"),
    "counters-true": (
        "counters-present", "counters-start-zero", "counters-rise", "positions-contiguous", "decode-count",
        "counters-add-up", "acceptance-possible", "proposals-whole", "cycles-account", "decode-time-possible",
        "no-preemption",
    ),
    "teacher-exact": ("teacher-pinned", "teacher-exact"),
    "cross-leg-exact": ("cross-leg-exact",),
    "long-next": ("long-next",),
    "rollover": ("rollover",),
    "acceptance-drift": ("acceptance-drift",),
    "adjacent-pairs": ("headline", "rows-won", "paired-median", "cycle-saving"),
    "control-health": ("control-health",),
    PROMOTION: (
        "lower-start-wins", "above-record", "above-practical-floor", "interval-superior", "null-finds-nothing",
        "null-narrow",
    ),
}  # fmt: skip
"""In the order in which they are judged; each rule belongs to one."""


def judge_clauses(analysis: EndpointAnalysis, ended: Mapping[str, Finding]) -> dict[str, Finding]:
    """What speaks against each clause; a clause that nothing speaks against is not in it.

    A clause is about all planned legs: where some are missing, those that are there prove none. A campaign that phase 1
    stopped has all of its legs.

    Args:
        analysis: of the legs that left a record.
        ended: by leg what became of each that left none.
    """
    cause = next((f"; {leg}: {reason}" for leg, (_, reason) in ended.items()), "")
    against = _by_rule(analysis, cause)
    missing = next((reason for _, reason in against.get(COMPLETE, [])), None)
    against[ENDED] = [(verdict, f"{leg}: {ENDED}: {reason}") for leg, (verdict, reason) in ended.items()]
    judged: dict[str, Finding] = {}
    for clause, rules in CLAUSES.items():
        found = decisive([one for rule in rules for one in against.get(rule, [])])
        if found is None and not _asked(analysis, clause):
            stop = _phase_1_stop(analysis) if clause == PROMOTION else None
            found = stop or (Verdict.NOT_PROVEN, f"none of its rules could be asked{cause}")
        if found is None and missing is not None:
            found = Verdict.NOT_PROVEN, f"asked of some legs only: {missing}"
        if found is not None:
            judged[clause] = found
    return judged


def _by_rule(analysis: EndpointAnalysis, cause: str) -> dict[str, list[Finding]]:
    """What decides against the legs; that one is missing is told with why it left no record."""
    against: dict[str, list[Finding]] = {}
    for found in analysis.findings:
        if found.decides and found.verdict is not Verdict.PASS:
            why = cause if found.rule in {A2_AFTER_B2, COMPLETE} else ""
            reason = f"{found.where}: {found.rule}: {found.reason}{why}"
            against.setdefault(found.rule, []).append((found.verdict, reason))
    return against


def _phase_1_stop(analysis: EndpointAnalysis) -> Finding | None:
    """What promotion comes to when phase 1 ended the campaign as it must.

    It is measured, and the answer is no, where the first pair is usable; of one that is not, nothing is known.
    """
    phase_1 = analysis.phase_1
    complete = any(found.rule == COMPLETE and found.verdict is Verdict.PASS for found in analysis.findings)
    if phase_1 is None or not phase_1.stops or not complete:
        return None
    first = "; ".join(phase_1.reasons[:1])
    if analysis.verdict.closes:
        return Verdict.STOP, f"phase 1 stopped the campaign; {first}"
    return Verdict.NOT_PROVEN, f"phase 1 could not be judged; {first}"


def _asked(analysis: EndpointAnalysis, clause: str) -> bool:
    """Whether a clause's rules had something to look at; a plan may do without some, and a clause without all."""
    asked = {finding.rule for finding in analysis.findings}
    return bool(asked.intersection(CLAUSES[clause])) or clause in OPTIONAL


OPTIONAL = frozenset({"control-health", "teacher-exact"})
"""Clauses whose rules a plan may do without: no bound, no frozen teacher. They are listed then, and prove nothing."""
