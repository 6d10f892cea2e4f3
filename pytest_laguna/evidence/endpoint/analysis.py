# SPDX-License-Identifier: Apache-2.0
"""The analysis of an endpoint campaign: figures, findings, promotion and verdict.

Two rates of a row are named everywhere. The legacy rate counts the first 100 tokens' events over the 99 intervals
between them, and the published records are legacy rates; the conventional rate counts the 99 intervals, and is
99/100 of it.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence.endpoint.leg import LegName
from pytest_laguna.evidence.endpoint.plan import Order
from pytest_laguna.evidence.schemas import Schema, Sentence
from pytest_laguna.evidence.values import Count, Decides, Finite, Positive, PositiveCount, SchemaName, Share
from pytest_laguna.verdict import Verdict


class Disposition(enum.StrEnum):
    """Result of a campaign under the published rules. Source: the laboratory's two crossovers."""

    INCOMPLETE = "incomplete"
    """Legs are missing, and phase 1 is not yet decided."""
    PHASE_1_FAILED = "phase1_failed_stop"
    PHASE_1_PASSED = "phase1_pass_continue_to_full_abba"
    RECORD = "record_candidate"
    BELOW_PRACTICAL_FLOOR = "exact_reproducible_candidate_below_practical_floor"
    BELOW_RECORD_FLOOR = "exact_reproducible_candidate_below_record_floor"
    NEGATIVE = "negative_or_inconclusive_stop"


class Conclusion(enum.StrEnum):
    """Result of the interval over the blocks."""

    SUPERIOR = "superior"
    INFERIOR = "inferior"
    INCONCLUSIVE = "inconclusive"
    UNREACHABLE = "inconclusive: the sample could never reach the frozen level"


class LegFigures(Schema):
    """The figures of one leg.

    Attributes:
        row_rates: legacy rate of each row, in tokens/s.
        headline: median throughput, legacy: their median.
        headline_conventional: the same median of the conventional rates.
        p10: linear percentile of the legacy rates.
        mean: of the legacy rates; a late capture may slow row 0, so the mean decides nothing.
        stdev: sample standard deviation of the legacy rates.
        drafts: cycles with a proposal.
        target_cycle_ms: decode time over drafts.
    """

    block: PositiveCount
    leg: LegName
    row_rates: Annotated[list[Positive], pydantic.Field(min_length=2)]
    headline: Positive
    headline_conventional: Positive
    p10: Positive
    mean: Positive
    stdev: Finite
    drafts: PositiveCount
    draft_tokens: PositiveCount
    accepted: Count
    acceptance_rate: Share
    target_cycle_ms: Finite


class PairFigures(Schema):
    """The candidate against the adjacent control; positive is in the candidate's favour.

    Attributes:
        control: the A leg.
        candidate: the B leg next to it.
        headline_change_percent: of the leg's median throughput.
        rows_won: rows with a strictly faster candidate.
        cycle_saving_ms: control's target cycle less the candidate's.
        acceptance_rate_change: candidate's acceptance rate less the control's; neither sign is good.
    """

    block: PositiveCount
    control: LegName
    candidate: LegName
    headline_change_percent: Finite
    rows_won: Count
    rows: PositiveCount
    median_row_change_percent: Finite
    cycle_saving_ms: Finite
    acceptance_rate_change: Finite


class EndpointFinding(Schema):
    """Finding of one rule in one place; a rule satisfied everywhere has one finding, PASS.

    Attributes:
        where: leg, pair or campaign.
        reason: one line; empty for PASS.
        decides: True if it enters the verdict; other findings are reported.
    """

    rule: str
    where: str
    verdict: Verdict
    reason: Sentence = ""
    decides: bool


class Exactness(Schema):
    """Number of exact rows, out of the planned ones.

    Attributes:
        teacher: rows of all legs equal to the teacher's.
        teacher_planned: 52 for four legs of 13 rows; 0 without a teacher in the plan.
        cross_leg: rows of all legs but the first equal to the first leg's.
        cross_leg_planned: 39 for four legs of 13 rows.
    """

    teacher: Count
    teacher_planned: Count
    cross_leg: Count
    cross_leg_planned: Count


class PhaseOne(Schema):
    """Result of the first adjacent pair.

    Attributes:
        passed: True if every rule over its two legs is satisfied, timing among them.
        stops: True if no further leg may start: it did not pass, and timing decides.
        reasons: of its failure, one line each.
    """

    passed: bool
    stops: bool
    reasons: Annotated[list[str], pydantic.Field(exclude=True, default_factory=list)]


class Promotion(Schema):
    """The promotable rate: at most the lower candidate start.

    Attributes:
        value: the lowest candidate median throughput, legacy, in tokens/s.
        value_conventional: the same start's conventional one.
        above_record: the value less the record, both legacy, in tokens/s.
        above_record_percent: the same in per cent of the record, from the multiple, like the published figures.
        lowest_control: the lowest control median throughput, legacy.
        record: the approved one.
        practical_floor: the second bar; None for a campaign without it.
        promoted: True if every rule, the interval among them, is satisfied and timing decides.
    """

    value: Positive
    value_conventional: Positive
    above_record: Finite
    above_record_percent: Finite
    multiple_of_record: Positive
    lowest_control: Positive
    record: Positive
    practical_floor: Positive | None
    promoted: bool


class BlockContrast(Schema):
    """Contrast of one block.

    Attributes:
        contrast: mean of the candidates' logarithmic median throughput less the mean of the controls'.
    """

    block: PositiveCount
    order: Order
    contrast: Finite


class RepetitionFigures(Schema):
    """Figures of all blocks together.

    Attributes:
        blocks: in the order of running.
        gain_percent: of the mean contrast.
        low_percent: lower end of the t interval.
        high_percent: upper end of it.
        sign_flip_p: exact one-sided p of a gain above the margin.
        start_stdev: standard deviation of a start's logarithmic median throughput, from starts of one arm within a
            block.
        power: probability of finding the frozen effect in the planned blocks, were ``start_stdev`` the true one; None
            if no two starts differ.
    """

    blocks: list[BlockContrast]
    gain_percent: Finite
    low_percent: Finite
    high_percent: Finite
    margin_percent: Finite
    sign_flip_p: Share
    conclusion: Conclusion
    start_stdev: Finite
    power: Share | None


class EndpointAnalysis(Schema):
    """The analysis of the existing legs: a pure function of the plan, the teacher and the legs.

    Attributes:
        verdict: of the deciding rules.
        reason: one line; for PASS the proven facts.
        published_verdict: of all rules, deciding or not.
        null_verdict: of control against control in an A/A campaign, proving nothing of the candidate; None for a
            candidate.
        label: ``single block``, a description without a decision between small effects, or the number of blocks; in an
            A/A campaign it begins with this fact.
        disposition: by the published rules.
        phase_1: None until its two legs exist.
        promotion: None until all legs exist and have figures.
        repetition: None for one block, or until all blocks exist and have figures.
        legs: of every leg with figures.
        pairs: of every adjacent pair with figures.
        declared: for every leg and fact its observation.
        findings: of every rule with evidence.
        not_asked: the other rules, which prove nothing: the plan does without them, or their evidence is missing.
    """

    file_schema: SchemaName[Literal["pytest-laguna-endpoint-analysis-v2"]] = "pytest-laguna-endpoint-analysis-v2"
    verdict: Verdict
    reason: Sentence = ""
    published_verdict: Verdict
    null_verdict: Verdict | None
    label: str
    decides: Decides
    disposition: Disposition
    exactness: Exactness
    phase_1: PhaseOne | None
    promotion: Promotion | None
    repetition: RepetitionFigures | None
    legs: list[LegFigures]
    pairs: list[PairFigures]
    declared: dict[str, dict[str, str]]
    findings: list[EndpointFinding]
    not_asked: list[str]
