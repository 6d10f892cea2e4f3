# SPDX-License-Identifier: Apache-2.0
"""Rounded figures for sentences; the analysis holds the exact ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

_FEWEST, _EXACT = 6, 17
"""Significant digits: enough for a reader, and enough to distinguish any two numbers."""


def shown(value: float, bound: float) -> str:
    """Format a figure with as few digits as keep it on its side of the bound."""
    return _first_beside(value, bound, (f"{value:.{digits}g}" for digits in range(_FEWEST, _EXACT + 1)))


def shown_in_places(value: float, bound: float, places: int) -> str:
    """Format a figure with so many decimal places, or more to keep it on its side of the bound."""
    return _first_beside(value, bound, (f"{value:.{count}f}" for count in itertools.count(places)))


def shown_apart(value: float, other: float) -> tuple[str, str]:
    """Format two figures, rounded without changing their order."""
    first = shown(value, other)
    return first, shown(other, float(first))


def shown_outside(value: float, lowest: float, highest: float) -> tuple[str, str, str]:
    """Format a figure outside a range and the range's ends, rounded without moving it inside."""
    if value < lowest:
        seen, low = shown_apart(value, lowest)
        return seen, low, shown(highest, float(seen))
    seen, high = shown_apart(value, highest)
    return seen, shown(lowest, float(seen)), high


def _first_beside(value: float, bound: float, texts: Iterable[str]) -> str:
    return next(text for text in texts if _side(float(text), bound) == _side(value, bound))


def _side(value: float, bound: float) -> int:
    return (value > bound) - (value < bound)
