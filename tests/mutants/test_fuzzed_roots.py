# SPDX-License-Identifier: Apache-2.0
"""A sample of the changes that ``python -m tests.fuzz_roots`` makes by the hundred thousand, and what makes it fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.evidence import root
from pytest_laguna.evidence.schemas import Manifest
from pytest_laguna.verify import verification
from tests import fuzz_roots


@pytest.mark.parametrize("changes", [400, pytest.param(20_000, marks=pytest.mark.rules)])
def test_no_change_passes(changes: int, tmp_path: Path) -> None:
    tally = fuzz_roots.run(changes, tmp_path)
    assert (tally.mutations.keys(), tally.false_pass) == (fuzz_roots.CHANGES.keys(), [])


@pytest.mark.parametrize("seed", [1105, 4537])
def test_an_empty_directory_above_the_gates_is_found(tmp_path: Path, seed: int) -> None:
    """Found among 100,000 changes: a campaign without a lane, and a lane without a gate."""
    tally = fuzz_roots.run(1, tmp_path, seed=seed)
    assert (dict(tally.mutations), tally.false_pass) == ({"extra": 1}, [])


@pytest.mark.parametrize("kind", ["extra", "byte"])
def test_a_verification_that_looks_away_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """As many kinds of change as there are, so that the roots are all met."""

    def nothing(_directory: Path) -> Manifest:
        return Manifest(entries=[])

    monkeypatch.setattr(root, "take_tree", nothing)
    monkeypatch.setattr(root, "difference", lambda _stated, _found: None)
    tally = fuzz_roots.run(100, tmp_path, changes={kind: fuzz_roots.CHANGES[kind]})
    assert tally.false_pass


def test_an_adversary_needs_a_kept_receipt_to_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adversary = {"rehashed": fuzz_roots.CHANGES["rehashed"]}
    (tmp_path / "held").mkdir()
    assert fuzz_roots.run(40, tmp_path / "held", changes=adversary).false_pass == []
    (tmp_path / "not-held").mkdir()
    monkeypatch.setattr(fuzz_roots, "hold_to", lambda reports, _receipts: reports)
    assert fuzz_roots.run(40, tmp_path / "not-held", changes=adversary).false_pass


def test_the_specimens_are_what_they_are_called(tmp_path: Path) -> None:
    verdicts = {}
    for name in fuzz_roots.ROOTS:
        (tmp_path / name).mkdir()
        specimen = fuzz_roots.make_specimen(name, tmp_path / name)
        verdicts[name] = [str(report.verdict) for report in specimen.reports]
    assert verdicts == {
        "passed": ["PASS", "PASS"],
        "stopped": ["PASS", "STOP"],
        "failed": ["FAIL"],
        "unfinished": ["NOT_PROVEN"],
    }
    assert verification.hold_to([], ["0" * 64])[0].verdict == "VOID"
