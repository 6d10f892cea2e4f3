# SPDX-License-Identifier: Apache-2.0
"""A negative that the gate's own files tell closes the campaign, though the session died before a test could say it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.arms.arm_record import token_digest
from pytest_laguna.evidence.endpoint import reader
from pytest_laguna.verdict import Verdict
from tests import endpoint_legs as lab
from tests.demo import writable
from tests.sealed import build
from tests.unit.test_precondition import _again


def stopped() -> list[lab.Leg]:
    """Timing decides, and the first candidate loses."""
    return lab.legs(lab.scaled(lab.metadata_starts(), B1=0.9))[:2]


def inexact() -> list[lab.Leg]:
    """The first candidate gives another token than the teacher."""
    legs = lab.legs(lab.metadata_starts())[:2]
    row = legs[1]["rows"][4]
    row["token_ids"][7] += 1
    row["token_sha256"] = token_digest(row["token_ids"])
    return legs


@pytest.mark.parametrize("name", [reader.PHASE_1, root.ANALYSIS])
@pytest.mark.parametrize(("made", "ended"), [(stopped, Verdict.STOP), (inexact, Verdict.FAIL)])
def test_what_the_legs_came_to_is_not_bought_back_by_a_kill(
    tmp_path: Path, made: Callable[[], list[lab.Leg]], ended: Verdict, name: str
) -> None:
    judged = analyse_endpoint(lab.plan(), lab.records(made()), teacher=lab.TEACHER, campaign=lab.CAMPAIGN)
    assert any(finding.decides and finding.verdict is ended for finding in judged.findings)

    def leave(evidence: Path) -> None:
        (evidence / reader.DIRECTORY).mkdir()
        files.write_new(evidence / reader.DIRECTORY / name, files.canonical_json(judged.canonical()))

    attempt = build(tmp_path, [], before_sealing=leave)  # no test had come to its call yet
    with writable(attempt):
        for sealed in (root.RECEIPT, root.ANALYSIS, root.JUNIT, root.MANIFEST):
            (attempt / sealed).unlink()
    with pytest.raises(pytest.UsageError, match=f"attempt 0001 ended {ended}, which closes this campaign digest"):
        _again(tmp_path)
