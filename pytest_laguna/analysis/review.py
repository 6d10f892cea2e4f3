# SPDX-License-Identifier: Apache-2.0
"""Rules over a campaign's review: somebody other than its author reviewed exactly the commit to run on cards.

Source: the preregistrations demand an independent review of the complete, committed packet before any action on a
device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from pytest_laguna.analysis.findings import Finding, decide
from pytest_laguna.evidence.review import Reviewed
from pytest_laguna.evidence.schemas import Identity
from pytest_laguna.verdict import Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """Identity and models of a run on cards.

    Attributes:
        models: by folder as the campaign names it, each file's digest by its path; None before any file is hashed.
            Generated models have none.
    """

    identity: Identity
    models: Mapping[str, Mapping[str, str] | None]


def frozen_present(reviewed: Reviewed, _: Running) -> Finding | None:
    """Rule ``frozen-present``: the campaign was frozen."""
    if reviewed.frozen is None:
        return Verdict.NOT_PROVEN, "campaign: seen no frozen state; expected one; run laguna freeze"
    return None


def frozen_current(reviewed: Reviewed, running: Running) -> Finding | None:
    """Rule ``frozen-current``: campaign, candidate and harness are the frozen ones."""
    if reviewed.frozen is None:
        return None
    for name in Identity.model_fields:
        if getattr(reviewed.frozen.identity, name) != getattr(running.identity, name):
            told = f"{name}: seen changed since it was frozen; expected the frozen state"
            return Verdict.NOT_PROVEN, f"{told}; freeze and review it again"
    return None


def models_of_frozen(reviewed: Reviewed, running: Running) -> Finding | None:
    """Rule ``models-of-frozen``: the models' files are the frozen ones, in whatever folders."""
    if reviewed.frozen is None:
        return None
    for folder, files in running.models.items():
        frozen = reviewed.frozen.models.get(folder)
        if frozen is None:
            told = f"{folder}: seen no frozen state; expected one"
            return Verdict.NOT_PROVEN, f"{told}; fetch it, then freeze and review the campaign again"
        seen = frozen if files is None else files
        changed = sorted(name for name in frozen.keys() | seen.keys() if seen.get(name) != frozen.get(name))
        if changed:
            told = f"{folder}/{changed[0]}: seen changed since it was frozen; expected the frozen state"
            return Verdict.NOT_PROVEN, f"{told}; freeze and review it again"
    return None


def review_present(reviewed: Reviewed, _: Running) -> Finding | None:
    """Rule ``review-present``: a review is recorded."""
    if reviewed.review is None:
        return Verdict.NOT_PROVEN, "campaign: seen no review; expected one; have somebody else run laguna review"
    return None


def review_of_frozen(reviewed: Reviewed, _: Running) -> Finding | None:
    """Rule ``review-of-frozen``: the review is of the frozen commit."""
    if reviewed.frozen is None or reviewed.review is None or reviewed.review.frozen == reviewed.frozen.sha256:
        return None
    told = f"review: seen one of {reviewed.review.frozen[:12]}; expected the frozen {reviewed.frozen.sha256[:12]}"
    return Verdict.NOT_PROVEN, f"{told}; review it again"


def reviewer_is_another(reviewed: Reviewed, _: Running) -> Finding | None:
    """Rule ``reviewer-is-another``: the reviewer is neither author nor committer of the frozen commit."""
    if reviewed.frozen is None or reviewed.review is None:
        return None
    if reviewed.frozen.is_by(reviewed.review.reviewer):
        return Verdict.NOT_PROVEN, f"review: seen by {reviewed.review.reviewer}, who wrote it; expected somebody else"
    return None


RULES: Mapping[str, Callable[[Reviewed, Running], Finding | None]] = {
    "frozen-present": frozen_present,
    "frozen-current": frozen_current,
    "models-of-frozen": models_of_frozen,
    "review-present": review_present,
    "review-of-frozen": review_of_frozen,
    "reviewer-is-another": reviewer_is_another,
}


def needs_review(gate: int, lane: str) -> bool:
    """True if a gate is the first to run on devices; a run on a CPU alone harms nobody."""
    return gate == 2 and lane != "cpu"  # noqa: PLR2004 - gate 1 runs on a CPU in every lane


def judge_review(reviewed: Reviewed, running: Running) -> Finding:
    """Return the verdict on a frozen campaign and its review, for the attempt running it."""
    found = {name: rule(reviewed, running) for name, rule in RULES.items()}
    return decide(found, "frozen, and reviewed by somebody else")
