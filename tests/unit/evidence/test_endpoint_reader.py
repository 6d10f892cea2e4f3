# SPDX-License-Identifier: Apache-2.0
"""The legs of an endpoint on the disk: each directory has one record or one failure, and is the one of its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint.leg import SuiteRow
from pytest_laguna.evidence.endpoint.plan import EndpointPlan
from pytest_laguna.evidence.endpoint.reader import (
    idle_file,
    leg_directory,
    read_legs,
    read_surroundings,
    read_teacher,
    started_legs,
)
from pytest_laguna.evidence.reading import PLAN, Missing, read_identity
from pytest_laguna.evidence.schemas import parse_model, read_model
from pytest_laguna.verdict import JSON, UnusableEvidenceError
from tests import endpoint_legs as lab

FAILURE: JSON = {"reason": "no memory"}
RECORD: JSON = lab.records(lab.legs(lab.metadata_starts())[:1])[0].canonical()


def put(directory: Path, name: str, value: JSON) -> None:
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(files.canonical_json(value))


def test_without_legs_there_are_none(tmp_path: Path) -> None:
    found = read_legs(tmp_path)
    assert (found.legs, found.ended, started_legs(tmp_path)) == ([], {}, set())


def test_a_leg_is_read_where_its_name_says(tmp_path: Path) -> None:
    put(tmp_path, "legs/01-A1/leg.json", RECORD)
    (record,) = read_legs(tmp_path).legs
    assert record.canonical() == RECORD
    assert leg_directory(tmp_path, 1, "A1") == tmp_path / "legs" / "01-A1"
    assert idle_file(tmp_path, 2, "after") == tmp_path / "idle-02-after.json"


@pytest.mark.parametrize(
    ("name", "written", "message"),
    [
        ("retry", (), "legs/retry: not a leg; expected directories such as 01-A1"),
        ("01-A1", (), "legs/01-A1: neither of leg.json and failure.json; expected one of them"),
        ("01-A1", ("leg", "failure"), "legs/01-A1: both of leg.json and failure.json; expected one of them"),
        ("02-A1", ("leg",), "legs/02-A1: its leg is number 1, A1; expected it in 01-A1"),
        ("01-A2", ("leg",), "legs/01-A2: its leg is number 1, A1; expected it in 01-A1"),
        ("02-A1", ("failure", "request"), "legs/02-A1: its leg is number 1, A1; expected it in 01-A1"),
    ],
)
def test_a_directory_that_is_no_leg_is_refused(
    name: str, written: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    assert isinstance(RECORD, dict)
    (tmp_path / "legs" / name).mkdir(parents=True)
    contents: dict[str, JSON] = {"leg": RECORD, "failure": FAILURE, "request": RECORD["request"]}
    for piece in written:
        put(tmp_path, f"legs/{name}/{piece}.json", contents[piece])
    with pytest.raises(UnusableEvidenceError) as caught:
        read_legs(tmp_path)
    assert str(caught.value) == message


def test_a_leg_that_ended_says_why(tmp_path: Path) -> None:
    assert isinstance(RECORD, dict)
    put(tmp_path, "legs/01-A1/failure.json", FAILURE)
    put(tmp_path, "legs/01-A1/request.json", RECORD["request"])
    put(tmp_path, "legs/02-B1/failure.json", FAILURE)
    ended = read_legs(tmp_path).ended
    assert {name: (leg.reason, leg.end) for name, leg in ended.items()} == {
        "01-A1": ("no memory", None),
        "02-B1": ("no memory", None),
    }
    assert started_legs(tmp_path) == {"01-A1"}
    for name, served in (("01-A1", True), ("02-B1", False)):
        seen = read_surroundings(tmp_path, name, ("from", "until"))
        assert (seen.name, seen.served) == (name, served)
        assert all(isinstance(piece, Missing) for piece in (seen.before, seen.after, seen.host))
        assert seen.span == ("from", "until")


def test_a_leg_that_ended_tells_how_its_server_did(tmp_path: Path) -> None:
    assert isinstance(RECORD, dict)
    end = RECORD["end"]
    assert isinstance(end, dict)
    assert isinstance(end["process"], dict)
    put(tmp_path, "legs/01-A1/failure.json", FAILURE)
    put(tmp_path, "legs/01-A1/end.json", end | {"process": None})
    found = read_legs(tmp_path).ended["01-A1"].end
    assert found is not None
    assert found.canonical() == end | {"process": None}

    put(tmp_path, "legs/01-A1/end.json", end)
    with pytest.raises(UnusableEvidenceError, match=r"^process\.json: cannot be read"):
        read_legs(tmp_path)
    put(tmp_path, "legs/01-A1/process.json", end["process"])
    found = read_legs(tmp_path).ended["01-A1"].end
    assert found is not None
    assert found.canonical() == end
    put(tmp_path, "legs/01-A1/process.json", end["process"] | {"wait_status": 9})
    with pytest.raises(UnusableEvidenceError) as caught:
        read_legs(tmp_path)
    assert str(caught.value) == (
        "process.json in 01-A1: another end of the server than in the leg's record; expected the same"
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"event_tokens": [511]}, "tokens, arrivals and tokens of events are (512, 512, 511); expected one number"),
        ({"done_ns": 0}, "arrival_ns and done_ns: seen a time before an earlier one; expected none"),
        ({"token_sha256": "0" * 64}, "token_sha256: seen another digest; expected that of token_ids"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(changed: dict[str, JSON], message: str) -> None:
    row = lab.records(lab.legs(lab.metadata_starts())[:1])[0].rows[0].canonical()
    assert isinstance(row, dict)
    with pytest.raises(UnusableEvidenceError) as caught:
        parse_model(row | changed, SuiteRow, "leg.json")
    assert str(caught.value) == f"leg.json: Value error, {message}"


@pytest.mark.parametrize("name", ["idle-01-before.json", "idle-01-after.json", "legs/01-A1/host.json"])
def test_surroundings_of_another_form_are_refused(name: str, tmp_path: Path) -> None:
    put(tmp_path, name, {"other": 1})
    with pytest.raises(UnusableEvidenceError, match=rf"^{name.rpartition('/')[2]}: "):
        read_surroundings(tmp_path, "01-A1", None)


def test_what_has_to_be_there_is_missed_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UnusableEvidenceError, match=r"^plan\.json: cannot be read"):
        read_model(tmp_path / PLAN, EndpointPlan)
    with pytest.raises(UnusableEvidenceError, match=r"^identity\.json: cannot be read"):
        read_identity(tmp_path)
    with pytest.raises(UnusableEvidenceError, match=r"^teacher\.json: cannot be read"):
        read_teacher(tmp_path / "teacher.json")


@pytest.mark.parametrize(("content", "message"), [(b"{\xff", "not strict JSON"), (b"{}", "source_sha256: Field r")])
def test_a_teacher_of_another_form_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "teacher.json").write_bytes(content)
    with pytest.raises(UnusableEvidenceError, match=rf"^teacher\.json: {message}"):
        read_teacher(tmp_path / "teacher.json")
