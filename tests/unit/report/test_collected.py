# SPDX-License-Identifier: Apache-2.0
"""The JUnit reports, read by the reader that GitHub's usual action uses, and by the rules of GitLab's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_laguna import cli
from pytest_laguna.evidence import root
from pytest_laguna.verdict import Verdict
from tests.demo import writable
from tests.sealed import build, good_events, phase

junitparser = pytest.importorskip("junitparser")

SECOND = "checks/test_first.py::test_second"
TAGS = {"stop": ("Failure", Verdict.STOP), "assertion": ("Failure", Verdict.FAIL), "unusable": ("Error", Verdict.VOID),
        "skip": ("Error", Verdict.NOT_PROVEN)}  # fmt: skip


def events_of(cause: str) -> list[tuple[Any, dict[str, Any]]]:
    events = good_events()
    place = events.index(phase(SECOND, "call"))
    failed = phase(
        SECOND, "call", outcome="failed", cause=cause, reason="a <reason>", detail="\x1b[31mred\x1b[0m & \x00"
    )
    return [*events[:place], failed, *events[place + 1 :]]


def collected(sealed: Path, out: Path, code: int) -> Any:
    assert cli.main(["verify", str(sealed), "--junit", str(out)]) == code
    return junitparser.JUnitXml.fromfile(str(out))


def as_gitlab_reads(file: Path) -> dict[tuple[str, str], tuple[str, str | None]]:
    """Status and attachment of each case by class and name, by the rules of GitLab's reader.

    Of each case of any suite it takes ``classname``, ``name``, ``file``, ``time``, the first of failure, error
    and skipped, and the first ``[[ATTACHMENT|path]]`` of ``system-out``. Source: GitLab's documentation of unit test
    reports.
    """
    found = {}
    for case in ElementTree.parse(file).iter("testcase"):  # noqa: S314 - our own file
        key = case.attrib["classname"], case.attrib["name"]
        assert key not in found, "GitLab would drop one of two cases with this key"
        status = next((tag for tag in ("failure", "error", "skipped") if case.find(tag) is not None), "success")
        mark = re.search(r"\[\[ATTACHMENT\|(.+?)\]\]", case.findtext("system-out") or "")
        found[key] = status, mark[1] if mark else None
    return found


@pytest.mark.parametrize("cause", TAGS)
def test_a_verdict_is_a_failure_or_an_error_of_its_type(cause: str, tmp_path: Path) -> None:
    build(tmp_path, events_of(cause), exit_status=1)
    tag, verdict = TAGS[cause]
    (suite,) = collected(tmp_path / "sealed", tmp_path / "gates.xml", verdict.exit_code)
    assert (suite.name, suite.tests, suite.failures + suite.errors) == ("demo cpu gate 1", 3, 2)
    gate, first, second = suite
    assert first.is_passed
    for case in (gate, second):
        (result,) = case.result
        assert (type(result).__name__, result.type) == (tag, verdict)
        assert "a <reason>" in result.message
    assert "red & " in second.result[0].text
    assert {one.name: one.value for one in suite.properties()}["verdict"] == verdict


def test_readers_that_throw_suites_together_keep_every_case(tmp_path: Path) -> None:
    build(tmp_path)
    sealed = tmp_path / "sealed"
    (sealed / "demo").rename(sealed / "other")
    build(tmp_path)
    assert cli.main(["verify", str(sealed), "--junit", str(tmp_path / "gates.xml")]) == Verdict.VOID.exit_code
    read = as_gitlab_reads(tmp_path / "gates.xml")
    assert read["demo.cpu.gate1", "first"][0] == "success"
    assert read["other.cpu.gate1", "gate 1"][0] == "error"


def test_each_case_names_files_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(evidence: Path) -> None:
        (evidence / "first").mkdir(mode=0o700)
        (evidence / "first" / "arm.log").write_text("ran\n")

    build(tmp_path, before_sealing=write)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["verify", "sealed", "--junit", "gates.xml"]) == 0
    read = as_gitlab_reads(tmp_path / "gates.xml")
    assert read["demo.cpu.gate1", "gate 1"] == ("success", "sealed/demo/cpu/gate1/0001/receipt.json")
    assert read["demo.cpu.gate1", "first"] == ("success", "sealed/demo/cpu/gate1/0001/evidence/first/arm.log")
    assert read["demo.cpu.gate1", "second"] == ("success", None)
    assert all(path is None or (tmp_path / path).is_file() for _, path in read.values())


def test_the_report_inside_an_attempt_names_its_files_where_pytest_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(evidence: Path) -> None:
        (evidence / "second").mkdir(mode=0o700)
        for name in ("a & b.json", "arm.log"):
            (evidence / "second" / name).write_text("ran\n")

    monkeypatch.chdir(tmp_path)
    report = build(tmp_path, events_of("stop"), exit_status=1, before_sealing=write) / root.JUNIT
    place = "sealed/demo/cpu/gate1/0001"
    read = as_gitlab_reads(report)
    assert read["checks.test_first", "test_first"] == ("success", None)
    assert read["checks.test_first", "test_second"] == ("failure", f"{place}/evidence/second/a & b.json")
    (suite,) = junitparser.JUnitXml.fromfile(str(report))
    assert {one.name: one.value for one in suite.properties()}["evidence"] == place
    (case,) = [case for case in suite if not case.is_passed]
    attached = [one.value for one in case.child(junitparser.Properties) if one.name == "attachment"]
    assert attached == [f"{place}/evidence/second/{name}" for name in ("a & b.json", "arm.log")]
    assert all((tmp_path / path).is_file() for path in attached)
    assert case.system_out.splitlines() == [f"[[ATTACHMENT|{path}]]" for path in attached]
    (result,) = case.result
    assert (result.type, result.message) == (Verdict.STOP, "call: a <reason>")
    assert result.text.startswith("call: a <reason>\n")


def test_of_an_attempt_that_lies_the_gate_alone_is_there(tmp_path: Path) -> None:
    attempt = build(tmp_path)
    with writable(attempt):
        (attempt / root.RECEIPT).unlink()
    (suite,) = collected(tmp_path / "sealed", tmp_path / "gates.xml", Verdict.NOT_PROVEN.exit_code)
    (case,) = suite
    assert (case.name, case.result[0].type) == ("gate 1", Verdict.NOT_PROVEN)


def test_a_root_without_an_attempt_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "sealed").mkdir()
    (suite,) = collected(tmp_path / "sealed", tmp_path / "gates.xml", Verdict.NOT_PROVEN.exit_code)
    assert (suite.tests, suite.errors) == (1, 1)
    (case,) = suite
    assert "holds no attempt" in case.result[0].message


def test_it_is_never_written_into_the_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["verify", str(tmp_path / "sealed"), "--junit", str(tmp_path / "sealed" / "gates.xml")])
    assert (ended.value.code, "stays as it was sealed" in capsys.readouterr().err) == (4, True)
