# SPDX-License-Identifier: Apache-2.0
"""Rules by clause of gate 3, and each clause's finding."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_laguna.analysis.findings import Finding, decisive
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.verdict import Verdict

ENDED = "legs-ended"
"""Findings over legs without a record, in the place of a rule, since the analysis reads whole legs only."""

A2_AFTER_B2 = "a2-after-b2"
COMPLETE = "legs-complete"
"""Rule without which the other rules prove no clause."""

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
"""Rules by clause, in the order of judgement; each rule belongs to one."""


def judge_clauses(analysis: EndpointAnalysis, ended: Mapping[str, Finding]) -> dict[str, Finding]:
    """Findings by clause; a proven clause has none.

    A clause covers all planned legs, so a missing leg leaves every clause unproven. A campaign stopped by phase 1 has
    all of its legs. ``ended`` tells how each leg without a record ended.
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
            found = stop or (Verdict.NOT_PROVEN, f"seen no evidence for its rules; expected some{cause}")
        if found is None and missing is not None:
            found = Verdict.NOT_PROVEN, f"seen some legs only: {missing}"
        if found is not None:
            judged[clause] = found
    return judged


def _by_rule(analysis: EndpointAnalysis, cause: str) -> dict[str, list[Finding]]:
    """Deciding findings by rule; a missing leg includes its cause."""
    against: dict[str, list[Finding]] = {}
    for found in analysis.findings:
        if found.decides and found.verdict is not Verdict.PASS:
            why = cause if found.rule in {A2_AFTER_B2, COMPLETE} else ""
            reason = f"{found.where}: {found.rule}: {found.reason}{why}"
            against.setdefault(found.rule, []).append((found.verdict, reason))
    return against


def _phase_1_stop(analysis: EndpointAnalysis) -> Finding | None:
    """Finding over promotion after phase 1 ended the campaign as planned, else None.

    A usable first pair answers no; an unusable one proves nothing.
    """
    phase_1 = analysis.phase_1
    complete = any(found.rule == COMPLETE and found.verdict is Verdict.PASS for found in analysis.findings)
    if phase_1 is None or not phase_1.stops or not complete:
        return None
    first = "; ".join(phase_1.reasons[:1])
    if analysis.verdict.closes:
        return Verdict.STOP, f"phase 1: seen a stop; expected a pass: {first}"
    return Verdict.NOT_PROVEN, f"phase 1: seen no judgement; expected a pass: {first}"


def _asked(analysis: EndpointAnalysis, clause: str) -> bool:
    """True if a rule of this clause applied, or the clause is optional."""
    asked = {finding.rule for finding in analysis.findings}
    return bool(asked.intersection(CLAUSES[clause])) or clause in OPTIONAL


OPTIONAL = frozenset({"control-health", "teacher-exact"})
"""Clauses of plans with a bound or a frozen teacher; without it they are listed and prove nothing."""
