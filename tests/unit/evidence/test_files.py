# SPDX-License-Identifier: Apache-2.0
"""What reading and writing files does in the cases that a good day does not see."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.journal import Journal
from pytest_laguna.verdict import JSON, UnusableEvidenceError


def test_a_file_on_the_way_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0")
    (tmp_path / ".0.new").write_bytes(b"another's")
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "a", b"1")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {".0.new": b"another's"}


def test_a_name_that_may_be_gone_after_a_crash_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "sync_directory", fail)
    with pytest.raises(OSError, match="Input/output error"):
        files.write_new(tmp_path / "a", b"1")
    assert [*tmp_path.iterdir()] == []


def test_only_a_directory_is_synchronised_as_one(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    files.sync_directory(tmp_path)
    with pytest.raises(NotADirectoryError):
        files.sync_directory(tmp_path / "a")


def test_a_pipe_is_refused_by_its_name_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file") as caught:
        files.sha256_file(tmp_path / "pipe")
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(tmp_path / "pipe"))
    with pytest.raises(
        UnusableEvidenceError, match=r"^pipe: cannot be read \(not a regular file\); expected a regular file$"
    ):
        files.read_bytes(tmp_path / "pipe", limit=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"^a: not JSON \(.*\); expected a file as it was written$"),
        (b"\xff", r"^a: not JSON \(.*\); expected a file as it was written$"),
        (b"[1 ]", r"^a: not in canonical form; expected RFC 8785 JSON as it was written$"),
        (b"[1,2,3,4]", r"^a: larger than 8 bytes; expected a file as it was written$"),
    ],
    ids=["JSON", "text", "form", "size"],
)
def test_what_is_no_json_of_ours_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(UnusableEvidenceError, match=message):
        files.read_canonical_json(tmp_path / "a", limit=8)


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"[123456]")
    assert files.read_canonical_json(tmp_path / "a", limit=8) == [123456]
    os.truncate(tmp_path / "a", 2**26 + 1)
    with pytest.raises(UnusableEvidenceError, match="larger than 67108864 bytes"):
        files.read_canonical_json(tmp_path / "a")


def test_no_more_of_a_huge_file_is_read_than_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 2**40)
    with pytest.raises(UnusableEvidenceError, match=r"^a: larger than 9 bytes"):
        files.read_bytes(tmp_path / "a", limit=9)


def test_the_tail_of_a_log_is_its_last_4_kib(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert files.read_tail(log) == []
    log.write_bytes(b"one\ntwo\xff\n\n")
    assert files.read_tail(log) == ["one", "two\ufffd"]
    log.write_bytes(b"x" * 10 + b"\n" + b"y" * 4095 + b"\n")
    assert files.read_tail(log) == ["y" * 4095]
    log.write_bytes(b"x" * 10 + b"y" * 4096)
    assert files.read_tail(log) == ["y" * 4096]


def test_text_for_a_terminal_has_no_control_in_it() -> None:
    assert files.printable("a\u00e9 \x1b[0m\u202e\n") == "a\u00e9 \\x1b[0m\\u202e\\n"


@pytest.mark.parametrize("value", [float("nan"), 2**53 + 1, "\ud800"])
def test_what_has_no_canonical_form_is_refused(value: float | str) -> None:
    with pytest.raises(
        UnusableEvidenceError, match=r"^cannot be written as RFC 8785 JSON: .*; expected finite numbers and valid text$"
    ):
        files.canonical_json([value])


@pytest.mark.parametrize("limit", [3, files.NESTING_LIMIT])
def test_lists_and_objects_lie_in_one_another_up_to_a_limit(limit: int) -> None:
    value: JSON = 1
    for level in range(limit):
        value = [value] if level % 2 else {"a": value}
    assert files.canonical_json(value, nesting=limit)
    with pytest.raises(
        UnusableEvidenceError,
        match=f"^cannot be written as JSON: nested deeper than {limit} levels; expected at most {limit}$",
    ):
        files.canonical_json([value], nesting=limit)


def test_a_journal_is_its_writers_own(tmp_path: Path) -> None:
    Journal(tmp_path / "journal", "0" * 64).close()
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600
