# SPDX-License-Identifier: Apache-2.0
"""An attempt for the report: verified files, and the gate's own analysis derived again."""

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
    """Content of one verified attempt.

    Attributes:
        start: ``attempt.json``.
        analysis: the verdict object, derived again.
        attempted: input of the experiment's analysis.
        derived: the analysis of its experiment, derived again; None without one, or if ``missing`` says why.
        missing: reason for a missing analysis; empty if there is one, or none is expected.
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
        """Directory of the experiment's analysis and its inputs."""
        assert self.derived is not None  # noqa: S101 - for the type; its callers have an analysis
        return self.directory / root.EVIDENCE / self.derived.experiment.row.directory


def show_attempt(directory: Path, report: GateReport) -> ShownAttempt | None:
    """Read a verified attempt; None if verification has a finding against it, so that nothing of it is shown.

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
