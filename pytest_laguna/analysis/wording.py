# SPDX-License-Identifier: Apache-2.0
"""Figures in sentences: the exact ones stand beside them in the analysis."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

_FEWEST, _EXACT = 6, 17
"""Significant digits: what a person reads, and what tells every number from every other."""


def shown(value: float, bound: float) -> str:
    """A figure in as few digits as show on which side of its bound it lies: what misses one never seems to reach it."""
    return _first_beside(value, bound, (f"{value:.{digits}g}" for digits in range(_FEWEST, _EXACT + 1)))


def shown_in_places(value: float, bound: float, places: int) -> str:
    """The same of a figure that has so many decimal places, or more where it needs them."""
    return _first_beside(value, bound, (f"{value:.{count}f}" for count in itertools.count(places)))


def shown_apart(value: float, other: float) -> tuple[str, str]:
    """Two figures, of which each may be rounded, in their order."""
    first = shown(value, other)
    return first, shown(other, float(first))


def shown_outside(value: float, lowest: float, highest: float) -> tuple[str, str, str]:
    """A figure that lies outside a range, and the ends of the range, of which each may be rounded."""
    if value < lowest:
        seen, low = shown_apart(value, lowest)
        return seen, low, shown(highest, float(seen))
    seen, high = shown_apart(value, highest)
    return seen, shown(lowest, float(seen)), high


def _first_beside(value: float, bound: float, texts: Iterable[str]) -> str:
    return next(text for text in texts if _side(float(text), bound) == _side(value, bound))


def _side(value: float, bound: float) -> int:
    return (value > bound) - (value < bound)
