# SPDX-License-Identifier: Apache-2.0
"""Root cause of missing evidence: its run's own message, or the first failure before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, TypeVar

from pytest_laguna.analysis.machine.process import judge_process
from pytest_laguna.evidence.reading import Missing, RunEvidence, present
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.verdict import NotProvenError, Verdict

Content = TypeVar("Content")

Runs: TypeAlias = Iterable[tuple[str, RunEvidence[Schema, Schema]]]
"""Every run, in order, by its place in the directory."""


def found(piece: Content | Missing, runs: Runs) -> Content:
    """Return the content of a piece of evidence.

    Raises:
        NotProvenError: it is missing; the reason names its run's failure, or the first failure before it.
        UnusableEvidenceError: it cannot be used.
    """
    if isinstance(piece, Missing) and piece.verdict is Verdict.NOT_PROVEN and not piece.told:
        raise NotProvenError(f"{piece.reason}{first_failure(runs)}")
    return present(piece)


def first_failure(runs: Runs) -> str:
    """Return the first message in place of a record, or the first bad end of a process, as the end of a line."""
    for place, run in runs:
        if said := told(run):
            return said
        if not isinstance(run.process, Missing):
            verdict, reason = judge_process(run.process)
            if verdict is not Verdict.PASS:
                return f"; {place}: {reason}"
    return ""


def told(run: RunEvidence[Schema, Schema]) -> str:
    """Return a run's message in place of a record, as the end of a line; empty if it left none."""
    return f"; {run.record.reason}" if isinstance(run.record, Missing) and run.record.told else ""
