# SPDX-License-Identifier: Apache-2.0
"""Figures in sentences: the exact ones stand beside them in the analysis."""

from __future__ import annotations

_FEWEST, _EXACT = 6, 17
"""Significant digits: what a person reads, and what tells every number from every other."""


def shown(value: float, bound: float) -> str:
    """A figure in as few digits as show on which side of its bound it lies: what misses one never seems to reach it."""
    lengths = range(_FEWEST, _EXACT + 1)
    return next(text for digits in lengths if _side(float(text := f"{value:.{digits}g}"), bound) == _side(value, bound))


def shown_apart(value: float, other: float) -> tuple[str, str]:
    """Two figures, of which each may be rounded, in their order."""
    first = shown(value, other)
    return first, shown(other, float(first))


def _side(value: float, bound: float) -> int:
    return (value > bound) - (value < bound)
