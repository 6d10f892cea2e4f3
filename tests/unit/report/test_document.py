# SPDX-License-Identifier: Apache-2.0
"""``laguna report``: one file that shows every verdict, can run and load nothing, and trusts no root that lies."""

from __future__ import annotations

import builtins
import html.parser
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna import cli
from pytest_laguna.evidence import root
from pytest_laguna.report import document
from pytest_laguna.verdict import Verdict
from tests.demo import writable
from tests.sealed import build, good_events, phase

SECOND = "checks/test_first.py::test_second"
CAUSES = {"stop": Verdict.STOP, "assertion": Verdict.FAIL, "unusable": Verdict.VOID, "skip": Verdict.NOT_PROVEN}


class Elements(html.parser.HTMLParser):
    """The elements of a document with their attributes, and whether each one that was opened is closed."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in {"meta", "br", "wbr"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"


def report(sealed: Path, out: Path, code: int) -> str:
    assert cli.main(["report", str(sealed), "--out", str(out)]) == code
    return out.read_text()


def events_of(cause: str, reason: str) -> list[tuple[Any, dict[str, Any]]]:
    events = good_events()
    place = events.index(phase(SECOND, "call"))
    failed = phase(SECOND, "call", outcome="failed", cause=cause, reason=reason, detail="the <traceback>")
    return [*events[:place], failed, *events[place + 1 :]]


@pytest.mark.parametrize("cause", CAUSES)
def test_each_verdict_is_shown_with_its_reason_and_its_clause(cause: str, tmp_path: Path) -> None:
    build(tmp_path, events_of(cause, "because of <this>"), exit_status=1)
    verdict = CAUSES[cause]
    content = report(tmp_path / "sealed", tmp_path / "report.html", verdict.exit_code)
    assert f"<title>sealed: {verdict}</title>" in content
    assert f'<span class="verdict {verdict}">{verdict}</span>' in content
    assert "because of &lt;this&gt;" in content
    assert "the &lt;traceback&gt;" in content
    assert document.MEANINGS[verdict] in content


def test_a_report_can_run_and_load_nothing(tmp_path: Path) -> None:
    build(tmp_path, events_of("stop", '"><script>alert(1)</script>'), exit_status=1)
    content = report(tmp_path / "sealed", tmp_path / "report.html", Verdict.STOP.exit_code)
    elements = Elements(content)
    assert elements.open == []
    assert not {"script", "link", "img", "iframe", "object", "base"} & {tag for tag, _ in elements.found}
    policies = [found["content"] for tag, found in elements.found if tag == "meta" and "http-equiv" in found]
    assert policies == [document.POLICY]
    assert document.POLICY.startswith("default-src 'none'")
    for _, attributes in elements.found:
        assert not [name for name in attributes if name.startswith("on")]
        for name in {"href", "src", "xlink:href"} & attributes.keys():
            assert (attributes[name] or "").startswith("#")
    assert not re.findall(r"url\((?!#)|@import", content)


def test_a_root_that_lies_shows_its_reason_and_none_of_its_figures(tmp_path: Path) -> None:
    attempt = build(tmp_path)
    with writable(attempt):
        analysis = (attempt / root.ANALYSIS).read_bytes()
        (attempt / root.ANALYSIS).write_bytes(analysis.replace(b'"shown"', b'"forged"'))
    content = report(tmp_path / "sealed", tmp_path / "report.html", Verdict.VOID.exit_code)
    assert "analysis.json: changed" in content
    assert "verification does not trust it" in content
    assert "forged" not in content
    assert "<h3>Clauses</h3>" not in content


def test_a_proof_is_shown_with_what_was_observed(tmp_path: Path) -> None:
    build(tmp_path)
    content = report(tmp_path / "sealed", tmp_path / "report.html", 0)
    assert "<summary>shown</summary>" in content
    assert "&quot;seen&quot;: 1" in content
    assert "Limits of this evidence" in content


def test_the_same_root_gives_the_same_bytes(tmp_path: Path) -> None:
    build(tmp_path)
    assert report(tmp_path / "sealed", tmp_path / "a.html", 0) == report(tmp_path / "sealed", tmp_path / "b.html", 0)


def test_an_empty_root_says_so(tmp_path: Path) -> None:
    (tmp_path / "sealed").mkdir()
    content = report(tmp_path / "sealed", tmp_path / "report.html", Verdict.NOT_PROVEN.exit_code)
    assert f"{tmp_path / 'sealed'}: holds no attempt; expected a sealed root" in content
    assert "<h1>No gate</h1>" in content


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 4
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_where_it_may_not_be_written_nothing_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path)
    sealed, there = tmp_path / "sealed", tmp_path / "there.html"
    there.write_text("mine")
    assert "inside" in refused(["report", str(sealed), "--out", str(sealed / "report.html")], capsys)
    assert "exists already" in refused(["report", str(sealed), "--out", str(there)], capsys)
    assert "no directory" in refused(["report", str(sealed), "--out", str(tmp_path / "no" / "x.html")], capsys)
    assert "not a directory" in refused(["report", str(tmp_path / "nowhere"), "--out", str(tmp_path / "x")], capsys)
    assert there.read_text() == "mine"


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    said = refused(["report", str(tmp_path), "--out", str(tmp_path / "report.html")], capsys)
    assert "pip install 'pytest-laguna[report]'" in said


def test_verifying_loads_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path)
    imported = builtins.__import__

    def watched(name: str, *arguments: Any, **named: Any) -> Any:
        assert name.partition(".")[0] != "matplotlib"
        return imported(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", watched)
    assert cli.main(["verify", str(tmp_path / "sealed"), "--junit", str(tmp_path / "gates.xml")]) == 0
