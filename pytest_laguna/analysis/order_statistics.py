# SPDX-License-Identifier: Apache-2.0
"""Interval of the difference of a percentile of two samples, whatever the distribution of their values.

The interval inverts a precedence test (H. C. Mathisen, Annals of Mathematical Statistics 14, 1943; N. Balakrishnan and
H. K. T. Ng, Precedence-Type Tests and Applications, 2006): were both samples from one distribution, the number of
values of the one below an ordered value of the other would follow a law independent of the distribution. So an ordered
value of the control minus one of the candidate bounds a shift between the two with a known probability. As with the
estimate of Hodges and Lehmann, the candidate's distribution is taken to be the control's, shifted. Nothing is drawn at
random, and ordering is the dearest step.

The values of a sample count as independent of each other. The interval holds for these two samples alone: it does not
bound the distance of two more starts of the same process.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from pytest_laguna.analysis.statistics import linear_percentile


@dataclasses.dataclass(frozen=True, slots=True)
class Saving:
    """Percentile of the control minus the candidate's, in the values' unit.

    Attributes:
        interval: of the difference; None if the samples are too small to bound it.
        detectable: minimum detectable effect, at the spread of these values; None likewise.
    """

    control: float
    candidate: float
    interval: tuple[float, float] | None
    detectable: float | None

    @property
    def saving(self) -> float:
        """Control minus candidate."""
        return self.control - self.candidate


def compare_percentile(
    control: Sequence[float], candidate: Sequence[float], fraction: float, confidence: float
) -> Saving:
    """Compare the percentile at ``fraction`` (0 to 1, linear between values) of two samples of at least one value.

    The interval has at least ``confidence``, strictly between 0 and 1.
    """
    estimate = Saving(linear_percentile(control, fraction), linear_percentile(candidate, fraction), None, None)
    tail = (1.0 - confidence) / 2
    lowest = _least_difference(sorted(control), sorted(candidate), fraction, tail)
    highest = _least_difference(sorted(candidate), sorted(control), fraction, tail)
    if lowest is None or highest is None:
        return estimate
    return dataclasses.replace(estimate, interval=(lowest, -highest), detectable=estimate.saving - lowest)


def _least_difference(first: Sequence[float], second: Sequence[float], fraction: float, tail: float) -> float | None:
    """Return an ordered value of the first minus one of the second: above their shift with at most ``tail``.

    The two step away from the percentile in opposite directions, no farther than the probability demands.
    """
    steps = range(max(len(first), len(second)) + 1)
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        if _exceeding(len(first), len(second), fraction, steps[middle]) <= tail:
            high = middle
        else:
            low = middle + 1
    below, above = _places(len(first), len(second), fraction, low)
    return first[below] - second[above] if low < len(steps) and below >= 0 else None


def _places(first: int, second: int, fraction: float, steps: int) -> tuple[int, int]:
    """Return an index in the ordered first sample, negative beyond its end, and one in the second, at most its last."""
    return math.floor(fraction * (first - 1)) - steps, min(math.ceil(fraction * (second - 1)) + steps, second - 1)


def _exceeding(first: int, second: int, fraction: float, steps: int) -> float:
    """Return the probability of the first's value exceeding the second's, if both samples have one distribution.

    It exceeds if more than ``above`` values of the second lie below the value of the first at index ``below``; all
    orders of the two samples together are equally probable.
    """
    below, above = _places(first, second, fraction, steps)
    if below < 0:
        return 0.0
    orders = _log_choose(first + second, second)

    def so_many_before(count: int) -> float:
        earlier = _log_choose(count + below, below)
        later = _log_choose(first + second - 1 - count - below, second - count)
        return math.exp(earlier + later - orders)

    return math.fsum(so_many_before(count) for count in range(above + 1, second + 1))


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
