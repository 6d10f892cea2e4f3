# SPDX-License-Identifier: Apache-2.0
"""Where a rehearsal lies, what it has otherwise than the lane, and how starts of control against control are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.aa.rehearsal import (
    Detection,
    read_shortened,
    read_starts,
    rehearsed_attempt,
    sealed_root,
    start_directory,
)
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import JSON, UnusableEvidenceError
from tests import diagnostic_root

ARM_RECORDS = Path(__file__).parents[2] / "data" / "arm-records"


@pytest.mark.parametrize(("null", "name"), [(False, "rehearsed"), (True, "rehearsed-null")])
def test_a_rehearsal_and_its_null_lie_apart(null: bool, name: str, tmp_path: Path) -> None:
    sealed = tmp_path / name / "sealed"
    assert sealed_root(tmp_path, null=null) == sealed
    assert rehearsed_attempt(tmp_path, "views", 2, null=null) == sealed / "views" / "cpu" / "gate2" / "0001"


def _shorten(evidence: Path, value: JSON) -> None:
    directory = evidence / "rehearsed"
    directory.mkdir()
    (directory / "shortened.json").write_bytes(files.canonical_json(value))


def test_a_rehearsal_that_shortened_nothing_lists_nothing(tmp_path: Path) -> None:
    assert read_shortened(tmp_path) == []


def test_what_was_shortened_is_listed_with_both_values(tmp_path: Path) -> None:
    _shorten(tmp_path, {"cards": {"lane": ["a", "b"], "rehearsal": 1}, "ready": {"lane": 7200, "rehearsal": None}})
    assert read_shortened(tmp_path) == [
        ("rehearsal", "cards", 'shortened: ["a", "b"] on the lane, 1 here'),
        ("rehearsal", "ready", "shortened: 7200 on the lane, null here"),
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "shortened.json: not an object; expected what was shortened, by its place"),
        ({"cards": {"lane": 1}}, "shortened.json: rehearsal: Field required"),
    ],
)
def test_what_does_not_say_what_was_shortened_is_refused(value: JSON, message: str, tmp_path: Path) -> None:
    _shorten(tmp_path, value)
    with pytest.raises(UnusableEvidenceError) as caught:
        read_shortened(tmp_path)
    assert str(caught.value) == message


def test_starts_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    assert start_directory(tmp_path, 3) == tmp_path / "starts" / "03"
    records = [ARM_RECORDS / f"{arm}.json" for arm in ("graph-candidate", "graph-control")]
    contents = [files.canonical_json(diagnostic_root.profile(Arm.GRAPH_CONTROL, rank)) for rank in (0, 1)]
    for number, record, content in zip((11, 2), records, contents, strict=True):
        place = start_directory(tmp_path, number)
        (place / "profile").mkdir(parents=True)
        shutil.copy(record, place / "record.json")
        (place / "profile" / "rank0.json").write_bytes(content)
    found = [
        (record, {name: read().sha256 for name, read in profiles.items()}) for record, profiles in read_starts(tmp_path)
    ]
    assert found == [
        (read_model(record, ArmRecord), {"rank0.json": files.sha256_bytes(content)})
        for record, content in zip(records[::-1], contents[::-1], strict=True)
    ]


@pytest.mark.parametrize(
    ("effect", "deviation", "needed", "in_vain"),
    [
        (None, 1.0, None, False),
        (None, 1.0, 9, False),
        (0.23, 0.0, None, False),
        (0.23, 1.0, None, True),
        (0.23, 1.0, 7, False),
        (0.23, 1.0, 8, False),
        (0.23, 1.0, 9, True),
        (0.23, 0.01, 9, True),
    ],
)
def test_too_few_starts_for_the_effect_are_in_vain(
    effect: float | None, deviation: float, needed: int | None, in_vain: bool
) -> None:
    detection = Detection(deviation=deviation, count=8, detectable_percent=None, effect_percent=effect, needed=needed)
    assert detection.in_vain is in_vain
