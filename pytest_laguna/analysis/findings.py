# SPDX-License-Identifier: Apache-2.0
"""What rules find, and what several of them come to together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pytest_laguna.verdict import Verdict, worst

Finding: TypeAlias = tuple[Verdict, str]
"""The verdict that a rule gives and the reason, one line."""

RuleFinding: TypeAlias = "tuple[Verdict | None, str] | None"
"""Nothing to say against the evidence, or the verdict and why; without a verdict it is only listed."""


def not_applicable(why: str) -> RuleFinding:
    """What a rule gives that cannot be exercised here: it is listed and proves nothing."""
    return None, f"not applicable: {why}"


def reported(what: str) -> RuleFinding:
    """What a rule gives that decides nothing."""
    return None, f"reported: {what}"


def decide(found: Mapping[str, Finding | None], good: str) -> Finding:
    """The worst verdict that any rule found, with the reason of the first that found it.

    Args:
        found: by rule what it found; None where it has nothing to say against the evidence.
        good: what is said where no rule found anything.

    Returns:
        A reason that begins with the rule's id; with ``good`` the verdict is PASS.
    """
    against = [(finding[0], f"{name}: {finding[1]}") for name, finding in found.items() if finding is not None]
    return gravest(against) or (Verdict.PASS, good)


def decisive(findings: Sequence[Finding]) -> Finding | None:
    """The finding that a clause comes to; None when there are none.

    A broken contract stays one whatever else is missing, so the first of them comes before all others.
    """
    broken = next((finding for finding in findings if finding[0] is Verdict.FAIL), None)
    return broken or gravest(findings)


def gravest(findings: Sequence[Finding]) -> Finding | None:
    """The first of the findings with the worst verdict; None when there are none."""
    if not findings:
        return None
    verdict = worst(verdict for verdict, _ in findings)
    return next(finding for finding in findings if finding[0] is verdict)
