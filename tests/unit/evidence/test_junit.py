# SPDX-License-Identifier: Apache-2.0
"""The report as its readers see it, and what is said of one that is none."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from pytest_laguna.evidence.junit import Case, read_junit, write_junit, xml_text
from pytest_laguna.verdict import UnusableEvidenceError, Verdict

CASES = (
    Case("gates/parts/a.py::Test::test_one", "one", Verdict.PASS, seconds=0.25),
    Case("gates/a.py::test_two[x::1]", "two", Verdict.FAIL, "expected 1", "trace\nback", 1.5, ("b.log", "c.log")),
)


def report() -> bytes:
    return write_junit("a gate", {"nonce": "a"}, CASES)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b\x08c", "abc"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\udcff\ud800", "??"),
        ("\u00e9\ufffe\t\n", "\u00e9\t\n"),
    ],
)
def test_text_is_shown_without_what_xml_cannot_hold(text: str, shown: str) -> None:
    assert xml_text(text) == shown


def test_a_reader_of_junit_finds_names_times_and_counts() -> None:
    (suite,) = ElementTree.fromstring(report())  # noqa: S314 - our own
    assert suite.attrib == {
        "name": "a gate", "tests": "2", "failures": "1", "errors": "0", "skipped": "0", "time": "1.750",
    }  # fmt: skip
    assert [case.attrib for case in suite.findall("testcase")] == [
        {"classname": "gates.parts.a", "name": "Test::test_one", "file": "gates/parts/a.py", "time": "0.250"},
        {"classname": "gates.a", "name": "test_two[x::1]", "file": "gates/a.py", "time": "1.500"},
    ]
    assert read_junit(report()).cases == CASES


def test_a_result_may_come_without_message_or_text() -> None:
    bare = report().replace(b' message="expected 1"', b"")
    assert [(case.reason, case.detail) for case in read_junit(bare).cases][1] == ("", "expected 1\ntrace\nback")
    silent = report().replace(b">expected 1\ntrace\nback<", b"><")
    assert [(case.reason, case.detail) for case in read_junit(silent).cases][1] == ("expected 1", "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"testcase", b"case", r"element case (Test::test_one) is not a test case with file and name"),
        (b' file="gates/a.py"', b"", "element testcase (test_two[x::1]) is not a test case with file and name"),
        (b'<property name="nonce" value="a" />', b'<mark name="nonce" value="a" />', "testsuite has a property"),
        (b"<testcase", b"<properties /><testcase", "testsuite has 3 properties elements; expected one"),
        (b"</testcase>", b"<properties /></testcase>", "Test::test_one has 2 properties elements; expected one"),
        (b"</testcase>", b"<system-out /></testcase>", "Test::test_one has another system-out than marks of its 0 att"),
        (b"<failure", b'<failure type="FAIL" /><failure', "holds failure FAIL, failure FAIL; expected one"),
        (b"<failure", b"<skipped /><failure", "test_two[x::1] holds skipped None, failure FAIL; expected one failure"),
        (b' type="FAIL"', b"", "test_two[x::1] holds failure None; expected one failure or error"),
        (b'time="1.500"', b"", "test_two[x::1] has time ''; expected seconds with three decimals"),
        (b' value="b.log"', b"", "test_two[x::1] has another system-out than marks of its 2 attachments"),
        (b'value="FAIL"', b'value="PASS"', "test_two[x::1] states verdict PASS; its result is FAIL"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_of_what(old: bytes, new: bytes, message: str) -> None:
    assert old in report()
    with pytest.raises(UnusableEvidenceError) as caught:
        read_junit(report().replace(old, new))
    assert str(caught.value).startswith("junit.xml: ")
    assert message in str(caught.value)
    assert message.startswith(("element", "testsuite", "holds")) or f"junit.xml: {message}" in str(caught.value)
