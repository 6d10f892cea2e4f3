# SPDX-License-Identifier: Apache-2.0
"""The statistics against values that scipy 1.17.1 gave, and against what they must satisfy whatever the values."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_laguna.analysis import statistics

# degrees of freedom, probability, scipy.stats.t.ppf
QUANTILES = [
    (1, 0.0005, -636.6192487687196),
    (1, 0.025, -12.706204736174705),
    (1, 0.2, -1.3763819204711736),
    (1, 0.75, 1.0000000000000002),
    (1, 0.95, 6.313751514675037),
    (1, 0.975, 12.706204736174694),
    (1, 0.995, 63.656741162871526),
    (2, 0.0005, -31.59905457644362),
    (2, 0.025, -4.302652729749464),
    (2, 0.2, -1.060660171779821),
    (2, 0.75, 0.8164965809277261),
    (2, 0.95, 2.9199855803537242),
    (2, 0.975, 4.302652729749462),
    (2, 0.995, 9.924843200918287),
    (3, 0.0005, -12.923978636687481),
    (3, 0.025, -3.1824463052837086),
    (3, 0.2, -0.9784723123633038),
    (3, 0.75, 0.7648923284043444),
    (3, 0.95, 2.3533634348018233),
    (3, 0.975, 3.1824463052837078),
    (3, 0.995, 5.840909309733355),
    (4, 0.0005, -8.610301581379275),
    (4, 0.025, -2.7764451051977943),
    (4, 0.2, -0.9409645772351811),
    (4, 0.75, 0.7406970841126829),
    (4, 0.95, 2.1318467863266495),
    (4, 0.975, 2.7764451051977934),
    (4, 0.995, 4.604094871349992),
    (5, 0.0005, -6.86882662588111),
    (5, 0.025, -2.5705818356363155),
    (5, 0.2, -0.9195437802408267),
    (5, 0.75, 0.7266868438004226),
    (5, 0.95, 2.0150483733330233),
    (5, 0.975, 2.5705818356363146),
    (5, 0.995, 4.032142983555228),
    (7, 0.0005, -5.407882520861726),
    (7, 0.025, -2.3646242515927844),
    (7, 0.2, -0.8960296443137649),
    (7, 0.75, 0.7111417780817866),
    (7, 0.95, 1.8945786050900062),
    (7, 0.975, 2.364624251592784),
    (7, 0.995, 3.4994832973504924),
    (11, 0.0005, -4.436979338234449),
    (11, 0.025, -2.2009851600916392),
    (11, 0.2, -0.8755299780738814),
    (11, 0.75, 0.6974453275598814),
    (11, 0.95, 1.7958848187040433),
    (11, 0.975, 2.200985160091639),
    (11, 0.995, 3.1058065155392804),
    (15, 0.0005, -4.072765195903791),
    (15, 0.025, -2.131449545559776),
    (15, 0.2, -0.8662449731949516),
    (15, 0.75, 0.6911969489584897),
    (15, 0.95, 1.753050355692572),
    (15, 0.975, 2.131449545559776),
    (15, 0.995, 2.946712883475238),
    (31, 0.0005, -3.63345634975833),
    (31, 0.025, -2.039513446396408),
    (31, 0.2, -0.8533702956969434),
    (31, 0.75, 0.6824863060025721),
    (31, 0.95, 1.6955187825458649),
    (31, 0.975, 2.039513446396408),
    (31, 0.995, 2.744041919294269),
]
# degrees of freedom, value, scipy.stats.t.cdf
CUMULATIVE = [
    (1, -30.0, 0.010606402405535426),
    (1, -3.0, 0.10241638234956672),
    (1, -0.25, 0.42202086962263063),
    (1, 0.5, 0.6475836176504333),
    (1, 2.0, 0.8524163823495667),
    (1, 8.0, 0.9604165758394344),
    (3, -30.0, 4.067640213581979e-05),
    (3, -3.0, 0.02883444281121865),
    (3, -0.25, 0.4093646112144148),
    (3, 0.5, 0.6742760175759245),
    (3, 2.0, 0.9303370157205785),
    (3, 8.0, 0.9979617112061072),
    (7, -30.0, 5.894234440366572e-09),
    (7, -3.0, 0.009971063065996268),
    (7, -0.25, 0.4048827929239259),
    (7, 0.5, 0.6837964321553578),
    (7, 2.0, 0.957190335718512),
    (7, 8.0, 0.9999544253941456),
    (15, -30.0, 4.157403597162469e-15),
    (15, -3.0, 0.004486368738611663),
    (15, -0.25, 0.40298943871245124),
    (15, 0.5, 0.6878349432399622),
    (15, 2.0, 0.96802749635764),
    (15, 8.0, 0.9999995694534809),
]
# values, standard deviation, excess over the margin, scipy.stats.nct.sf at the quantile of 0.975
POWERS = [
    (2, 0.005, 0.01, 0.17566400371363736),
    (2, 0.005, 0.0, 0.025000000000000022),
    (2, 0.005, -0.01, 4.3407384122928255e-05),
    (2, 0.016, 0.0075, 0.05101658127569791),
    (3, 0.005, 0.01, 0.47074770619294315),
    (3, 0.005, 0.0, 0.02500000000000002),
    (3, 0.005, -0.01, 1.7250854918071328e-06),
    (3, 0.016, 0.0075, 0.07425099397526842),
    (4, 0.005, 0.01, 0.7549838397242711),
    (4, 0.005, 0.0, 0.025000000000000022),
    (4, 0.005, -0.01, 7.738973970271594e-08),
    (4, 0.016, 0.0075, 0.10015517729769895),
    (6, 0.005, 0.01, 0.9705035691763313),
    (6, 0.005, 0.0, 0.025000000000000026),
    (6, 0.005, -0.01, 2.1408499003356725e-10),
    (6, 0.016, 0.0075, 0.15418075879078927),
    (8, 0.005, 0.01, 0.9976016751988097),
    (8, 0.005, 0.0, 0.02500000000000005),
    (8, 0.005, -0.01, 7.936129771170205e-13),
    (8, 0.016, 0.0075, 0.2089154177132883),
    (16, 0.005, 0.01, 0.9999999770300491),
    (16, 0.005, 0.0, 0.024999999999999967),
    (16, 0.005, -0.01, 6.257587923732166e-22),
    (16, 0.016, 0.0075, 0.41878669754859843),
]

CONTRASTS = [0.01, 0.012, 0.008, 0.011]
"""The t interval of scipy at a confidence of 0.95 is 0.007532469116203984 to 0.012967530883796013."""


@pytest.mark.parametrize(("freedom", "probability", "expected"), QUANTILES)
def test_quantile_of_t(freedom: int, probability: float, expected: float) -> None:
    assert statistics.t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(("freedom", "value", "expected"), CUMULATIVE)
def test_cumulative_of_t(freedom: int, value: float, expected: float) -> None:
    assert statistics.t_cumulative(value, freedom) == pytest.approx(expected, rel=1e-11)


def test_of_a_t_without_bound_nothing_lies_beyond() -> None:
    assert (statistics.t_cumulative(-math.inf, 3), statistics.t_cumulative(math.inf, 3)) == (0.0, 1.0)


def test_a_fraction_that_does_not_converge_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_TERMS", 2)
    with pytest.raises(
        ArithmeticError, match=r"beta function at 0\.5, 1\.5, 0\.25: not converged; expected it in 2 terms"
    ):
        statistics.t_cumulative(1.0, 3)


@pytest.mark.parametrize(("count", "stdev", "excess", "expected"), POWERS)
def test_power_of_superiority(count: int, stdev: float, excess: float, expected: float) -> None:
    seen = statistics.superiority_power(stdev=stdev, count=count, confidence=0.95, excess=excess)
    assert seen == pytest.approx(expected, abs=1e-9)


@given(st.floats(1e-6, 1 - 1e-6), st.integers(1, 64))
def test_quantile_and_cumulative_are_inverse(probability: float, freedom: int) -> None:
    assert statistics.t_cumulative(statistics.t_quantile(probability, freedom), freedom) == pytest.approx(probability)


@pytest.mark.parametrize(("probability", "freedom"), [(0.0, 3), (1.0, 3), (1.5, 3), (0.5, 0)])
def test_a_quantile_that_there_is_not_is_refused(probability: float, freedom: int) -> None:
    with pytest.raises(
        ValueError, match=rf"probability {probability}, {freedom} degrees of freedom; expected 0 < p < 1"
    ):
        statistics.t_quantile(probability, freedom)


def test_the_median_of_t_is_zero() -> None:
    assert statistics.t_quantile(0.5, 3) == 0.0


def test_interval_of_four_contrasts() -> None:
    interval = statistics.t_interval(CONTRASTS, 0.95)
    assert interval.mean == pytest.approx(0.01025, rel=1e-15)
    assert (interval.low, interval.high) == pytest.approx((0.007532469116203984, 0.012967530883796013), rel=1e-13)


def test_interval_needs_two_values() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        statistics.t_interval([0.01], 0.95)


def test_sign_flips_by_hand() -> None:
    """Of eight sign patterns only the values as they are, and those without the smallest, reach the sum."""
    assert statistics.sign_flip_p([3.0, 2.0, 1.0]) == 1 / 8
    assert statistics.sign_flip_p([3.0, 2.0, -1.0]) == 2 / 8
    assert statistics.sign_flip_p([1.0, -1.0]) == 3 / 4
    assert statistics.sign_flip_p([-3.0, -2.0]) == 1.0


@given(st.lists(st.floats(-0.1, 0.1), min_size=1, max_size=8))
def test_sign_flips_do_not_depend_on_the_order(values: list[float]) -> None:
    p = statistics.sign_flip_p(values)
    assert p == statistics.sign_flip_p(values[::-1])
    assert statistics.smallest_sign_flip_p(len(values)) <= p <= 1.0


def test_sign_flips_need_a_value() -> None:
    with pytest.raises(ValueError, match="at least one"):
        statistics.sign_flip_p([])


def test_the_smallest_p_is_reached_by_positive_values() -> None:
    for count in range(1, 9):
        assert statistics.sign_flip_p([0.5] * count) == statistics.smallest_sign_flip_p(count)


def test_power_rises_with_the_count_and_is_the_level_at_the_margin() -> None:
    powers = [statistics.superiority_power(stdev=0.005, count=n, confidence=0.95, excess=0.01) for n in range(2, 12)]
    assert all(fewer < more for fewer, more in itertools.pairwise(powers))
    at_margin = statistics.superiority_power(stdev=0.005, count=4, confidence=0.95, excess=0.0)
    assert at_margin == pytest.approx(0.025, abs=1e-9)


def test_linear_percentile() -> None:
    assert statistics.linear_percentile([5.0, 1.0, 3.0, 2.0, 4.0], 0.1) == pytest.approx(1.4)
    assert statistics.linear_percentile([7.0], 0.9) == 7.0
    assert statistics.linear_percentile([1.0, 2.0], 1.0) == 2.0
    assert statistics.linear_percentile([1.0, 2.0], 0.0) == 1.0
    assert statistics.linear_percentile([1.0, 3.0], 0.75) == 2.5
    assert statistics.linear_percentile([float(n) for n in range(31)], 0.9) == 27.0


@pytest.mark.parametrize(("values", "fraction"), [([], 0.5), ([1.0], 1.5), ([1.0], -0.1), ([1.0], math.nan)])
def test_a_percentile_of_nothing_or_beyond_is_refused(values: list[float], fraction: float) -> None:
    with pytest.raises(ValueError, match="expected 0 to 1"):
        statistics.linear_percentile(values, fraction)


def test_sample_deviation_divides_by_one_less() -> None:
    assert statistics.sample_stdev([1.0, 2.0, 3.0, 4.0]) == pytest.approx(math.sqrt(5 / 3))


# For the median of n values: the rank whose value and its mirror enclose it, from tables of the sign test at 5 %.
RANKS = [(6, 1), (8, 1), (9, 2), (12, 3), (13, 3), (20, 6), (25, 8), (40, 14)]


@pytest.mark.parametrize(("count", "rank"), RANKS)
def test_the_interval_of_a_median_has_the_ranks_of_the_sign_test(count: int, rank: int) -> None:
    values = [float(value) for value in range(count, 0, -1)]
    assert statistics.median_interval(values, 0.95) == (rank, count + 1 - rank)


def test_five_values_are_too_few_for_an_interval_of_a_median() -> None:
    assert statistics.median_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.95) is None
    assert statistics.median_interval([], 0.95) is None
    for confidence in (0.0, 1.0):
        with pytest.raises(ValueError, match="confidence"):
            statistics.median_interval([1.0], confidence)


def test_ranks_that_cover_just_enough_are_an_interval_of_a_median() -> None:
    assert statistics.median_interval([2.0, 1.0], 0.5) == (1.0, 2.0)


# successes, count, confidence, the exact interval: where all or none succeeded, the root of the tail
BINOMIAL = [
    (0, 10, 0.95, (0.0, 1 - 0.025 ** (1 / 10))),
    (10, 10, 0.95, (0.025 ** (1 / 10), 1.0)),
    (0, 1, 0.9, (0.0, 0.95)),
    (1, 1, 0.9, (0.05, 1.0)),
    (1, 10, 0.95, (0.002528578544, 0.445016117028)),
    (5, 10, 0.95, (0.187086028447, 0.812913971553)),
]


@pytest.mark.parametrize(("successes", "count", "confidence", "expected"), BINOMIAL)
def test_exact_interval_of_a_probability(
    successes: int, count: int, confidence: float, expected: tuple[float, float]
) -> None:
    seen = statistics.binomial_interval(successes, count, confidence)
    assert seen == pytest.approx(expected, abs=2e-12)
    assert (seen[0] == 0.0, seen[1] == 1.0) == (successes == 0, successes == count)


@pytest.mark.parametrize(("successes", "count"), [(-1, 3), (4, 3), (0, 0)])
def test_more_successes_than_tries_have_no_interval(successes: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"{successes} of {count} trials; expected 0 to the number"):
        statistics.binomial_interval(successes, count, 0.95)


@pytest.mark.parametrize(("count", "stdev", "power"), [(2, 50.0, 0.9), (4, 0.005, 0.8), (16, 0.25, 0.5)])
def test_what_is_detectable_has_the_power_that_was_asked_for(count: int, stdev: float, power: float) -> None:
    found = statistics.minimum_detectable_effect(stdev=stdev, count=count, confidence=0.95, power=power)
    seen = statistics.superiority_power(stdev=stdev, count=count, confidence=0.95, excess=found)
    assert seen == pytest.approx(power, abs=1e-9)


# The powers of 2 to 6 values for an excess of 0.01 are 0.18, 0.47, 0.75, 0.91 and 0.97, and of 8 values 0.998.
COUNTS = [
    (0.1, 9, 2),
    (0.2, 9, 3),
    (0.2, 2, None),
    (0.5, 9, 4),
    (0.8, 9, 5),
    (0.8, 5, 5),
    (0.8, 4, None),
    (0.98, 99, 7),
]


@pytest.mark.parametrize(("power", "most", "expected"), COUNTS)
def test_how_many_values_find_an_effect(power: float, most: int, expected: int | None) -> None:
    seen = statistics.count_needed(stdev=0.005, excess=0.01, confidence=0.95, power=power, most=most)
    assert repr(seen) == repr(expected)
