# SPDX-License-Identifier: Apache-2.0
"""The plan of an endpoint campaign, frozen before its first leg: suite, teacher, treatment, thresholds and blocks.

The published thresholds, of the laboratory's two graph crossovers, are in ``campaigns/thresholds``: breakable graph
(2026-07-24) and persistent attention metadata (2026-07-25).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Final, Literal, Self, TypeAlias

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint.leg import LegName, SuitePin, SuiteRow
from pytest_laguna.evidence.schemas import Schema, Sha256
from pytest_laguna.evidence.values import Count, Decides, NonNegative, Positive, PositiveCount, Text, Validator

Fraction = Annotated[float, pydantic.Field(gt=0, lt=1)]
Order: TypeAlias = tuple[LegName, LegName, LegName, LegName]

ABBA: Order = ("A1", "B1", "B2", "A2")
BAAB: Order = ("B1", "A1", "A2", "B2")
"""In both orders the first two legs and the last two are the adjacent pairs."""

CLAUSES: Final = (
    "legs-fresh",
    "legs-in-order",
    "identity-exact",
    "cards-idle",
    "sole-treatment",
    "captures-proven",
    "cache-cold",
    "prompts-fresh",
    "counters-true",
    "teacher-exact",
    "cross-leg-exact",
    "long-next",
    "rollover",
    "acceptance-drift",
    "adjacent-pairs",
    "control-health",
    "promotion",
)
"""Clauses of gate 3."""

RATE_TOKENS = 100
"""Tokens of a row, from its first, in its rate."""

MOST_ACCEPTANCE_DRIFT = 0.01
"""Ten times the published bound; beyond it, acceptance would compare two different decodings."""


class Gain(Schema):
    """Required gain of the candidate.

    Attributes:
        percent: of the control.
        strict: True if exactly this gain is too little; required for 0 %.
    """

    percent: NonNegative
    strict: bool

    @pydantic.model_validator(mode="after")
    def _is_a_gain(self) -> Self:
        if self.percent == 0 and not self.strict:
            raise ValueError("at least 0 %: no gain; expected more than 0 %, or strict = true")
        return self

    def reached(self, percent: float) -> bool:
        """Return whether a measured gain is enough."""
        return percent > self.percent if self.strict else percent >= self.percent

    def __str__(self) -> str:
        return f"{'more than' if self.strict else 'at least'} {self.percent} %"


class EndpointThresholds(Schema):
    """The numbers of the published rules.

    Rates are legacy ones: 100 events over the 99 intervals between them. Each bound must be able to fail and to hold: a
    bound that every result keeps, or none, decides before the measurement.

    Attributes:
        headline: gain of the leg's median throughput, in each adjacent pair.
        rows_won: minimum of rows with a strictly faster candidate, in each pair.
        paired_median: gain of the median over the rows' changes, in each pair.
        cycle_saving_ms: minimum saving of a target cycle, in each pair.
        acceptance_drift: maximum absolute change of the acceptance rate, in each pair.
        control_health_percent: maximum distance of each control from the record; None without this rule.
        record: the approved rate, in tokens a second; the lower candidate start must strictly exceed it.
        practical_floor: a second rate, to be exceeded likewise; None without this rule.
    """

    headline: Gain
    rows_won: PositiveCount
    paired_median: Gain
    cycle_saving_ms: Positive
    acceptance_drift: Annotated[float, pydantic.Field(ge=0, le=MOST_ACCEPTANCE_DRIFT)]
    control_health_percent: Annotated[float, pydantic.Field(gt=0, lt=100)] | None = None
    record: Positive
    practical_floor: Positive | None = None

    @pydantic.model_validator(mode="after")
    def _floor_above_record(self) -> Self:
        if self.practical_floor is not None and self.practical_floor <= self.record:
            raise ValueError(f"practical_floor is {self.practical_floor}; expected more than the record, {self.record}")
        return self

    def require_reachable(self, prompts: int) -> None:
        """Raise ValueError for bounds out of reach of a suite of so many prompts."""
        if self.rows_won > prompts:
            raise ValueError(f"rows_won is {self.rows_won}; expected at most the {prompts} prompts")


class Selector(Schema):
    """The sole treatment.

    Attributes:
        flag: the environment variable; ``control`` is its value in the A legs and ``treatment`` in the B legs.
    """

    flag: Text
    control: str
    treatment: str


class CaptureCounts(Schema):
    """Expected captures of the target on each rank, before the first request."""

    ranks: PositiveCount
    graphs: PositiveCount
    breaks: PositiveCount
    target_layers: PositiveCount


class Repetition(Schema):
    """More than one block, with the rules over them.

    Attributes:
        blocks: an even number, for as many blocks of either order.
        margin_percent: lower bound of the interval's lower end.
        confidence: of the two-sided t interval.
        sign_flip_level: maximum p of the exact one-sided sign-flip test.
        effect_percent: the true gain of the power computation.
    """

    blocks: Annotated[int, pydantic.Field(ge=2, le=16, multiple_of=2)]
    margin_percent: NonNegative
    confidence: Annotated[float, pydantic.Field(ge=0.5, lt=1)]
    sign_flip_level: Fraction
    effect_percent: NonNegative


class EndpointPlan(Schema):
    """The plan of gate 3.

    Attributes:
        teacher_sha256: digest of the canonical form of the teacher; None without one: rows are then compared with the
            first control's.
        decides: with ``exactness``, phase-1 stop and promotion are reported only, too.
        null: True for A/A: every leg is a control, and every difference is noise.
        repetition: None for a campaign of one block.
    """

    suite: SuitePin
    teacher_sha256: Sha256 | None = None
    selector: Selector
    topology: CaptureCounts
    validator: Validator
    decides: Decides
    null: bool = False
    thresholds: EndpointThresholds
    repetition: Repetition | None = None

    @pydantic.model_validator(mode="after")
    def _reachable(self) -> Self:
        self.thresholds.require_reachable(self.suite.prompts)
        return self

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return 1 if self.repetition is None else self.repetition.blocks


class TeacherRow(Schema):
    """The q1 arm's answer to one prompt."""

    prompt_index: Count
    prompt_id: Text
    prompt_sha256: Sha256
    token_ids: Annotated[list[Count], pydantic.Field(min_length=1)]


class Teacher(Schema):
    """The canonical answers, in the laboratory's published form.

    Attributes:
        source_sha256: of their source file.
        rows: one for each prompt, in the suite's order.
    """

    file_schema: Annotated[Literal["laguna-q1-token-oracle-v1"], pydantic.Field(alias="schema")] = (
        "laguna-q1-token-oracle-v1"
    )
    source_sha256: Sha256
    rows: Annotated[list[TeacherRow], pydantic.Field(min_length=1)]

    @classmethod
    def of(cls, rows: Iterable[SuiteRow], source_sha256: str) -> Self:
        """Return the answers of a leg's rows, taken from the file with this digest."""
        kept = [
            TeacherRow(
                prompt_index=row.index,
                prompt_id=row.prompt_id,
                prompt_sha256=row.prompt_sha256,
                token_ids=row.token_ids,
            )
            for row in rows
        ]
        return cls(source_sha256=source_sha256, rows=kept)

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> Self:
        seen = [row.prompt_index for row in self.rows]
        if seen != list(range(len(seen))):
            raise ValueError(f"prompt_index of the rows is {seen}; expected 0, 1, ... without a gap")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return files.digest_of(self.canonical())


def block_orders(campaign: str, blocks: int) -> list[Order]:
    """Return the frozen order of the legs in each block: half the blocks ABBA, half BAAB, mixed by the digest.

    A block's place in the mix is the SHA-256 of the digest and the block's number. Anybody can derive the order, and
    nobody knew it before the campaign was frozen. One block is ABBA, as published.

    Args:
        campaign: the campaign's digest, 64 hexadecimal digits.
        blocks: one, or an even number.
    """
    half = (blocks + 1) // 2
    orders = [ABBA] * half + [BAAB] * (blocks - half)
    keys = [hashlib.sha256(f"{campaign}:{block}".encode("ascii")).hexdigest() for block in range(blocks)]
    return [order for _, order in sorted(zip(keys, orders, strict=True))]


def leg_name(sequence: int, leg: LegName) -> str:
    """Return the name of a leg's directory, from its number in the campaign and its own name."""
    return f"{sequence:02d}-{leg}"


def leg_sequence(name: str) -> int:
    """Return the number in a leg directory's name, made by ``leg_name``."""
    return int(name.partition("-")[0])


def planned_legs(campaign: str, blocks: int) -> list[tuple[int, LegName]]:
    """Return block number, from 1, and name of every leg, in the order of running."""
    orders = block_orders(campaign, blocks)
    return [(block, leg) for block, order in enumerate(orders, start=1) for leg in order]
