# SPDX-License-Identifier: Apache-2.0
"""Verdicts and exit codes: the one value from which exit code, JSON, text and JUnit are made."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NoReturn, TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

USAGE_EXIT_CODE = 4
"""pytest's own exit code for a wrong call; a refused gate ends with it."""


class Verdict(enum.StrEnum):
    """What a gate, a clause or an attempt came to. Everything starts as NOT_PROVEN."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    STOP = "STOP"
    """A measured negative: the evidence is good and says no."""
    FAIL = "FAIL"
    """A contract was broken."""
    VOID = "VOID"
    """The evidence is unusable: a defect of the harness."""
    NOT_PROVEN = "NOT_PROVEN"
    """Something is missing."""

    @property
    def exit_code(self) -> int:
        """The process exit code; 20 and above, so that none is mistaken for one of pytest's own 0 to 5."""
        return _EXIT_CODES[self]

    @property
    def closes(self) -> bool:
        """Whether the campaign digest may not be attempted again on that lane."""
        return self in {Verdict.STOP, Verdict.FAIL}


_EXIT_CODES: Mapping[Verdict, int] = {
    Verdict.PASS: 0,
    Verdict.STOP: 20,
    Verdict.FAIL: 21,
    Verdict.VOID: 22,
    Verdict.NOT_PROVEN: 23,
}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of a whole from its parts: the highest exit code; nothing at all is NOT_PROVEN."""
    return max(verdicts, key=lambda verdict: verdict.exit_code, default=Verdict.NOT_PROVEN)


class UnusableEvidenceError(Exception):
    """Raised where evidence cannot be used: the clause, and with it the gate, is VOID."""


class MeasuredNegativeError(Exception):
    """Raised where good evidence says no: the clause, and with it the gate, is STOP."""


class NotProvenError(Exception):
    """Raised where something that a proof needs is missing: the clause, and with it the gate, is NOT_PROVEN."""


def raise_verdict(verdict: Verdict, reason: str) -> NoReturn:
    """Raise what gives a clause this verdict; PASS is not raised.

    Raises:
        AssertionError: FAIL.
        MeasuredNegativeError: STOP.
        UnusableEvidenceError: VOID.
        NotProvenError: NOT_PROVEN.
        ValueError: PASS.
    """
    if verdict is Verdict.PASS:
        raise ValueError("a passing clause is proven and not raised")
    errors: Mapping[Verdict, type[Exception]] = {
        Verdict.STOP: MeasuredNegativeError,
        Verdict.FAIL: AssertionError,
        Verdict.VOID: UnusableEvidenceError,
        Verdict.NOT_PROVEN: NotProvenError,
    }
    raise errors[verdict](reason)
