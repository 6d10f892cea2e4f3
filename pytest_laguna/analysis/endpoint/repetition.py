# SPDX-License-Identifier: Apache-2.0
"""What several blocks decide together: a t interval on their contrasts against a frozen margin.

The unit is the server start: rows of one start share its luck, and a test over rows calls that luck an effect. An
interval decides and no p alone; the exact sign-flip test must agree, and where so few blocks could never reach its
frozen level there is no decision at all.
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
    repetition: Repetition, orders: Sequence[Order], headlines: Sequence[Mapping[LegName, float]]
) -> RepetitionFigures:
    """What the blocks say.

    Args:
        repetition: the frozen margin and levels.
        orders: of the legs in each block.
        headlines: of each block's four legs, legacy or conventional; the contrast of a block is the same for both.
    """
    blocks = [
        block_contrast(number, order, rates)
        for number, (order, rates) in enumerate(zip(orders, headlines, strict=True), start=1)
    ]
    contrasts = [block.contrast for block in blocks]
    margin = math.log1p(repetition.margin_percent / 100)
    interval = t_interval(contrasts, repetition.confidence)
    p = sign_flip_p([contrast - margin for contrast in contrasts])
    deviation = start_stdev(headlines)
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
    """The probability that the planned blocks find the frozen effect by the t interval; None without a variation.

    Args:
        repetition: blocks, margin, confidence and effect.
        deviation: measured standard deviation of a start's logarithmic headline, as ``start_stdev`` gives it.
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
    return Verdict.STOP, f"{figures.conclusion}: {seen}; expected a gain above {figures.margin_percent} %"


def null_finds_nothing(disposition: Disposition, figures: RepetitionFigures | None) -> Finding | None:
    """Rule ``null-finds-nothing``: control against control is neither found ahead nor found different.

    A record and what stays below a floor are both found ahead by every pair; the bars are only how far.
    """
    if disposition in _AHEAD:
        return Verdict.FAIL, f"control against control is {disposition}; expected the published rules to find nothing"
    if figures is not None and figures.conclusion in {Conclusion.SUPERIOR, Conclusion.INFERIOR}:
        return Verdict.FAIL, f"a control is {figures.conclusion} to a control; expected an inconclusive interval"
    return None


def null_narrow(figures: RepetitionFigures) -> Finding | None:
    """Rule ``null-narrow``: control against control is known to less than the margin; else nothing could be found."""
    half = (math.log1p(figures.high_percent / 100) - math.log1p(figures.low_percent / 100)) / 2
    if half >= math.log1p(figures.margin_percent / 100):
        seen = shown(_percent(half), figures.margin_percent)
        return (
            Verdict.STOP,
            f"the interval reaches {seen} % to each side; expected less than {figures.margin_percent} %",
        )
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
