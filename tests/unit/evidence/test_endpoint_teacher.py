# SPDX-License-Identifier: Apache-2.0
"""Whose answers rows are compared with: the frozen teacher's, else the first control's, and never a candidate's."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint.leg import LegRecord
from pytest_laguna.evidence.endpoint.reader import TEACHER, ProtocolCommit, leg_directory, take_teacher
from tests import endpoint_legs as lab


def legs(directory: Path) -> list[LegRecord]:
    """Four legs in the order B1, A1, A2, B2, whose candidates answer something else."""
    made = lab.legs(lab.metadata_starts())
    records = []
    for sequence, place in enumerate((1, 0, 3, 2), start=1):
        leg = made[place]
        leg["request"]["sequence"] = sequence
        [record] = lab.records([leg])
        place_of = leg_directory(directory, sequence, record.request.leg)
        place_of.mkdir(parents=True)
        files.write_new(place_of / "leg.json", files.canonical_json(record.canonical()))
        records.append(record)
    return records


def test_the_first_control_stands_in_for_a_teacher_that_was_not_frozen(tmp_path: Path) -> None:
    records = legs(tmp_path)
    teacher = take_teacher(tmp_path, records)
    assert teacher is not None
    assert teacher.source_sha256 == files.sha256_file(tmp_path / "legs" / "02-A1" / "leg.json")
    assert [row.token_ids for row in teacher.rows] == [row.token_ids for row in records[1].rows]


def test_a_candidate_alone_is_no_teacher(tmp_path: Path) -> None:
    assert take_teacher(tmp_path, legs(tmp_path)[:1]) is None
    assert take_teacher(tmp_path, []) is None


def test_a_frozen_teacher_comes_first(tmp_path: Path) -> None:
    records = legs(tmp_path)
    files.write_new(tmp_path / TEACHER, files.canonical_json(lab.TEACHER.canonical()))
    assert take_teacher(tmp_path, records) == lab.TEACHER
    assert take_teacher(tmp_path, []) == lab.TEACHER


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
def test_a_protocol_is_the_blob_that_git_names(algorithm: str) -> None:
    name = hashlib.new(algorithm, b"blob 5\0rules").hexdigest()
    commit = ProtocolCommit(commit="c" * 40, blob=name)
    assert [commit.holds(content) for content in (b"rules", b"rule", b"ruled")] == [True, False, False]
