# SPDX-License-Identifier: Apache-2.0
"""Attempts for tests of the report: the evidence of the rules' tests, in the places where a session writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_laguna.campaign import parse_campaign
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.experiments import ROWS
from pytest_laguna.evidence.schemas import (
    Analysis,
    AttemptStart,
    ClauseProof,
    ClauseResult,
    Entry,
    Identity,
    Manifest,
    Schema,
)
from pytest_laguna.experiments.experiment import Attempted, Derived, implementation
from pytest_laguna.report.shown import ShownAttempt
from pytest_laguna.verdict import Verdict
from pytest_laguna.verify.verification import GateReport
from tests.demo import CAMPAIGN


def shown_attempt(directory: Path, own: Schema | None = None, **changed: Any) -> ShownAttempt:
    """An attempt around an analysis; ``changed`` replaces fields of the verdict object."""
    campaign = parse_campaign(CAMPAIGN.encode(), "campaign.toml")
    start = AttemptStart(
        campaign_name=campaign.name,
        lane="cpu",
        gate=2,
        attempt=1,
        sealed_root="sealed",
        nonce="0" * 32,
        clauses=[],
        plugins=[],
        arguments=["--gate=2"],
        cards=["0"],
        identity=Identity(campaign=campaign.digest, candidate="0" * 64, harness="0" * 64),
        record="0" * 64,
        previous=None,
        earlier=[],
    )
    clause = ClauseResult(
        clause="only",
        nodeid="checks/test_device.py::test_only",
        verdict=Verdict.PASS,
        reason="",
        detail="",
        seconds=1.5,
        proofs=[ClauseProof(statement="shown", observed={"seen": 1})],
    )
    fields: dict[str, Any] = {
        "verdict": Verdict.PASS,
        "reason": "1 clauses proven",
        "clauses": [clause],
        "unexercised": [],
        "figures": {},
    }
    analysis = Analysis(**fields | changed)
    report = GateReport("demo", "cpu", 2, 1, analysis.verdict, analysis.reason, start=start, analysis=analysis)
    return ShownAttempt(
        report=report,
        directory=directory,
        start=start,
        analysis=analysis,
        manifest=Manifest(entries=_entries(directory)),
        attempted=Attempted(directory, start, campaign, None),
        derived=None if own is None else derived(own),
        missing="",
    )


def derived(own: Schema) -> Derived[Any]:
    experiment = next(implementation(row) for row in ROWS.values() if row.analysis is type(own))
    return Derived(experiment, own, experiment.findings(own))


def own_place(directory: Path, form: type[Schema]) -> Path:
    """Where the analysis of an experiment lies in an attempt; made here."""
    place = directory / root.EVIDENCE / next(row.directory for row in ROWS.values() if row.analysis is form)
    place.mkdir(parents=True)
    return place


def _entries(directory: Path) -> list[Entry]:
    return [
        Entry(
            path=path.relative_to(directory).as_posix(),
            kind="file",
            size=path.stat().st_size,
            sha256=files.sha256_file(path),
        )
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    ]
