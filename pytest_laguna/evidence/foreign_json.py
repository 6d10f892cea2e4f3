# SPDX-License-Identifier: Apache-2.0
"""JSON of other tools: not canonical, so the parser refuses ambiguous text."""

from __future__ import annotations

import json
import math
from typing import NoReturn

from pytest_laguna.verdict import JSON, UnusableEvidenceError


def parse_foreign_json(text: str, name: str) -> JSON:
    """Parse a tool's output; errors call it ``name``.

    Raises:
        UnusableEvidenceError: it is not JSON, an object has a key twice, or a number is not finite.
    """
    try:
        value: JSON = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except (ValueError, RecursionError) as error:
        raise UnusableEvidenceError(f"{name}: not strict JSON ({error}); expected the tool's own output") from error
    return value


def _unique(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} twice in one object")
    return found


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond every finite number")
    return value
