# SPDX-License-Identifier: Apache-2.0
"""What the rules of the endpoint campaign look at, and the row-by-row comparison that several of them share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.endpoint.leg import LegName, LegRecord, RankState, SuiteRow
from pytest_laguna.evidence.endpoint.plan import EndpointPlan, Teacher, TeacherRow
from pytest_laguna.verdict import Verdict

CAMPAIGN = "campaign"
TEACHER_RULES = frozenset({"teacher-pinned", "teacher-exact"})
NO_TEACHER: Finding = (Verdict.NOT_PROVEN, "no control left a record that the rows could be compared with")


def leg_place(block: int, leg: LegName) -> str:
    """How a finding names a leg, as in ``block 1 A1``."""
    return f"block {block} {leg}"


@dataclasses.dataclass(frozen=True, slots=True)
class LegCase:
    """One leg with what it is judged by."""

    plan: EndpointPlan
    teacher: Teacher | None
    leg: LegRecord

    @property
    def place(self) -> str:
        """How a finding names it."""
        return leg_place(self.leg.request.block, self.leg.request.leg)

    @property
    def arm(self) -> Arm:
        """The arm that the leg's name stands for; in a null campaign every leg is a control."""
        candidate = self.leg.request.leg.startswith("B") and not self.plan.null
        return Arm.GRAPH_CANDIDATE if candidate else Arm.GRAPH_CONTROL

    @property
    def selector_value(self) -> str:
        """The value of the flag that the leg's name stands for."""
        selector = self.plan.selector
        return selector.treatment if self.arm is Arm.GRAPH_CANDIDATE else selector.control

    @property
    def states(self) -> list[RankState]:
        """What every rank said of itself, before the suite and after it."""
        return [*self.leg.ranks_captured, *self.leg.ranks_served]

    def inexact_rows(self) -> dict[int, str] | None:
        """Why a row is not exact, by its place in the suite; empty when all of the teacher's rows are exact.

        None without a teacher.
        """
        return None if self.teacher is None else inexact_rows(self.leg.rows, self.teacher.rows)


@dataclasses.dataclass(frozen=True, slots=True)
class CampaignCase:
    """All legs that exist, in the order in which they are given.

    Attributes:
        plan: what the campaign froze.
        teacher: the canonical answers, or the first control's where the plan has none; None where neither is there.
        campaign: its digest.
        legs: that left a record.
        ended: the names of the directories of those that left none.
    """

    plan: EndpointPlan
    teacher: Teacher | None
    campaign: str
    legs: tuple[LegRecord, ...]
    ended: frozenset[str] = frozenset()

    @property
    def cases(self) -> list[LegCase]:
        """Each leg with what it is judged by."""
        return [LegCase(self.plan, self.teacher, leg) for leg in self.legs]

    def asks(self, rule: str) -> bool:
        """Whether a rule has something to compare with: without a frozen teacher none is asked about it."""
        return rule not in TEACHER_RULES or self.plan.teacher_sha256 is not None

    def leg(self, block: int, name: LegName) -> LegRecord | None:
        """The first leg of that name in that block."""
        wanted = (block, name)
        return next((leg for leg in self.legs if (leg.request.block, leg.request.leg) == wanted), None)


def inexact_rows(rows: Sequence[SuiteRow], reference: Sequence[SuiteRow | TeacherRow]) -> dict[int, str]:
    """Why rows differ from those of the teacher or of another leg, by their place in the suite.

    A row is exact when place, prompt and every token are equal and none of its prompt's tokens came from a cache.
    Source: the laboratory's endpoint protocol.
    """
    found = dict.fromkeys(range(len(rows), len(reference)), "is missing")
    for place, row in enumerate(rows):
        reason = _difference(place, row, reference)
        if reason is not None:
            found[place] = reason
    return found


def _difference(place: int, row: SuiteRow, reference: Sequence[SuiteRow | TeacherRow]) -> str | None:
    if place >= len(reference):
        return f"is one too many; expected {len(reference)} rows"
    expected = reference[place]
    if (row.index, row.prompt_id, row.prompt_sha256) != (place, expected.prompt_id, expected.prompt_sha256):
        return f"is number {row.index}, prompt {row.prompt_id!r}; expected {place}, {expected.prompt_id!r} and its text"
    if row.usage.cached_tokens:
        return f"took {row.usage.cached_tokens} prompt tokens from a cache; expected 0"
    if row.token_ids != expected.token_ids:
        return _first_difference(row.token_ids, expected.token_ids)
    return None


def _first_difference(seen: Sequence[int], expected: Sequence[int]) -> str:
    for position, (one, other) in enumerate(zip(seen, expected, strict=False)):
        if one != other:
            return f"has token {one} at position {position}; expected {other}"
    return f"has {len(seen)} tokens; expected {len(expected)}"
