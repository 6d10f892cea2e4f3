# SPDX-License-Identifier: Apache-2.0
"""The exact diagnostic through ``pytest --gate=2`` on real vLLM: one whole run, and what bad input gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo import writable
from tests.diagnostic_project import DiagnosticProject


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> DiagnosticProject:
    """One whole gate 2 on one card; others read it."""
    project = DiagnosticProject(tmp_path_factory.mktemp("passed"))
    assert project.gate(1).returncode == 0
    result = project.gate(2, f"--cards={','.join(project.cards)}")
    assert result.returncode == 0, result.stdout + result.stderr
    return project


def _laguna(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_laguna.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_whole_diagnostic_passes_and_verifies(passed: DiagnosticProject) -> None:
    result = _laguna("verify", str(passed.sealed), "--json")
    assert [gate["verdict"] for gate in json.loads(result.stdout)["gates"]] == ["PASS", "PASS"]


def test_analyze_gives_the_same_bytes_again(passed: DiagnosticProject, tmp_path: Path) -> None:
    out = tmp_path / "again.json"
    result = _laguna("analyze", str(passed.diagnostic.parents[1]), "--out", str(out))
    assert result.returncode == 0, result.stdout + result.stderr
    assert out.read_bytes() == (passed.diagnostic / "analysis.json").read_bytes()
    assert "diagnostic only" in result.stdout
    inside = passed.diagnostic / "again.json"
    assert _laguna("analyze", str(passed.diagnostic.parents[1]), "--out", str(inside)).returncode == 4
    assert not inside.exists()


def test_changed_evidence_under_a_coherent_receipt_is_seen(passed: DiagnosticProject, tmp_path: Path) -> None:
    del tmp_path
    assert writable
