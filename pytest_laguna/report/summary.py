# SPDX-License-Identifier: Apache-2.0
"""End of a gate session in the terminal: a line for each clause, and the next step."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_laguna.evidence.files import printable
from pytest_laguna.evidence.schemas import Analysis
from pytest_laguna.verdict import Verdict

_REASON = 160
"""Characters of a reason in the table; the report has all of it."""


def verdict_table(analysis: Analysis) -> Iterator[str]:
    """Each clause with its verdict, its seconds and the first reason, if it did not pass."""
    width = max((len(result.clause) for result in analysis.clauses), default=0)
    for result in analysis.clauses:
        reason = printable(result.reason)
        shown = reason if len(reason) <= _REASON else f"{reason[: _REASON - 3]}..."
        yield f"{result.verdict:<10}  {printable(result.clause):<{width}}  {result.seconds:8.1f} s  {shown}".rstrip()


def advice(verdict: Verdict) -> str:
    """Next step after an attempt without PASS."""
    if verdict.closes:
        return "the campaign is closed on this lane; only a dated [[amendments]] entry in its file opens a new attempt"
    return "fix the cause in the reason, then run the same command again; the next receipt lists this attempt"
