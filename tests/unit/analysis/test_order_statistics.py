# SPDX-License-Identifier: Apache-2.0
"""The interval of a percentile's difference against full enumeration, and against samples whose shift is known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_laguna.analysis.order_statistics import _exceeding, _places, compare_percentile

VALUES = st.lists(st.integers(0, 10**9), min_size=8, max_size=40)


@pytest.mark.parametrize("fraction", [0.5, 0.9])
@pytest.mark.parametrize(("first", "second"), [(3, 3), (4, 3), (3, 5), (5, 5)])
def test_the_probability_is_that_of_all_orders_of_the_two_samples(first: int, second: int, fraction: float) -> None:
    positions = range(first + second)
    orders = list(itertools.combinations(positions, first))
    for steps in range(3):
        below, above = _places(first, second, fraction, steps)
        if below < 0:
            continue
        exceeding = 0
        for ours in orders:
            theirs = [position for position in positions if position not in ours]
            exceeding += ours[below] > theirs[above]
        assert _exceeding(first, second, fraction, steps) == pytest.approx(exceeding / len(orders), abs=1e-12)


@pytest.mark.parametrize(
    ("draw", "fraction"),
    [
        (lambda rng: rng.expovariate(1.0), 0.5),
        (lambda rng: rng.expovariate(1.0), 0.9),
        (lambda rng: rng.gauss(0.0, 1.0), 0.5),
        (lambda rng: rng.paretovariate(1.5), 0.5),
    ],
    ids=["skewed", "skewed tail", "normal", "heavy tail"],
)
def test_the_interval_holds_the_shift_as_often_as_it_says(
    draw: Callable[[random.Random], float], fraction: float
) -> None:
    rng = random.Random(20260725)  # noqa: S311 - a test
    held, repeats, shift = 0, 1500, 0.75
    for _ in range(repeats):
        control = [draw(rng) + shift for _ in range(31)]
        seen = compare_percentile(control, [draw(rng) for _ in range(31)], fraction, 0.95)
        assert seen.interval is not None
        held += seen.interval[0] <= shift <= seen.interval[1]
    assert held / repeats > 0.95 - 3 * (0.95 * 0.05 / repeats) ** 0.5


def test_an_effect_of_the_detectable_size_is_told_from_nothing_and_a_smaller_one_is_not() -> None:
    control = list(range(1000, 1031))
    candidate = list(range(1000, 1031))
    nothing = compare_percentile(control, candidate, 0.5, 0.95)
    assert nothing.saving == 0
    assert nothing.interval is not None
    assert nothing.detectable is not None
    assert nothing.interval == (-nothing.detectable, nothing.detectable)
    for saving, told in ((nothing.detectable, False), (nothing.detectable + 1, True)):
        seen = compare_percentile(control, [value - saving for value in candidate], 0.5, 0.95)
        assert seen.interval is not None
        assert seen.saving == saving
        assert (seen.interval[0] > 0) is told


@pytest.mark.parametrize("count", range(4, 41))
def test_the_interval_is_the_closest_that_the_confidence_allows(count: int) -> None:
    values = list(range(count))
    steps = next(steps for steps in range(count) if _exceeding(count, count, 0.5, steps) <= 0.025)
    below, above = (count - 1) // 2 - steps, min(count // 2 + steps, count - 1)
    assert compare_percentile(values, values, 0.5, 0.95).interval == (below - above, above - below)


def test_little_confidence_needs_no_step() -> None:
    assert compare_percentile(range(30), range(30), 0.5, 0.01).interval == (-1, 1)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_values_bound_nothing(count: int) -> None:
    seen = compare_percentile(list(range(count)), list(range(count)), 0.5, 0.95)
    assert (seen.interval, seen.detectable) == (None, None)


@given(VALUES, VALUES, st.sampled_from([0.1, 0.5, 0.9]))
def test_the_interval_turns_round_with_the_samples_and_holds_what_was_seen(
    control: list[int], candidate: list[int], fraction: float
) -> None:
    seen = compare_percentile(control, candidate, fraction, 0.95)
    turned = compare_percentile(candidate, control, fraction, 0.95)
    assert turned.saving == -seen.saving
    if seen.interval is None:
        assert turned.interval is None
    else:
        low, high = seen.interval
        assert low <= seen.saving <= high
        assert turned.interval == (-high, -low)


def test_more_values_make_a_narrower_interval() -> None:
    rng = random.Random(1)  # noqa: S311 - a test
    widths = []
    for count in (31, 310, 3100):
        control, candidate = ([rng.random() for _ in range(count)] for _ in range(2))
        interval = compare_percentile(control, candidate, 0.5, 0.95).interval
        assert interval is not None
        widths.append(interval[1] - interval[0])
    assert widths[0] > 2 * widths[1] > 4 * widths[2]
