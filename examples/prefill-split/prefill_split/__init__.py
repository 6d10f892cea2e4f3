# SPDX-License-Identifier: Apache-2.0
"""The candidate: prefill in steps of 16 tokens instead of 512; behind a flag, off by default, failing closed."""

from __future__ import annotations

from collections.abc import Mapping

FLAG = "PREFILL_SPLIT"
WIDTHS = {"0": 512, "1": 16}


def step_tokens(environment: Mapping[str, str]) -> int:
    """Tokens of one prefill step; raises ValueError for a value other than 0 and 1."""
    value = environment.get(FLAG, "0")
    if value not in WIDTHS:
        message = f"{FLAG}={value!r}: expected 0 or 1"
        raise ValueError(message)
    return WIDTHS[value]
