# SPDX-License-Identifier: Apache-2.0
"""The table at the end of a gate, and what an attempt that did not pass allows."""

from __future__ import annotations

import pytest

from pytest_laguna.evidence.schemas import Analysis, ClauseResult
from pytest_laguna.report.summary import advice, verdict_table
from pytest_laguna.verdict import Verdict


def clause(name: str, verdict: Verdict, reason: str = "") -> ClauseResult:
    return ClauseResult(
        clause=name, nodeid="t.py::t", verdict=verdict, reason=reason, detail="", seconds=1.25, proofs=[]
    )


def test_each_clause_has_its_line() -> None:
    clauses = [clause("short", Verdict.PASS), clause("a-longer-one", Verdict.NOT_PROVEN, f"\x1b[2J{'x' * 300}")]
    analysis = Analysis(verdict=Verdict.NOT_PROVEN, reason="", clauses=clauses, unexercised=[], figures={})
    first, second = verdict_table(analysis)
    assert first == "PASS        short              1.2 s"
    assert second.startswith("NOT_PROVEN  a-longer-one       1.2 s  \\x1b[2Jxxx")
    assert second.endswith("...")
    assert len(second) < 220


@pytest.mark.parametrize(("verdict", "words"), [(Verdict.STOP, "closed"), (Verdict.VOID, "again")])
def test_the_advice_is_the_verdicts(verdict: Verdict, words: str) -> None:
    assert words in advice(verdict)
