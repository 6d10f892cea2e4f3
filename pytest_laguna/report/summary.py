# SPDX-License-Identifier: Apache-2.0
"""The end of a gate session in the terminal: a line for each clause, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_laguna.evidence.files import printable
from pytest_laguna.evidence.schemas import Analysis
from pytest_laguna.verdict import Verdict

_REASON = 160
"""Letters of a reason in the table; the whole of it is in the report."""


def verdict_table(analysis: Analysis) -> Iterator[str]:
    """Each clause with its verdict, its seconds and, where something speaks against it, the first reason."""
    width = max((len(result.clause) for result in analysis.clauses), default=0)
    for result in analysis.clauses:
        reason = printable(result.reason)
        shown = reason if len(reason) <= _REASON else f"{reason[: _REASON - 3]}..."
        yield f"{result.verdict:<10}  {printable(result.clause):<{width}}  {result.seconds:8.1f} s  {shown}".rstrip()


def advice(verdict: Verdict) -> str:
    """What an attempt that did not pass allows."""
    if verdict.closes:
        return (
            "the campaign is closed on this lane: only a dated [[amendments]] entry in its file opens another attempt"
        )
    return "mend what the reason names, then run the same command again; the next receipt lists this attempt"
