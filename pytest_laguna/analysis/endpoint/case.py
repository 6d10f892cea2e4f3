# SPDX-License-Identifier: Apache-2.0
"""Plan and legs of the endpoint campaign, as its rules read them, and the row-by-row comparison."""

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
NO_TEACHER: Finding = (Verdict.NOT_PROVEN, "teacher: seen no control's record; expected one to compare the rows with")


def leg_place(block: int, leg: LegName) -> str:
    """Place of a leg in a finding, as in ``block 1 A1``."""
    return f"block {block} {leg}"


@dataclasses.dataclass(frozen=True, slots=True)
class LegCase:
    """One leg, with its plan and teacher."""

    plan: EndpointPlan
    teacher: Teacher | None
    leg: LegRecord

    @property
    def place(self) -> str:
        """Place of the leg in a finding."""
        return leg_place(self.leg.request.block, self.leg.request.leg)

    @property
    def arm(self) -> Arm:
        """Arm by the leg's name; in an A/A campaign every leg is a control."""
        candidate = self.leg.request.leg.startswith("B") and not self.plan.null
        return Arm.GRAPH_CANDIDATE if candidate else Arm.GRAPH_CONTROL

    @property
    def selector_value(self) -> str:
        """Value of the flag by the leg's name."""
        selector = self.plan.selector
        return selector.treatment if self.arm is Arm.GRAPH_CANDIDATE else selector.control

    @property
    def states(self) -> list[RankState]:
        """States of every rank, before the suite and after it."""
        return [*self.leg.ranks_captured, *self.leg.ranks_served]

    def inexact_rows(self) -> dict[int, str] | None:
        """Differences from the teacher by inexact row; None without a teacher."""
        return None if self.teacher is None else inexact_rows(self.leg.rows, self.teacher.rows)


@dataclasses.dataclass(frozen=True, slots=True)
class CampaignCase:
    """All recorded legs in their order; the other fields are explained at ``analyse_endpoint``."""

    plan: EndpointPlan
    teacher: Teacher | None
    campaign: str
    legs: tuple[LegRecord, ...]
    ended: frozenset[str] = frozenset()

    @property
    def cases(self) -> list[LegCase]:
        """Each leg, with its plan and teacher."""
        return [LegCase(self.plan, self.teacher, leg) for leg in self.legs]

    def asks(self, rule: str) -> bool:
        """True unless the rule needs a frozen teacher and the plan has none."""
        return rule not in TEACHER_RULES or self.plan.teacher_sha256 is not None

    def leg(self, block: int, name: LegName) -> LegRecord | None:
        """First leg of a name in a block."""
        wanted = (block, name)
        return next((leg for leg in self.legs if (leg.request.block, leg.request.leg) == wanted), None)


def inexact_rows(rows: Sequence[SuiteRow], reference: Sequence[SuiteRow | TeacherRow]) -> dict[int, str]:
    """Differences of rows from the teacher's or another leg's, by their place in the suite.

    A row is exact if place, prompt and every token are equal and none of its prompt's tokens came from a cache.
    Source: the laboratory's endpoint protocol.
    """
    found = dict.fromkeys(range(len(rows), len(reference)), "seen none; expected one")
    for place, row in enumerate(rows):
        reason = _difference(place, row, reference)
        if reason is not None:
            found[place] = reason
    return found


def _difference(place: int, row: SuiteRow, reference: Sequence[SuiteRow | TeacherRow]) -> str | None:
    if place >= len(reference):
        return f"seen one too many; expected {len(reference)} rows"
    expected = reference[place]
    if (row.index, row.prompt_id, row.prompt_sha256) != (place, expected.prompt_id, expected.prompt_sha256):
        seen = f"seen number {row.index}, prompt {row.prompt_id!r}"
        return f"{seen}; expected {place}, {expected.prompt_id!r} and its text"
    if row.usage.cached_tokens:
        return f"seen {row.usage.cached_tokens} prompt tokens from a cache; expected 0"
    if row.token_ids != expected.token_ids:
        return _first_difference(row.token_ids, expected.token_ids)
    return None


def _first_difference(seen: Sequence[int], expected: Sequence[int]) -> str:
    for position, (one, other) in enumerate(zip(seen, expected, strict=False)):
        if one != other:
            return f"seen token {one} at position {position}; expected {other}"
    return f"seen {len(seen)} tokens; expected {len(expected)}"
