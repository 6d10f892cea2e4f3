# SPDX-License-Identifier: Apache-2.0
"""Statistics of the deciding rules, on the standard library alone: percentile, t interval, sign-flip test and power.

The quantile of Student's t comes from the regularised incomplete beta function, evaluated by its continued fraction
(NIST Digital Library of Mathematical Functions, 8.17.22), and the power of the test from the chi density.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence

_TINY = 1e-300
_CONVERGED = 1e-16
_TERMS = 10_000
_RESOLUTION = 1e-12
"""Of a probability, or of an effect in parts of a larger one."""
_PANELS = 4_000
"""An even number of panels of Simpson's rule; the integrand is smooth, and its error is below 1e-10."""
_LARGEST_SCALE = 12.0
"""Above it the density of a sample's deviation in units of the true one is below 1e-30 for any sample."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Two-sided confidence interval of a mean, in the unit of the values."""

    mean: float
    low: float
    high: float


def linear_percentile(values: Sequence[float], fraction: float) -> float:
    """Return the linear percentile at ``fraction`` (0 to 1); ValueError for another fraction or without values."""
    if not values or not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction {fraction} of {len(values)} values; expected 0 to 1 and at least one value")
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def sample_stdev(values: Sequence[float]) -> float:
    """Return the standard deviation with n - 1 in its denominator; ValueError for fewer than two values."""
    return statistics.stdev(values)


def t_cumulative(value: float, freedom: int) -> float:
    """Return the probability of Student's t with ``freedom`` degrees of freedom being at most ``value``."""
    tail = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + value * value))
    return tail if value < 0 else 1.0 - tail


def t_quantile(probability: float, freedom: int) -> float:
    """Return the ``probability`` quantile of Student's t; ValueError unless 0 < p < 1 and ``freedom`` is at least 1."""
    if not 0.0 < probability < 1.0 or freedom < 1:
        raise ValueError(f"probability {probability}, {freedom} degrees of freedom; expected 0 < p < 1 and at least 1")
    if probability >= 0.5:  # noqa: PLR2004 - the lower tail keeps all its digits
        return -t_quantile(1.0 - probability, freedom) if probability > 0.5 else 0.0  # noqa: PLR2004
    low = -1.0
    while t_cumulative(low, freedom) > probability:
        low *= 2.0
    high = 0.0
    while low < (middle := (low + high) / 2) < high:
        if t_cumulative(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def t_interval(values: Sequence[float], confidence: float) -> Interval:
    """Return the two-sided t interval of the mean; ValueError unless there are two values and 0 < confidence < 1."""
    mean = statistics.fmean(values)
    quantile = t_quantile((1.0 + confidence) / 2, len(values) - 1)
    half = quantile * sample_stdev(values) / math.sqrt(len(values))
    return Interval(mean=mean, low=mean - half, high=mean + half)


def median_interval(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Return two of the values around the median with at least this confidence, whatever the distribution.

    Of all pairs of ranks with the same distance from either end it is the narrowest to cover enough: below rank k lies
    the median with the probability of at most k - 1 heads in n throws of a coin. None if even the lowest and the
    highest value cover too little; ValueError if the confidence is not strictly between 0 and 1.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence {confidence}; expected 0 < confidence < 1")
    ordered, count = sorted(values), len(values)
    outside, found = 0, None
    for rank in range(count // 2):
        outside += 2 * math.comb(count, rank)
        if outside > (1.0 - confidence) * 2**count:
            break
        found = ordered[rank], ordered[count - 1 - rank]
    return found


def sign_flip_p(values: Sequence[float]) -> float:
    """Return the exact one-sided p of a mean above zero, over all 2^n signs of the values; ValueError without values.

    ``math.fsum`` rounds each sum once, so equal sums compare equal and the result is the same on every machine.
    """
    if not values:
        raise ValueError("no value; expected at least one")
    seen = math.fsum(values)
    sums = [math.fsum(flipped) for flipped in _sign_flips(values)]
    return sum(flipped >= seen for flipped in sums) / len(sums)


def smallest_sign_flip_p(count: int) -> float:
    """Return the smallest possible p of ``sign_flip_p`` for ``count`` values."""
    return 0.5**count


def superiority_power(*, stdev: float, count: int, confidence: float, excess: float) -> float:
    """Return the probability of ``t_interval`` lying above a margin.

    Args:
        stdev: true standard deviation of one value, above 0.
        count: number of values, at least two.
        confidence: of the two-sided interval.
        excess: the true mean minus the margin, in the values' unit.
    """
    freedom = count - 1
    quantile = t_quantile((1.0 + confidence) / 2, freedom)
    shift = excess * math.sqrt(count) / stdev

    def given(scale: float) -> float:
        return _scale_density(scale, freedom) * _normal_cumulative(shift - quantile * scale)

    step = _LARGEST_SCALE / _PANELS
    inner = math.fsum((4 if panel % 2 else 2) * given(panel * step) for panel in range(1, _PANELS))
    return (given(0.0) + inner + given(_LARGEST_SCALE)) * step / 3


def _sign_flips(values: Sequence[float]) -> Iterator[Sequence[float]]:
    for signs in itertools.product((1.0, -1.0), repeat=len(values)):
        yield [sign * value for sign, value in zip(signs, values, strict=True)]


def _normal_cumulative(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2.0))


def _scale_density(scale: float, freedom: int) -> float:
    """Return the density of a sample's deviation in units of the true one: a chi over the root of its freedom."""
    if scale == 0.0:
        return math.sqrt(2.0 / math.pi) if freedom == 1 else 0.0
    half = freedom / 2
    logarithm = half * math.log(half) - math.lgamma(half) + (freedom - 1) * math.log(scale) - half * scale * scale
    return 2.0 * math.exp(logarithm)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, by the side with the faster continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    front = math.exp(logarithm)
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the beta function's continued fraction from the front (Lentz, with Thompson and Barnett)."""
    numerator, denominator = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    value = denominator
    for term in range(1, _TERMS):
        even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
        for coefficient in (even, odd):
            denominator = 1.0 / _away_from_zero(1.0 + coefficient * denominator)
            numerator = _away_from_zero(1.0 + coefficient / numerator)
            change = numerator * denominator
            value *= change
        if abs(change - 1.0) < _CONVERGED:
            return value
    raise ArithmeticError(f"incomplete beta function at {a}, {b}, {x}: not converged; expected it in {_TERMS} terms")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def binomial_interval(successes: int, count: int, confidence: float) -> tuple[float, float]:
    """Return the exact two-sided interval of a probability; ValueError for impossible counts.

    Source: C. J. Clopper and E. S. Pearson, Biometrika 26, 1934.
    """
    if not 0 <= successes <= count or count < 1:
        raise ValueError(
            f"successes: {successes} of {count} trials; expected 0 to the number of trials, and at least one trial"
        )
    tail = (1.0 - confidence) / 2
    low = 0.0 if successes == 0 else _crossing(lambda p: _at_least(successes, count, p) >= tail)
    high = 1.0 if successes == count else _crossing(lambda p: 1.0 - _at_least(successes + 1, count, p) <= tail)
    return low, high


def minimum_detectable_effect(*, stdev: float, count: int, confidence: float, power: float) -> float:
    """Return the smallest mean above a margin found by ``count`` values with probability ``power``, in their unit.

    Args: as ``superiority_power``; ``stdev`` above 0.
    """
    largest = stdev
    while superiority_power(stdev=stdev, count=count, confidence=confidence, excess=largest) < power:
        largest *= 2.0
    found = _crossing(
        lambda part: superiority_power(stdev=stdev, count=count, confidence=confidence, excess=part * largest) >= power
    )
    return found * largest


def count_needed(*, stdev: float, excess: float, confidence: float, power: float, most: int) -> int | None:
    """Return the smallest count from two to ``most`` to find ``excess`` with probability ``power``, or None.

    Args: as ``superiority_power``; ``stdev`` and ``excess`` above 0.
    """

    def enough(count: int) -> bool:
        return superiority_power(stdev=stdev, count=count, confidence=confidence, excess=excess) >= power

    high = 2
    while not enough(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = max(2, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def _at_least(successes: int, count: int, probability: float) -> float:
    """Return the probability of at least so many successes."""
    return math.fsum(
        math.comb(count, number) * probability**number * (1.0 - probability) ** (count - number)
        for number in range(successes, count + 1)
    )


def _crossing(holds: Callable[[float], bool]) -> float:
    """Return the threshold between 0 and 1 of a condition true from there on."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high and high - low > _RESOLUTION:
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
