# SPDX-License-Identifier: Apache-2.0
"""Selects the slowest rank's event profile and derives its category sums and the next action.

The total alone selects the rank, and every sum comes from that rank: maxima of several ranks together would describe a
replay that never ran. Source: the preregistration of the current-stream event profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.evidence.events.analysis import Action
from pytest_laguna.evidence.events.profile import EventProfile

KINDS: tuple[SegmentKind, ...] = ("graph", "collective", "attention", "other")

ACTIONS: Mapping[SegmentKind, Action] = {
    "attention": "eager_fa2_submission_candidate_design_only",
    "graph": "replay_plan_submission_research_only",
    "collective": "collective_completion_join_proof_only",
}
"""Action by dominating category: research, never an endpoint."""

NOTHING_MATERIAL: Action = "stop_host_side_micro_optimisation"


def slowest(profiles: Sequence[EventProfile]) -> EventProfile:
    """Profile with the largest total; among equals, of the lowest rank."""
    return min(profiles, key=lambda profile: (-profile.total_ns, profile.rank))


def category_sums(kinds: Sequence[SegmentKind], nanoseconds: Sequence[float]) -> dict[SegmentKind, float]:
    """Nanoseconds by present kind; both arguments have one value a segment."""
    sums: dict[SegmentKind, float] = {kind: 0 for kind in KINDS if kind in kinds}
    for kind, value in zip(kinds, nanoseconds, strict=True):
        sums[kind] += value
    return sums


def shares(sums: Mapping[SegmentKind, float]) -> dict[SegmentKind, float]:
    """Per cent of the total by kind, to six places as published; all 0 for a total of 0."""
    total = sum(sums.values())
    return {kind: round(100 * value / total, 6) if total else 0.0 for kind, value in sums.items()}


def largest(sums: Mapping[SegmentKind, float]) -> SegmentKind:
    """Kind with the largest sum; among equals, the first of ``KINDS``."""
    return max(sums, key=lambda kind: (sums[kind], -KINDS.index(kind)))


def decide_action(sums: Mapping[SegmentKind, float], material_percent: float) -> Action:
    """Next action by the decision rule, in four branches; intervals of one stream never overlap."""
    dominating = largest(sums)
    if shares(sums)[dominating] < material_percent:
        return NOTHING_MATERIAL
    return ACTIONS.get(dominating, NOTHING_MATERIAL)
