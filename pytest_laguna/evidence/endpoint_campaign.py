# SPDX-License-Identifier: Apache-2.0
"""What an endpoint campaign freezes before its first leg: suite, teacher, treatment, thresholds and blocks.

The published thresholds, of the laboratory's two graph crossovers, are in ``campaigns/thresholds``: breakable graph
(2026-07-24) and persistent attention metadata (2026-07-25).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Final, Literal, Self, TypeAlias

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.leg import Count, LegName, PositiveCount, SuitePin, SuiteRow, Text
from pytest_laguna.evidence.schemas import Schema, Sha256

Percent = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
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


MOST_ACCEPTANCE_DRIFT = 0.01
"""Ten times what was published: a campaign that lets acceptance move further compares two different decodings."""


class Gain(Schema):
    """How much the candidate must be ahead.

    Attributes:
        percent: of the control.
        strict: whether it must be more than that, and not just as much; with nothing asked for it must.
    """

    percent: Percent
    strict: bool

    @pydantic.model_validator(mode="after")
    def _is_a_gain(self) -> Self:
        if self.percent == 0 and not self.strict:
            raise ValueError("at least 0 % asks for no gain; expected more than 0 %, or strict = true")
        return self

    def reached(self, percent: float) -> bool:
        """Whether a measured gain is enough."""
        return percent > self.percent if self.strict else percent >= self.percent

    def __str__(self) -> str:
        return f"{'more than' if self.strict else 'at least'} {self.percent} %"


class EndpointThresholds(Schema):
    """The published rules' numbers. Rates are legacy ones: 100 events over the 99 intervals between them.

    Each must be able to fail and to hold: a bound that everything keeps, or nothing, decides before the measurement.

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
    rows_won: PositiveCount
    paired_median: Gain
    cycle_saving_ms: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
    acceptance_drift: Annotated[float, pydantic.Field(ge=0, le=MOST_ACCEPTANCE_DRIFT)]
    control_health_percent: Annotated[float, pydantic.Field(gt=0, lt=100)] | None = None
    record: TokensPerSecond
    practical_floor: TokensPerSecond | None = None

    @pydantic.model_validator(mode="after")
    def _floor_above_record(self) -> Self:
        if self.practical_floor is not None and self.practical_floor <= self.record:
            message = f"practical_floor {self.practical_floor} is not above the record {self.record}, and asks nothing"
            raise ValueError(message)
        return self

    def require_reachable(self, prompts: int) -> None:
        """Refuse what no suite of that many prompts can reach; raises ValueError."""
        if self.rows_won > prompts:
            message = f"rows_won is {self.rows_won} of {prompts} prompts; expected no more than there are"
            raise ValueError(message)


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

    @pydantic.model_validator(mode="after")
    def _reachable(self) -> Self:
        self.thresholds.require_reachable(self.suite.prompts)
        return self

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

    @classmethod
    def of(cls, rows: Iterable[SuiteRow], source_sha256: str) -> Self:
        """The answers of a leg's rows, which were taken from the file with that digest."""
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


def leg_sequence(name: str) -> int:
    """The number in a leg directory's name, which is one of ``leg_name``."""
    return int(name.partition("-")[0])


def planned_legs(campaign: str, blocks: int) -> list[tuple[int, LegName]]:
    """Block number, from 1, and name of every leg, in the order in which they run."""
    orders = block_orders(campaign, blocks)
    return [(block, leg) for block, order in enumerate(orders, start=1) for leg in order]
