# SPDX-License-Identifier: Apache-2.0
"""An attempt as the report shows it: only what verification has nothing against, and the gate's own analysis again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pytest_laguna.evidence import root
from pytest_laguna.evidence.schemas import Analysis, AttemptStart, Manifest, read_model
from pytest_laguna.experiments.experiment import Attempted, Derived, derive, read_attempted
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError
from pytest_laguna.verify.verification import GateReport


@dataclasses.dataclass(frozen=True, slots=True)
class ShownAttempt:
    """What is shown of one attempt.

    Attributes:
        report: what verification says.
        directory: the attempt's.
        start: ``attempt.json``.
        analysis: the verdict object, as it was derived again.
        manifest: what lies in the attempt.
        attempted: what its own analysis starts from.
        derived: the analysis of its experiment, derived again; None without one, or if ``missing`` says why.
        missing: the reason why there is no such analysis; empty if there is one, or none is expected.
    """

    report: GateReport
    directory: Path
    start: AttemptStart
    analysis: Analysis
    manifest: Manifest
    attempted: Attempted
    derived: Derived[Any] | None
    missing: str

    @property
    def own_directory(self) -> Path:
        """Directory of the experiment's analysis and of the files that it follows from."""
        assert self.derived is not None  # noqa: S101 - for the type; its callers have an analysis
        return self.directory / root.EVIDENCE / self.derived.experiment.row.directory


def show_attempt(directory: Path, report: GateReport) -> ShownAttempt | None:
    """Read an attempt that was verified.

    Args:
        directory: the attempt's.
        report: what verification says of it.

    Returns:
        None where a rule of verification speaks against the attempt: nothing that lies there is shown then.

    Raises:
        UnusableEvidenceError: a file changed since it was verified.
    """
    if report.analysis is None or report.start is None:
        return None
    attempted = read_attempted(directory)
    derived, missing = _derived(attempted)
    return ShownAttempt(
        report=report,
        directory=directory,
        start=report.start,
        analysis=report.analysis,
        manifest=read_model(directory / root.MANIFEST, Manifest),
        attempted=attempted,
        derived=derived,
        missing=missing,
    )


def _derived(attempted: Attempted) -> tuple[Derived[Any] | None, str]:
    try:
        return derive(attempted), ""
    except (NotProvenError, UnusableEvidenceError) as error:
        return None, str(error)
