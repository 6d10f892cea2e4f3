# SPDX-License-Identifier: Apache-2.0
"""Conclusion over several blocks: a t interval on their contrasts against a frozen margin.

The unit is the server start: rows of one start share its luck, and a test over rows would take that luck for an effect.
The interval decides, no p alone. The exact sign-flip test must agree; if so few blocks can never reach its frozen
level, there is no conclusion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_laguna.analysis.endpoint.figures import block_contrast, start_stdev
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.analysis.statistics import (
    Interval,
    sign_flip_p,
    smallest_sign_flip_p,
    superiority_power,
    t_interval,
)
from pytest_laguna.analysis.wording import shown
from pytest_laguna.evidence.endpoint.analysis import Conclusion, Disposition, RepetitionFigures
from pytest_laguna.evidence.endpoint.leg import LegName
from pytest_laguna.evidence.endpoint.plan import Order, Repetition
from pytest_laguna.verdict import Verdict

_AHEAD = frozenset({Disposition.RECORD, Disposition.BELOW_PRACTICAL_FLOOR, Disposition.BELOW_RECORD_FLOOR})


def conclude(
    repetition: Repetition, orders: Sequence[Order], medians: Sequence[Mapping[LegName, float]]
) -> RepetitionFigures:
    """Figures and conclusion of the blocks.

    Args:
        repetition: the frozen margin and levels.
        orders: of the legs in each block.
        medians: throughputs of each block's four legs, legacy or conventional; a block's contrast is the same for both.
    """
    blocks = [
        block_contrast(number, order, rates)
        for number, (order, rates) in enumerate(zip(orders, medians, strict=True), start=1)
    ]
    contrasts = [block.contrast for block in blocks]
    margin = math.log1p(repetition.margin_percent / 100)
    interval = t_interval(contrasts, repetition.confidence)
    p = sign_flip_p([contrast - margin for contrast in contrasts])
    deviation = start_stdev(medians)
    return RepetitionFigures(
        blocks=blocks,
        gain_percent=_percent(interval.mean),
        low_percent=_percent(interval.low),
        high_percent=_percent(interval.high),
        margin_percent=repetition.margin_percent,
        sign_flip_p=p,
        conclusion=_conclusion(repetition, interval, margin, p),
        start_stdev=deviation,
        power=power(repetition, deviation),
    )


def power(repetition: Repetition, deviation: float) -> float | None:
    """Probability of finding the frozen effect in the planned blocks by the t interval; None without variation.

    The deviation is a start's, by ``start_stdev``.
    """
    if deviation == 0:
        return None
    excess = math.log1p(repetition.effect_percent / 100) - math.log1p(repetition.margin_percent / 100)
    found = superiority_power(stdev=deviation, count=repetition.blocks, confidence=repetition.confidence, excess=excess)
    return min(1.0, max(0.0, found))


def interval_superior(figures: RepetitionFigures) -> Finding | None:
    """Rule ``interval-superior``: the interval of the gain lies above the margin, and the sign-flip test agrees."""
    if figures.conclusion is Conclusion.SUPERIOR:
        return None
    low, high = (shown(end, figures.margin_percent) for end in (figures.low_percent, figures.high_percent))
    seen = f"{low} % to {high} %, sign-flip p {figures.sign_flip_p:.6g}"
    return Verdict.STOP, f"{figures.conclusion}: seen {seen}; expected a gain above {figures.margin_percent} %"


def null_finds_nothing(disposition: Disposition, figures: RepetitionFigures | None) -> Finding | None:
    """Rule ``null-finds-nothing``: control against control is neither ahead nor different.

    Every pair finds a record and a result below a floor ahead; the bars only say how far.
    """
    if disposition in _AHEAD:
        return Verdict.FAIL, f"control against control: seen {disposition}; expected no finding of the published rules"
    if figures is not None and figures.conclusion in {Conclusion.SUPERIOR, Conclusion.INFERIOR}:
        return Verdict.FAIL, f"control against control: seen {figures.conclusion}; expected an inconclusive interval"
    return None


def null_narrow(figures: RepetitionFigures) -> Finding | None:
    """Rule ``null-narrow``: the interval of control against control is narrower than the margin to each side."""
    half = (math.log1p(figures.high_percent / 100) - math.log1p(figures.low_percent / 100)) / 2
    if half >= math.log1p(figures.margin_percent / 100):
        seen = shown(_percent(half), figures.margin_percent)
        return Verdict.STOP, f"the interval: seen {seen} % to each side; expected less than {figures.margin_percent} %"
    return None


def _conclusion(repetition: Repetition, interval: Interval, margin: float, p: float) -> Conclusion:
    if smallest_sign_flip_p(repetition.blocks) > repetition.sign_flip_level:
        return Conclusion.UNREACHABLE
    if interval.low > margin and p <= repetition.sign_flip_level:
        return Conclusion.SUPERIOR
    if interval.high < -margin:
        return Conclusion.INFERIOR
    return Conclusion.INCONCLUSIVE


def _percent(logarithm: float) -> float:
    return math.expm1(logarithm) * 100
