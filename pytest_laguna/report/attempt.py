# SPDX-License-Identifier: Apache-2.0
"""An attempt as the report shows it: only what verification has nothing against, and the gate's own analysis again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pytest_laguna.analysis.endpoint.clauses import CLAUSES as ENDPOINT_CLAUSES
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.diagnostic import Diagnosis
from pytest_laguna.evidence.endpoint_analysis import EndpointAnalysis
from pytest_laguna.evidence.event_analysis import EventAnalysis
from pytest_laguna.evidence.rehearsal import STARTS_DIRECTORY, NullAnalysis
from pytest_laguna.evidence.schemas import Analysis, AttemptStart, Manifest, parse_model, read_model
from pytest_laguna.own_analysis import Attempted, own_analysis, read_attempted
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict
from pytest_laguna.verification import GateReport

Own: TypeAlias = Diagnosis | EventAnalysis | EndpointAnalysis | NullAnalysis

OWN_FILES: Mapping[type[Own], str] = {
    Diagnosis: "diagnostic",
    EventAnalysis: "event-profile",
    EndpointAnalysis: "endpoint",
    NullAnalysis: STARTS_DIRECTORY,
}
"""Below ``evidence``: where each analysis lies with the files that it follows from."""

_FORMS: Mapping[str, type[Own]] = {
    "pytest-laguna-diagnosis-v1": Diagnosis,
    "pytest-laguna-event-analysis-v1": EventAnalysis,
    "pytest-laguna-endpoint-analysis-v1": EndpointAnalysis,
    "pytest-laguna-null-analysis-v1": NullAnalysis,
}

RuleLine: TypeAlias = tuple[str, Verdict | None, str]
"""A rule's id, what it came to (None where it decides nothing), and the reason."""


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
        own: the gate's own analysis, derived again; None where it has none, or ``missing`` says why.
        missing: why there is no analysis of its own; empty where there is one or none is expected.
    """

    report: GateReport
    directory: Path
    start: AttemptStart
    analysis: Analysis
    manifest: Manifest
    attempted: Attempted
    own: Own | None
    missing: str

    @property
    def own_directory(self) -> Path:
        """Where the own analysis lies with its files."""
        assert self.own is not None  # noqa: S101 - for the type; who asks has looked
        return self.directory / root.EVIDENCE / OWN_FILES[type(self.own)]


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
    own, missing = _own(attempted)
    return ShownAttempt(
        report=report,
        directory=directory,
        start=report.start,
        analysis=report.analysis,
        manifest=read_model(directory / root.MANIFEST, Manifest),
        attempted=attempted,
        own=own,
        missing=missing,
    )


def _own(attempted: Attempted) -> tuple[Own | None, str]:
    try:
        found = own_analysis(attempted)
    except (NotProvenError, UnusableEvidenceError) as error:
        return None, str(error)
    if found is None:
        return None, ""
    content = files.parse_json(found.content, root.ANALYSIS)
    form = content.get("schema") if isinstance(content, dict) else None
    return parse_model(content, _FORMS[str(form)], root.ANALYSIS), ""


def rules_of(own: Own | None) -> Mapping[str, Sequence[RuleLine]]:
    """By clause what each rule of the gate's own analysis came to."""
    if own is None or isinstance(own, NullAnalysis):  # what speaks against it has no verdict of its own
        return {}
    if isinstance(own, EndpointAnalysis):
        return {clause: _endpoint_rules(own, rules) for clause, rules in ENDPOINT_CLAUSES.items()}
    return {
        clause: [(rule, result.verdict, result.reason) for rule, result in rules.items()]
        for clause, rules in own.clauses.items()
    }


def _endpoint_rules(own: EndpointAnalysis, rules: Sequence[str]) -> list[RuleLine]:
    lines: list[RuleLine] = [
        (
            finding.rule,
            finding.verdict if finding.decides else None,
            _reported(finding.verdict, finding.where, finding.reason, decides=finding.decides),
        )
        for finding in own.findings
        if finding.rule in rules
    ]
    asked = [rule for rule in rules if rule in own.not_asked]
    return [*lines, *((rule, None, "not applicable: the plan does without it, or nothing is there") for rule in asked)]


def _reported(verdict: Verdict, where: str, reason: str, *, decides: bool) -> str:
    told = f"{where}: {reason}" if reason else ""
    return told if decides else f"reported: {verdict} {told}".strip()
