# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_laguna.analysis.endpoint.wording import shown, shown_apart

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
