# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_laguna.analysis.wording import shown, shown_apart, shown_in_places, shown_outside

NUMBERS = st.floats(-1000.0, 1000.0)


@pytest.mark.parametrize(
    ("value", "bound", "text"),
    [
        (-0.52938471029384710, 1.0, "-0.529385"),
        (0.9999999, 1.0, "0.9999999"),
        (1.0, 1.0, "1"),
        (1.0000000000000002, 1.0, "1.0000000000000002"),
        (94.92003934159611, 94.92003934159611, "94.92003934159611"),
        (94.9200393, 94.92003934159611, "94.92"),
    ],
)
def test_a_figure_is_short_and_stays_on_its_side_of_the_bound(value: float, bound: float, text: str) -> None:
    assert shown(value, bound) == text


@given(NUMBERS, st.one_of(st.just(0), st.integers(-9, 9)), st.integers(5, 16))
def test_two_figures_that_are_nearly_equal_are_told_apart(value: float, steps: int, digits: int) -> None:
    other = value + steps * 10.0**-digits
    one, two = map(float, shown_apart(value, other))
    assert (one > two, one < two) == (value > other, value < other)
    assert math.isclose(one, value, rel_tol=1e-5)


@pytest.mark.parametrize(
    ("value", "bound", "text"),
    [
        (1.1, 1.1, "1.100"),
        (5.9, 1.1, "5.900"),
        (1.10001, 1.1, "1.10001"),
        (1.0999, 1.1, "1.0999"),
        (-1e-7, 0, "-0.0000001"),
    ],
)
def test_a_figure_has_its_places_and_more_only_beside_its_bound(value: float, bound: float, text: str) -> None:
    assert shown_in_places(value, bound, 3) == text


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (1.0, ("1", "2", "3")),
        (3.5, ("3.5", "2", "3")),
        (1.9999999, ("1.9999999", "2", "3")),
        (3.0000001, ("3.0000001", "2", "3")),
    ],
)
def test_a_figure_outside_a_range_is_told_outside_it(value: float, texts: tuple[str, str, str]) -> None:
    assert shown_outside(value, 2.0, 3.0) == texts


@given(NUMBERS, st.floats(0.0, 1.0), st.integers(5, 16))
def test_a_figure_just_outside_a_range_is_told_outside_it(low: float, width: float, digits: int) -> None:
    high, step = low + width, 10.0**-digits
    above, below = max(high + step, math.nextafter(high, math.inf)), min(low - step, math.nextafter(low, -math.inf))
    seen, _, most = map(float, shown_outside(above, low, high))
    assert seen > most
    seen, least, _ = map(float, shown_outside(below, low, high))
    assert seen < least
