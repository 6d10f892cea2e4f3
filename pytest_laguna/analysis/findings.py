# SPDX-License-Identifier: Apache-2.0
"""Findings of rules, and the decision of several of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pytest_laguna.verdict import Verdict, worst

Finding: TypeAlias = tuple[Verdict, str]
"""A verdict and its reason, one line."""

RuleFinding: TypeAlias = "tuple[Verdict | None, str] | None"
"""Result of a rule: None if it holds; a verdict of None if it is only listed."""

RuleLine: TypeAlias = tuple[str, Verdict | None, str]
"""A rule's id, its verdict (None if it is only listed), and the reason."""


def not_applicable(why: str) -> RuleFinding:
    """Return the result of a rule that this lane cannot exercise."""
    return None, f"not applicable: {why}"


def reported(what: str) -> RuleFinding:
    """Return the result of a rule that decides nothing."""
    return None, f"reported: {what}"


def decide(found: Mapping[str, Finding | None], good: str) -> Finding:
    """Return the worst verdict with the reason of the first rule that gave it.

    Args:
        found: findings by rule; None for a rule that holds.
        good: the reason if all rules hold; the verdict is PASS then.

    Returns:
        A reason that begins with the rule's id.
    """
    against = [(finding[0], f"{name}: {finding[1]}") for name, finding in found.items() if finding is not None]
    return gravest(against) or (Verdict.PASS, good)


def decide_clause(lines: Sequence[RuleLine]) -> Finding:
    """Return the verdict of one clause and the reason of the first rule that decided it."""
    judged = [(rule, verdict, reason) for rule, verdict, reason in lines if verdict is not None]
    if not judged:
        return Verdict.NOT_PROVEN, "rules: seen none applied; expected at least one"
    against = [(verdict, f"{rule}: {reason}") for rule, verdict, reason in judged if verdict is not Verdict.PASS]
    listed = len(lines) - len(judged)
    good = f"{len(judged)} rules hold{f', {listed} are listed only' if listed else ''}"
    return decisive(against) or (Verdict.PASS, good)


def decisive(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that decides a clause, or None if there are no findings.

    The first broken contract comes before all others: whatever else is missing, it stays broken.
    """
    broken = next((finding for finding in findings if finding[0] is Verdict.FAIL), None)
    return broken or gravest(findings)


def gravest(findings: Sequence[Finding]) -> Finding | None:
    """Return the first finding with the worst verdict, or None if there are no findings."""
    if not findings:
        return None
    verdict = worst(verdict for verdict, _ in findings)
    return next(finding for finding in findings if finding[0] is verdict)
