# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.journal import Journal, read_journal
from pytest_laguna.evidence.junit import Case, read_junit, write_junit
from pytest_laguna.evidence.schemas import Manifest
from pytest_laguna.verdict import JSON, UnusableEvidenceError, Verdict, worst

CASES = (
    Case("gates/a.py::test_one", "one", Verdict.PASS, seconds=0.25),
    Case("gates/a.py::test_two[x-1]", "two", Verdict.FAIL, "expected 1 & saw 2", "trace\nback", 1.5),
    Case("gates/a.py::test_three", "three", Verdict.VOID, "<torn>"),
)


# Files


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    files.write_new(tmp_path / "a", b"1")
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "a", b"2")
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "a").stat().st_mode & 0o777) == (b"1", 0o600)


def test_large_writes_are_complete(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    files.write_new(tmp_path / "a", content)
    assert files.sha256_file(tmp_path / "a") == files.sha256_bytes(content)


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, "\ud800", {"a": [-math.inf]}])
def test_values_without_a_canonical_form_are_refused(value: object) -> None:
    with pytest.raises(UnusableEvidenceError, match="cannot be written as RFC 8785 JSON"):
        files.canonical_json(value)  # type: ignore[arg-type]


def test_canonical_json_is_that_of_the_standard() -> None:
    # RFC 8785, section 3.2.2 and 3.2.3: number forms and the order of keys by UTF-16 code units
    value: JSON = {"\u20ac": 1, "\r": 2, "1": 333333333.33333329, "\U0001f600": 1e30, "a": 4.50, "\u0080": 2e-3}
    expected = '{"\\r":2,"1":333333333.3333333,"a":4.5,"\u0080":0.002,"\u20ac":1,"\U0001f600":1e+30}'
    assert files.canonical_json(value) == expected.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}', "not in canonical form"),
        (b'{"a":1,"a":1}', "not in canonical form"),
        (b'{"b":1,"a":1}', "not in canonical form"),
        (b'{"a":1}\n', "not in canonical form"),
        (b'{"a":NaN}', "cannot be written"),
        (b'{"a":1', "not JSON"),
        (b"\xff", "not JSON"),
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_other_spellings_of_json_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UnusableEvidenceError, match=message):
        files.read_canonical_json(tmp_path / "x.json")


def test_reading_follows_no_link_and_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("real")
    assert files.read_bytes(tmp_path / "real", limit=5) == b"12345"
    with pytest.raises(UnusableEvidenceError, match="larger than 4 bytes"):
        files.read_bytes(tmp_path / "real", limit=4)
    for name in ("link", "missing", "."):
        with pytest.raises(UnusableEvidenceError, match="cannot be read"):
            files.read_bytes(tmp_path / name, limit=9)


# Journal


def _journal(path: Path) -> bytes:
    journal = Journal(path, "0" * 64)
    journal.append("session-started", nonce="n")
    journal.append("test-started", nodeid="a.py::b")
    journal.append("session-finished", exit_status=0)
    journal.close()
    return path.read_bytes()


def test_a_journal_comes_back_as_it_was_written(tmp_path: Path) -> None:
    _journal(tmp_path / "journal.jsonl")
    events = read_journal(tmp_path / "journal.jsonl", "0" * 64)
    assert [event.kind for event in events] == ["session-started", "test-started", "session-finished"]
    with pytest.raises(UnusableEvidenceError, match="line 1: the chain is broken"):
        read_journal(tmp_path / "journal.jsonl", "1" * 64)


def test_each_event_is_on_the_disk_before_the_next(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", "0" * 64)
    for count in (1, 2):
        journal.append("problem", reason="x")
        assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) == count


def test_a_damaged_journal_names_the_line(tmp_path: Path) -> None:
    lines = _journal(tmp_path / "journal.jsonl").splitlines(keepends=True)
    damaged = {
        "line 2: the chain": [lines[0], lines[2]],
        "line 4: the chain": [*lines, lines[2]],
        "line 1: the chain": [lines[1], lines[0], lines[2]],
        "line 3: cut off": [lines[0], lines[1], lines[2][:-1]],
        "line 2: not JSON": [lines[0], lines[1][:-5] + b"\n", lines[2]],
        "line 2: not an event": [lines[0], lines[1].replace(b"test-started", b"test-staged"), lines[2]],
        "line 2: not in canonical form": [lines[0], lines[1].replace(b"{", b"{ ", 1), lines[2]],
        "line 3: the chain": [lines[0], lines[1].replace(b"a.py::b", b"a.py::c"), lines[2]],
    }
    for message, content in damaged.items():
        (tmp_path / "journal.jsonl").write_bytes(b"".join(content))
        with pytest.raises(UnusableEvidenceError, match=message):
            read_journal(tmp_path / "journal.jsonl", "0" * 64)


# JUnit


def test_a_report_comes_back_as_it_was_written() -> None:
    content = write_junit("suite", {"nonce": "a", "gate": "1"}, CASES)
    report = read_junit(content)
    assert (report.properties, report.cases) == ({"nonce": "a", "gate": "1"}, CASES)
    assert b'<failure type="FAIL" message="expected 1 &amp; saw 2">' in content
    assert b'<error type="VOID"' in content


@given(st.text(), st.text())
def test_any_text_makes_a_report_that_can_be_read(reason: str, detail: str) -> None:
    case = Case("a.py::t", "c", Verdict.FAIL, reason, detail)
    (read,) = read_junit(write_junit("suite", {"text": reason}, [case])).cases
    assert (read.verdict, read.clause) == (Verdict.FAIL, "c")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b' tests="3"', b"", "states tests=None; its cases add up to 3"),
        (b' tests="3"', b' tests="2"', "states tests=2; its cases add up to 3"),
        (b' failures="1"', b' failures="0"', "states failures=0"),
        (b' errors="1"', b"", "states errors=None"),
        (b' skipped="0"', b' skipped="1"', "states skipped=1"),
        (b"<testsuites>", b"<!DOCTYPE x [<!ENTITY e 'x'>]><testsuites>", "document type"),
        (b"<testsuites>", b"<testsuites><testsuite/>", "exactly one testsuite"),
        (b'type="FAIL"', b'type="PASS"', "expected one failure or error"),
        (b'type="FAIL"', b'type="VOID"', "expected one failure or error"),
        (b"<failure", b"<skipped/><failure", "expected one failure or error"),
        (b'value="FAIL"', b'value="PASS"', "states verdict PASS; its result is FAIL"),
        (b'name="test_one"', b'name="test_three"', "stands twice"),
        (b'name="test_one"', b"", "not a test case"),
        (b'time="0.250"', b'time="nan"', "expected seconds"),
        (b'<property name="clause" value="one" />', b"", "states verdict"),
        (b'<property name="nonce" value="a" />', b'<property name="nonce" />', "doubled or lacks"),
        (b"</testsuites>", b"", "not XML"),
        (b"utf-8", b"utf-99", "not XML"),
    ],
)
def test_a_report_that_lies_is_refused(old: bytes, new: bytes, message: str) -> None:
    content = write_junit("suite", {"nonce": "a"}, CASES)
    assert old in content
    with pytest.raises(UnusableEvidenceError, match=message):
        read_junit(content.replace(old, new, 1))


def test_an_empty_file_is_no_report() -> None:
    with pytest.raises(UnusableEvidenceError, match="not XML"):
        read_junit(b"")


# Root


def test_the_manifest_lists_everything_but_itself_and_the_receipt(tmp_path: Path) -> None:
    for name in (root.MANIFEST, root.RECEIPT, "a", "d/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    manifest = root.take_manifest(tmp_path)
    assert [(entry.path, entry.kind, entry.size) for entry in manifest.entries] == [
        ("a", "file", 1),
        ("d", "directory", None),
        ("d/b", "file", 1),
    ]
    assert root.difference(manifest, manifest) is None
    doubled = Manifest(entries=[*manifest.entries, manifest.entries[0]])
    assert root.difference(doubled, manifest) == "manifest.json: lists an entry twice or out of order"


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "\udcff").write_bytes(b"")
    with pytest.raises(UnusableEvidenceError, match="its name is not UTF-8"):
        root.take_manifest(tmp_path)


def test_an_attempt_is_never_opened_twice(tmp_path: Path) -> None:
    root.open_attempt(tmp_path / "gate1", 1)
    with pytest.raises(root.RootError, match="exists already; attempts are never reused"):
        root.open_attempt(tmp_path / "gate1", 1)


# Verdicts


def test_the_worst_verdict_is_the_one_with_the_highest_exit_code() -> None:
    assert worst([]) is Verdict.NOT_PROVEN
    assert worst([Verdict.PASS, Verdict.PASS]) is Verdict.PASS
    assert worst([Verdict.PASS, Verdict.FAIL, Verdict.STOP]) is Verdict.FAIL
    assert [verdict.exit_code for verdict in Verdict] == [0, 20, 21, 22, 23]
    assert [verdict for verdict in Verdict if verdict.closes] == [Verdict.STOP, Verdict.FAIL]


def test_verdicts_are_their_own_json() -> None:
    assert json.dumps([Verdict.PASS]) == '["PASS"]'
