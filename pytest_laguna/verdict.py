# SPDX-License-Identifier: Apache-2.0
"""Verdicts and their exit codes, the source of JSON, text and JUnit."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NoReturn, TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

USAGE_EXIT_CODE = 4
"""pytest's own exit code for a wrong call; a refused gate ends with it."""


class Verdict(enum.StrEnum):
    """Verdict of a gate, a clause or an attempt.

    Everything starts as NOT_PROVEN.
    """

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
        """Exit code of the process; 20 and above, apart from pytest's own 0 to 5."""
        return _EXIT_CODES[self]

    @property
    def closes(self) -> bool:
        """True if the campaign digest may not be attempted again on its lane."""
        return self in {Verdict.STOP, Verdict.FAIL}


_EXIT_CODES: Mapping[Verdict, int] = {
    Verdict.PASS: 0,
    Verdict.STOP: 20,
    Verdict.FAIL: 21,
    Verdict.VOID: 22,
    Verdict.NOT_PROVEN: 23,
}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict with the highest exit code; NOT_PROVEN of no verdicts."""
    return max(verdicts, key=lambda verdict: verdict.exit_code, default=Verdict.NOT_PROVEN)


class UnusableEvidenceError(Exception):
    """Evidence cannot be used: the clause, and with it the gate, is VOID."""


class MeasuredNegativeError(Exception):
    """Good evidence says no: the clause, and with it the gate, is STOP."""


class NotProvenError(Exception):
    """Something needed for a proof is missing: the clause, and with it the gate, is NOT_PROVEN."""


def raise_verdict(verdict: Verdict, reason: str) -> NoReturn:
    """Raise the error that gives a clause this verdict.

    Raises:
        AssertionError: FAIL.
        MeasuredNegativeError: STOP.
        UnusableEvidenceError: VOID.
        NotProvenError: NOT_PROVEN.
        ValueError: PASS, which is not raised.
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
