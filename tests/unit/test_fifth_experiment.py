# SPDX-License-Identifier: Apache-2.0
"""A new experiment is one row and one implementation: plan, evidence, verification and report know it at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.experiments import ROWS
from pytest_laguna.evidence.schemas import Previous
from pytest_laguna.experiments.experiment import derive_from_files, read_attempted, recorded_verdicts
from pytest_laguna.report.document import report_document
from pytest_laguna.verdict import Verdict
from pytest_laguna.verify.verification import GateReport, verify_root
from tests import sealed
from tests.fifth_experiment import EXPERIMENT, SumPlan, SumRecord


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROWS, EXPERIMENT.row.name, EXPERIMENT.row)


def gate_2(directory: Path, *, total: int | None = 3, addends: tuple[int, ...] = (2, 1)) -> Path:
    """A sealed gate 2 whose session carried the experiment out."""
    first = sealed.build(directory)
    opened = Previous(gate=1, attempt=1, receipt=files.sha256_file(first / root.RECEIPT))

    def carry_out(evidence: Path) -> None:
        place = evidence / "sum"
        place.mkdir()
        files.write_new(place / "plan.json", files.canonical_json(SumPlan(addends=list(addends)).canonical()))
        if total is not None:
            files.write_new(place / "record.json", files.canonical_json(SumRecord(total=total).canonical()))
            if addends == (2, 1):
                derived = derive_from_files(EXPERIMENT, read_attempted(evidence.parent))
                files.write_new(place / "analysis.json", derived.content)

    return sealed.build(directory, gate=2, previous=opened, before_sealing=carry_out)


def verified(directory: Path) -> GateReport:
    return {report.gate: report for report in verify_root(directory / "sealed")}[2]


def test_it_passes_and_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    attempt = gate_2(tmp_path)
    report = verified(tmp_path)
    assert (report.verdict, report.reason) == (Verdict.PASS, "1 clauses proven")
    assert report.analysis is not None
    assert report.analysis.figures == {"rules": "1"}
    html = report_document(tmp_path / "sealed", verify_root(tmp_path / "sealed")).decode()
    assert "adds-up" in html
    assert "evidence/sum/record.json" in html
    assert [*recorded_verdicts(attempt / root.EVIDENCE)] == []


def test_its_rule_decides_whatever_the_test_said(tmp_path: Path) -> None:
    attempt = gate_2(tmp_path, total=4)
    report = verified(tmp_path)
    assert (report.verdict, report.reason) == (Verdict.FAIL, "only: adds-up: total: seen 4; expected 3")
    assert [*recorded_verdicts(attempt / root.EVIDENCE)] == [Verdict.FAIL]


def test_a_plan_of_its_own_making_is_void(tmp_path: Path) -> None:
    attempt = gate_2(tmp_path, total=4, addends=(2, 2))
    assert not (attempt / root.EVIDENCE / "sum" / "analysis.json").exists()
    assert verified(tmp_path).verdict is Verdict.NOT_PROVEN


def test_an_analysis_that_does_not_follow_is_void(tmp_path: Path) -> None:
    attempt = gate_2(tmp_path)
    place = attempt / root.EVIDENCE / "sum"
    for path in (place, place / "record.json"):
        os.chmod(path, 0o700)  # noqa: PTH101 - a sealed place
    (place / "record.json").write_bytes(files.canonical_json({"total": 4}))
    assert verified(tmp_path).verdict is Verdict.VOID


def test_what_is_not_there_is_not_proven(tmp_path: Path) -> None:
    gate_2(tmp_path, total=None)
    report = verified(tmp_path)
    assert report.verdict is Verdict.NOT_PROVEN
    assert report.reason == "evidence/sum/analysis.json: missing; it was not carried out to its end"
