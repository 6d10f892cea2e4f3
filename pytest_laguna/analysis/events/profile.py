# SPDX-License-Identifier: Apache-2.0
"""From the event profiles of all ranks to the one that counts, its category sums, and what they authorise.

The slowest rank is chosen by its total before any category is looked at, and every sum comes from that rank alone: the
maxima of several ranks put together would be the time of a replay that nobody made. Source: the preregistration of the
current-stream event profile.
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
"""What each dominating category authorises: research, and no endpoint."""

NOTHING_MATERIAL: Action = "stop_host_side_micro_optimisation"


def slowest(profiles: Sequence[EventProfile]) -> EventProfile:
    """The profile with the largest total; of equal ones that of the lowest rank."""
    return min(profiles, key=lambda profile: (-profile.total_ns, profile.rank))


def category_sums(kinds: Sequence[SegmentKind], nanoseconds: Sequence[float]) -> dict[SegmentKind, float]:
    """Nanoseconds by kind, of the kinds that there are.

    Args:
        kinds: of the segments.
        nanoseconds: one value a segment.
    """
    sums: dict[SegmentKind, float] = {kind: 0 for kind in KINDS if kind in kinds}
    for kind, value in zip(kinds, nanoseconds, strict=True):
        sums[kind] += value
    return sums


def shares(sums: Mapping[SegmentKind, float]) -> dict[SegmentKind, float]:
    """Per cent of the total by kind, to six places as published; of nothing each has none."""
    total = sum(sums.values())
    return {kind: round(100 * value / total, 6) if total else 0.0 for kind, value in sums.items()}


def largest(sums: Mapping[SegmentKind, float]) -> SegmentKind:
    """The kind with the largest sum; of equal ones the first of ``KINDS``."""
    return max(sums, key=lambda kind: (sums[kind], -KINDS.index(kind)))


def decide_action(sums: Mapping[SegmentKind, float], material_percent: float) -> Action:
    """The decision rule, all four branches.

    Args:
        sums: nanoseconds by kind; intervals of one stream follow one another, so none overlaps another.
        material_percent: the least share with which the largest category dominates.
    """
    dominating = largest(sums)
    if shares(sums)[dominating] < material_percent:
        return NOTHING_MATERIAL
    return ACTIONS.get(dominating, NOTHING_MATERIAL)
