# SPDX-License-Identifier: Apache-2.0
"""Verdict of the event profile campaign: every clause with its rules, a pure function of its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from pytest_laguna.analysis.arms.case import clause_verdict, judge
from pytest_laguna.analysis.events.arms import ARM_RULES
from pytest_laguna.analysis.events.case import EventCase, EventRule
from pytest_laguna.analysis.events.profile import category_sums, shares, slowest
from pytest_laguna.analysis.events.ranges import fold
from pytest_laguna.analysis.events.rules import (
    PROFILE_RULES,
    action_of,
    every_arm_isolated,
    measured_fitness,
    measured_shares,
)
from pytest_laguna.analysis.events.sparse import sparse_class_shares, sparse_shares
from pytest_laguna.analysis.events.work import waiting
from pytest_laguna.evidence.events.analysis import (
    CLAUSES,
    EventAnalysis,
    EventPlan,
    HostShare,
    MeasuredFitness,
    SelectedRank,
)
from pytest_laguna.evidence.events.profile import EventProfile
from pytest_laguna.evidence.events.reader import EventEvidence
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict

Value = TypeVar("Value")

RULES: Mapping[str, Mapping[str, EventRule]] = {clause: {**ARM_RULES, **PROFILE_RULES}[clause] for clause in CLAUSES}
"""Rules of every clause, in the order of judgement."""


def analyse_events(plan: EventPlan, evidence: EventEvidence) -> EventAnalysis:
    """Judge the campaign's evidence against its plan.

    A rule without its evidence is not proven, and unusable evidence makes it void. Every rule is judged, also after
    another one failed. Figures are given if every rule over the profiles holds.
    """
    case = EventCase(plan, evidence)
    clauses = judge(RULES, case)
    holds = {clause: clause_verdict(results)[0] is Verdict.PASS for clause, results in clauses.items()}
    complete = holds["profile-complete"]
    profiles = list(case.profiles.values()) if complete else []
    figures = _or_none(lambda: measured_fitness(case))
    unfit = clause_verdict(clauses["instrument-fit"])[0] is Verdict.STOP
    tried = holds["instrument-fit"] or unfit
    exact = tried and all(holds[clause] for clause in CLAUSES if clause != "instrument-fit")
    return EventAnalysis(
        status="exact_event_profile_stop" if exact else None,
        plan_sha256=plan.sha256,
        clauses=clauses,
        rank_total_ns={str(profile.rank): profile.total_ns for profile in profiles},
        selected=select(profiles, withheld=not holds["instrument-fit"]) if profiles else None,
        fitness=_fitness(plan, figures, proven=tried),
        fitness_figures=figures,
        sparse=(_or_none(lambda: measured_shares(case, sparse_shares)) or {}) if complete else {},
        sparse_classes=(_or_none(lambda: measured_shares(case, sparse_class_shares)) or {}) if complete else {},
        action=_or_none(lambda: action_of(case)) if exact and profiles else None,
        network_isolated=True if _or_none(lambda: every_arm_isolated(case)) else None,
    )


def select(profiles: list[EventProfile], *, withheld: bool) -> SelectedRank:
    """Choose the slowest rank by its total, then derive its figures; ``withheld`` leaves out an unfit one's shares."""
    chosen = slowest(profiles)
    sums = {kind: round(value) for kind, value in category_sums(chosen.kinds, chosen.interval_ns).items()}
    return SelectedRank(
        rank=chosen.rank,
        total_ns=chosen.total_ns,
        clock=chosen.clock,
        stream=chosen.stream,
        category_ns=sums,
        category_percent=None if withheld else shares(sums),
        ranges=fold(chosen),
        host=_host_share(chosen),
    )


def _host_share(profile: EventProfile) -> HostShare | None:
    waited = waiting(profile)
    if waited is None:
        return None
    return HostShare(
        waiting_least_ns=category_sums(profile.kinds, waited.least),
        waiting_most_ns=category_sums(profile.kinds, waited.most),
        smallest_lead_ns=min(waited.lead[1:]),
    )


def _fitness(
    plan: EventPlan, figures: MeasuredFitness | None, *, proven: bool
) -> Literal["unmeasured", "fit", "unfit", "not_proven"]:
    if plan.fitness is None:
        return "unmeasured"
    if figures is None or not proven:
        return "not_proven"
    return "fit" if figures.fit else "unfit"


def _or_none(give: Callable[[], Value]) -> Value | None:
    """Value of a function, or None without its evidence; the rule that needs it gives the finding."""
    try:
        return give()
    except (NotProvenError, UnusableEvidenceError):
        return None
