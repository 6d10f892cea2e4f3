# SPDX-License-Identifier: Apache-2.0
"""What the analysis of an endpoint campaign says: figures, findings, promotion and verdict.

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
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.evidence.values import Count, Decides, Finite, Positive, PositiveCount, Share
from pytest_laguna.verdict import Verdict


class Disposition(enum.StrEnum):
    """What the published rules make of a campaign. Source: the laboratory's two crossovers."""

    INCOMPLETE = "incomplete"
    """Legs are missing, and phase 1 is not yet decided."""
    PHASE_1_FAILED = "phase1_failed_stop"
    PHASE_1_PASSED = "phase1_pass_continue_to_full_abba"
    RECORD = "record_candidate"
    BELOW_PRACTICAL_FLOOR = "exact_reproducible_candidate_below_practical_floor"
    BELOW_RECORD_FLOOR = "exact_reproducible_candidate_below_record_floor"
    NEGATIVE = "negative_or_inconclusive_stop"


class Conclusion(enum.StrEnum):
    """What the interval over the blocks says."""

    SUPERIOR = "superior"
    INFERIOR = "inferior"
    INCONCLUSIVE = "inconclusive"
    UNREACHABLE = "inconclusive: the sample could never reach the frozen level"


class LegFigures(Schema):
    """The numbers of one leg.

    Attributes:
        block: from 1.
        leg: its name.
        row_rates: legacy rate of each row, in tokens/s.
        headline: median of them: the leg's rate, legacy.
        headline_conventional: the same median of the conventional rates.
        p10: linear percentile of the legacy rates.
        mean: of the legacy rates; row 0 may carry a late capture, so the mean decides nothing.
        stdev: sample standard deviation of the legacy rates.
        drafts: cycles with a proposal.
        draft_tokens: proposed tokens.
        accepted: accepted tokens.
        acceptance_rate: accepted over proposed.
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
        block: from 1.
        control: the A leg.
        candidate: the B leg next to it.
        headline_change_percent: of the leg's headline.
        rows_won: rows in which the candidate is strictly faster.
        rows: how many there are.
        median_row_change_percent: median of the rows' changes.
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


class RuleFinding(Schema):
    """What one rule said of one thing; a rule that is satisfied everywhere has one finding, PASS.

    Attributes:
        rule: its id.
        where: the leg, pair or campaign that it looked at.
        verdict: what it came to.
        reason: one line; empty for PASS.
        decides: whether it enters the verdict; what does not is reported.
    """

    rule: str
    where: str
    verdict: Verdict
    reason: str
    decides: bool


class Exactness(Schema):
    """How many rows were exact, of how many that were planned.

    Attributes:
        teacher: rows of all legs that equal the teacher's.
        teacher_planned: 52 for four legs of 13 rows; 0 where the plan has no teacher.
        cross_leg: rows of all legs but the first that equal the first leg's.
        cross_leg_planned: 39 for four legs of 13 rows.
    """

    teacher: Count
    teacher_planned: Count
    cross_leg: Count
    cross_leg_planned: Count


class PhaseOne(Schema):
    """After the first adjacent pair.

    Attributes:
        passed: whether every rule over its two legs is satisfied, timing among them.
        stops: whether no further leg may be started: it did not pass, and timing decides.
        reasons: what was against it, one line each.
    """

    passed: bool
    stops: bool
    reasons: list[str]


class Promotion(Schema):
    """What could be submitted: never more than the lower candidate start.

    Attributes:
        value: the lowest candidate headline, legacy, in tokens/s.
        value_conventional: the same start's conventional one.
        above_record: the value less the record, both legacy, in tokens/s.
        above_record_percent: the same in per cent of the record, taken from the multiple as the published ones are.
        multiple_of_record: the value over the record.
        lowest_control: the lowest control headline, legacy.
        record: the approved one.
        practical_floor: the second bar; None for a campaign without it.
        promoted: whether every rule, the interval among them, is satisfied and timing decides.
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
    """One block's datum.

    Attributes:
        block: from 1.
        order: of its legs.
        contrast: mean of the candidates' logarithmic headlines less the mean of the controls'.
    """

    block: PositiveCount
    order: Order
    contrast: Finite


class RepetitionFigures(Schema):
    """What the blocks together say.

    Attributes:
        blocks: their data, in the order in which they ran.
        gain_percent: of the mean contrast.
        low_percent: lower end of the t interval.
        high_percent: upper end of it.
        margin_percent: the frozen margin.
        sign_flip_p: exact one-sided p of a gain above the margin.
        conclusion: what follows.
        start_stdev: standard deviation of a start's logarithmic headline, from starts of one arm within a block.
        power: probability that the planned blocks find the frozen effect, were ``start_stdev`` the true one; None when
            no two starts differ.
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
    """The analysis of the legs that exist; a pure function of the plan, the teacher and the legs.

    Attributes:
        verdict: of what decides.
        reason: one line; for PASS what is proven.
        published_verdict: of all rules, whatever decides.
        null_verdict: in a null campaign, which proves nothing of the candidate, what control against control came to;
            None where the candidate runs.
        label: ``single block``, which describes and does not decide between small effects, or the number of blocks; of
            a null campaign it says so first.
        decides: as in the plan.
        disposition: what the published rules make of it.
        exactness: counts of exact rows.
        phase_1: None until its two legs exist.
        promotion: None until all legs exist and have figures.
        repetition: None for one block, or until all blocks exist and have figures.
        legs: figures of every leg that has them.
        pairs: figures of every adjacent pair that has them.
        declared: for every leg and fact the observation behind it.
        findings: of every rule that had something to look at.
        not_asked: the other rules, which prove nothing: the plan does without them, or what they look at is missing.
    """

    file_schema: Annotated[Literal["pytest-laguna-endpoint-analysis-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-endpoint-analysis-v1"
    )
    verdict: Verdict
    reason: str
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
    findings: list[RuleFinding]
    not_asked: list[str]
