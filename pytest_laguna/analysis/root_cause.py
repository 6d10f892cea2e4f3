# SPDX-License-Identifier: Apache-2.0
"""Why a piece of evidence is not there: what its run said of it, or the first thing that went wrong before it."""

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
    """The content of a piece of evidence.

    Raises:
        NotProvenError: it is not there; the reason names what stopped its run, or the first thing that went wrong.
        UnusableEvidenceError: it cannot be used.
    """
    if isinstance(piece, Missing) and piece.verdict is Verdict.NOT_PROVEN and not piece.told:
        raise NotProvenError(f"{piece.reason}{first_failure(runs)}")
    return present(piece)


def first_failure(runs: Runs) -> str:
    """The first run that says why it left nothing, or whose process did not end well, as the end of a line."""
    for place, run in runs:
        if said := told(run):
            return said
        if not isinstance(run.process, Missing):
            verdict, reason = judge_process(run.process)
            if verdict is not Verdict.PASS:
                return f"; {place}: {reason}"
    return ""


def told(run: RunEvidence[Schema, Schema]) -> str:
    """What a run said in place of a record, as the end of a line; empty where it said nothing."""
    return f"; {run.record.reason}" if isinstance(run.record, Missing) and run.record.told else ""
