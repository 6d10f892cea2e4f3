# SPDX-License-Identifier: Apache-2.0
"""What two samples can say of the difference of a percentile, whatever the distribution of their values.

The interval inverts a precedence test (H. C. Mathisen, Annals of Mathematical Statistics 14, 1943; N. Balakrishnan and
H. K. T. Ng, Precedence-Type Tests and Applications, 2006): were both samples from one distribution, the number of
values of the one below an ordered value of the other would follow a law that does not depend on that distribution. So
an ordered value of the control minus one of the candidate bounds a shift between the two with a known probability. As
with the estimate of Hodges and Lehmann, the candidate's distribution is taken to be the control's, shifted. Nothing is
drawn at random, and ordering is the dearest step.

The values of a sample count as independent of each other. The interval is about these two samples alone: it says
nothing on how far apart two more starts of the same process would be.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from pytest_laguna.analysis.statistics import linear_percentile


@dataclasses.dataclass(frozen=True, slots=True)
class Saving:
    """How much lower a percentile of the candidate is than the control's, in the values' unit.

    Attributes:
        control: the percentile of the control.
        candidate: of the candidate.
        interval: of their difference; None where the samples are too small to bound it.
        detectable: the difference from which on the interval would lie above zero, were the values spread as they are
            here; None likewise.
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
    """Compare the percentile at ``fraction`` of two samples.

    Args:
        control: at least one value.
        candidate: at least one value.
        fraction: 0 to 1; 0.5 is the median. Between two values the percentile is linear.
        confidence: of the interval at least, strictly between 0 and 1.
    """
    estimate = Saving(linear_percentile(control, fraction), linear_percentile(candidate, fraction), None, None)
    tail = (1.0 - confidence) / 2
    lowest = _least_difference(sorted(control), sorted(candidate), fraction, tail)
    highest = _least_difference(sorted(candidate), sorted(control), fraction, tail)
    if lowest is None or highest is None:
        return estimate
    return dataclasses.replace(estimate, interval=(lowest, -highest), detectable=estimate.saving - lowest)


def _least_difference(first: Sequence[float], second: Sequence[float], fraction: float, tail: float) -> float | None:
    """An ordered value of the first minus one of the second: above their shift with probability ``tail`` at most.

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
    """Index in the ordered first sample, negative beyond its end, and in the second, where it stops at the largest."""
    return math.floor(fraction * (first - 1)) - steps, min(math.ceil(fraction * (second - 1)) + steps, second - 1)


def _exceeding(first: int, second: int, fraction: float, steps: int) -> float:
    """The probability that the value of the first exceeds that of the second, when one distribution gave both samples.

    That is when more than ``above`` values of the second lie below the value of the first at index ``below``; of all
    orders of the two samples together each is as probable as any other.
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
