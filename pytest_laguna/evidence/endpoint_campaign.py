# SPDX-License-Identifier: Apache-2.0
"""What an endpoint campaign freezes before its first leg: suite, teacher, treatment, thresholds and blocks.

Source of the published thresholds: the laboratory's two graph crossovers, breakable graph (2026-07-24) and persistent
attention metadata (2026-07-25).
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal, Self, TypeAlias

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.leg import Count, LegName, PositiveCount, SuitePin, Text
from pytest_laguna.evidence.schemas import Schema, Sha256

Percent = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
Milliseconds = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
TokensPerSecond = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
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
"""What the endpoint campaign must show; each is a clause of the campaign's gate 3."""

RATE_TOKENS = 100
"""A row's rate is taken over its first so many tokens."""


class Gain(Schema):
    """How much the candidate must be ahead.

    Attributes:
        percent: of the control.
        strict: whether it must be more than that, and not just as much.
    """

    percent: Percent
    strict: bool

    def reached(self, percent: float) -> bool:
        """Whether a measured gain is enough."""
        return percent > self.percent if self.strict else percent >= self.percent

    def __str__(self) -> str:
        return f"{'more than' if self.strict else 'at least'} {self.percent} %"


class EndpointThresholds(Schema):
    """The published rules' numbers. Rates are legacy ones: 100 events over the 99 intervals between them.

    Attributes:
        headline: gain of the leg headline, for each adjacent pair.
        rows_won: rows in which the candidate is strictly faster, for each pair.
        paired_median: gain of the median over the rows' changes, for each pair.
        cycle_saving_ms: least saving of a target cycle, for each pair.
        acceptance_drift: largest absolute change of the acceptance rate, for each pair.
        control_health_percent: how far each control may be from the record; None for a campaign without that rule.
        record: the approved rate that the lower candidate start must strictly exceed.
        practical_floor: a second rate that it must strictly exceed; None for a campaign without it.
    """

    headline: Gain
    rows_won: Count
    paired_median: Gain
    cycle_saving_ms: Milliseconds
    acceptance_drift: Annotated[float, pydantic.Field(ge=0, le=1)]
    control_health_percent: Percent | None = None
    record: TokensPerSecond
    practical_floor: TokensPerSecond | None = None


BREAKABLE_GRAPH_20260724 = EndpointThresholds(
    headline=Gain(percent=0.0, strict=True),
    rows_won=9,
    paired_median=Gain(percent=0.0, strict=True),
    cycle_saving_ms=0.15,
    acceptance_drift=0.001,
    control_health_percent=None,
    record=33.89498511171744,
    practical_floor=None,
)
METADATA_20260725 = EndpointThresholds(
    headline=Gain(percent=0.25, strict=False),
    rows_won=10,
    paired_median=Gain(percent=0.25, strict=False),
    cycle_saving_ms=0.15,
    acceptance_drift=0.001,
    control_health_percent=2.0,
    record=92.16352215694299,
    practical_floor=92.393930962335,
)
"""The practical floor is the published literal: the record times 1.0025 is 92.39393096233535 in double precision."""


class Selector(Schema):
    """The sole treatment.

    Attributes:
        flag: the environment variable.
        control: its value in the A legs.
        treatment: its value in the B legs.
    """

    flag: Text
    control: str
    treatment: str


class Topology(Schema):
    """What each rank must have captured of the target before the first request.

    Attributes:
        ranks: how many there are.
        graphs: graph segments.
        breaks: eager boundaries.
        target_layers: attention layers of the target.
    """

    ranks: PositiveCount
    graphs: PositiveCount
    breaks: PositiveCount
    target_layers: PositiveCount


class Repetition(Schema):
    """More than one block, and what decides over them.

    Attributes:
        blocks: how many; even, so that both orders are equally frequent.
        margin_percent: by how much the candidate must be ahead; the interval's lower end must exceed it.
        confidence: of the two-sided t interval.
        sign_flip_level: what the exact one-sided sign-flip test may reach at most.
        effect_percent: the true gain for which the power is told.
    """

    blocks: Annotated[int, pydantic.Field(ge=2, le=16, multiple_of=2)]
    margin_percent: Percent
    confidence: Annotated[float, pydantic.Field(ge=0.5, lt=1)]
    sign_flip_level: Fraction
    effect_percent: Percent


class EndpointPlan(Schema):
    """What decides, and over what; a part of the campaign, so that its digest covers every number here.

    Attributes:
        suite: the prompts.
        teacher_sha256: digest of the canonical form of the teacher; None where the campaign has none: then rows are
            compared with the first control's, and nothing is said of a teacher.
        selector: the treatment.
        topology: of the captures.
        validator: which implementation of the candidate's contract runs.
        decides: ``exactness``: timing, phase-1 stop and promotion are reported and do not decide.
        null: whether every leg is a control: then a difference that is found is noise.
        thresholds: of the published rules.
        repetition: None for a campaign of one block.
    """

    suite: SuitePin
    teacher_sha256: Sha256 | None = None
    selector: Selector
    topology: Topology
    validator: Literal["native", "python"]
    decides: Literal["exactness", "exactness+timing"]
    null: bool = False
    thresholds: EndpointThresholds
    repetition: Repetition | None = None

    @property
    def blocks(self) -> int:
        """How many blocks run."""
        return 1 if self.repetition is None else self.repetition.blocks


class TeacherRow(Schema):
    """What the q1 arm answers to one prompt.

    Attributes:
        prompt_index: its place in the suite, from 0.
        prompt_id: its name.
        prompt_sha256: of its text.
        token_ids: the answer.
    """

    prompt_index: Count
    prompt_id: Text
    prompt_sha256: Sha256
    token_ids: Annotated[list[Count], pydantic.Field(min_length=1)]


class Teacher(Schema):
    """The canonical answers, in the form in which the laboratory published its own.

    Attributes:
        source_sha256: of the file that they were taken from.
        rows: one for each prompt, in the suite's order.
    """

    file_schema: Annotated[Literal["laguna-q1-token-oracle-v1"], pydantic.Field(alias="schema")] = (
        "laguna-q1-token-oracle-v1"
    )
    source_sha256: Sha256
    rows: Annotated[list[TeacherRow], pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> Self:
        seen = [row.prompt_index for row in self.rows]
        if seen != list(range(len(seen))):
            message = f"prompt_index of the rows is {seen}; expected 0, 1, ... without a gap"
            raise ValueError(message)
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return files.digest_of(self.canonical())


def block_orders(campaign: str, blocks: int) -> list[Order]:
    """The frozen order of the legs in each block: half the blocks ABBA, half BAAB, mixed by the campaign's digest.

    A block's place in the mix is the SHA-256 of the digest and the block's number, so that the order can be told by
    anybody and was known to nobody before the campaign was frozen. One block is ABBA, as published.

    Args:
        campaign: the campaign's digest, 64 hexadecimal digits.
        blocks: one, or an even number.
    """
    half = (blocks + 1) // 2
    orders = [ABBA] * half + [BAAB] * (blocks - half)
    keys = [hashlib.sha256(f"{campaign}:{block}".encode("ascii")).hexdigest() for block in range(blocks)]
    return [order for _, order in sorted(zip(keys, orders, strict=True))]


def leg_name(sequence: int, leg: LegName) -> str:
    """The name of a leg's directory, from its number in the campaign and its own name."""
    return f"{sequence:02d}-{leg}"


def planned_legs(campaign: str, blocks: int) -> list[tuple[int, LegName]]:
    """Block number, from 1, and name of every leg, in the order in which they run."""
    orders = block_orders(campaign, blocks)
    return [(block, leg) for block, order in enumerate(orders, start=1) for leg in order]
