# SPDX-License-Identifier: Apache-2.0
"""``laguna verify --junit``: roots that were made elsewhere, as a JUnit report of the job that collects them.

It differs from the report inside an attempt, which is one gate's and a part of the evidence: it has a suite for each
gate, each suite's first case is the gate itself, which is there whatever could be read, and it names files by their
path in the root. A class name is a gate's, since readers that throw suites together tell cases apart by it.

The form is what GitLab's reader and the usual GitHub actions look at: counts, ``classname``, ``name``, ``file``,
``time``, a ``failure`` or an ``error`` with type and message, ``properties``, and in ``system-out`` GitLab's mark of an
attachment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from pytest_laguna.evidence import root
from pytest_laguna.evidence.junit import RESULT_TAG, xml_text
from pytest_laguna.report.attempt import show_attempt
from pytest_laguna.report.clauses import files_behind
from pytest_laguna.verdict import UnusableEvidenceError, Verdict
from pytest_laguna.verification import GateReport

NO_ATTEMPT = "holds no attempt"

_ATTACHED = 20
"""Files that a case names; a reader shows the first few, and the manifest has them all."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    """A gate or one of its clauses; ``files`` are paths below the gate's directory."""

    name: str
    verdict: Verdict
    reason: str
    detail: str = ""
    file: str = ""
    seconds: float = 0.0
    files: tuple[Path, ...] = ()


def collected_junit(sealed_root: Path, reports: Sequence[GateReport]) -> bytes:
    """The report of a root, or of several that were copied into one.

    Args:
        sealed_root: as it is called in the report's paths.
        reports: of the newest attempt of each gate, as verification gives them.

    Returns:
        XML in UTF-8. Without any attempt it has one case, which is an error.
    """
    suites = [_suite(sealed_root, report) for report in reports]
    if not suites:
        nothing = _Case("root", Verdict.NOT_PROVEN, f"{sealed_root} {NO_ATTEMPT}")
        suites = [_element(str(sealed_root), "root", {}, [nothing])]
    document = ElementTree.Element("testsuites", {
        name: str(sum(int(suite.attrib[name]) for suite in suites))
        for name in ("tests", "failures", "errors", "skipped")
    })  # fmt: skip
    document.extend(suites)
    ElementTree.indent(document)
    content: bytes = ElementTree.tostring(document, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _suite(sealed_root: Path, report: GateReport) -> ElementTree.Element:
    place = sealed_root / report.campaign / report.lane / f"gate{report.gate}"
    attempt = root.attempt_directory(place, report.attempt)
    gate = _Case(f"gate {report.gate}", report.verdict, report.reason, files=_receipt(attempt, report))
    properties = {
        "campaign": report.campaign,
        "lane": report.lane,
        "gate": str(report.gate),
        "attempt": str(report.attempt),
        "verdict": str(report.verdict),
        "reason": report.reason,
        "receipt_sha256": report.receipt or "none",
        "evidence": str(attempt),
    }
    if report.analysis is not None and report.start is not None:
        properties |= {"campaign_digest": report.start.identity.campaign, "nonce": report.start.nonce}
        properties |= {f"figure.{name}": value for name, value in report.analysis.figures.items()}
    name = f"{report.campaign} {report.lane} gate {report.gate}"
    classname = f"{report.campaign}.{report.lane}.gate{report.gate}"
    return _element(name, classname, properties, [gate, *_clauses(attempt, report)])


def _receipt(attempt: Path, report: GateReport) -> tuple[Path, ...]:
    return (attempt / root.RECEIPT,) if report.receipt is not None else ()


def _clauses(attempt: Path, report: GateReport) -> Iterator[_Case]:
    """What each clause came to; nothing where a rule of verification speaks against the attempt."""
    try:
        shown = show_attempt(attempt, report) if report.attempt else None
    except UnusableEvidenceError as error:
        yield _Case("files", Verdict.VOID, f"changed since it was verified: {error}")
        return
    for result in shown.analysis.clauses if shown is not None else ():
        behind = [attempt / entry.path for entry in files_behind(shown, result.clause)] if shown is not None else []
        yield _Case(
            name=result.clause,
            verdict=result.verdict,
            reason=result.reason,
            detail=result.detail,
            file=result.nodeid.partition("::")[0],
            seconds=result.seconds,
            files=tuple(behind[:_ATTACHED]),
        )


def _element(name: str, classname: str, properties: dict[str, str], cases: Sequence[_Case]) -> ElementTree.Element:
    tags = [RESULT_TAG.get(case.verdict) for case in cases]
    suite = ElementTree.Element("testsuite", {
        "name": xml_text(name),
        "tests": str(len(cases)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
        "skipped": "0",
        "time": f"{sum(case.seconds for case in cases):.3f}",
    })  # fmt: skip
    _properties(suite, properties)
    for case in cases:
        _case(suite, classname, case)
    return suite


def _properties(parent: ElementTree.Element, properties: dict[str, str]) -> None:
    if properties:
        listing = ElementTree.SubElement(parent, "properties")
        for key, value in properties.items():
            ElementTree.SubElement(listing, "property", {"name": xml_text(key), "value": xml_text(value)})


def _case(suite: ElementTree.Element, classname: str, case: _Case) -> None:
    attributes = {"classname": xml_text(classname), "name": xml_text(case.name), "time": f"{case.seconds:.3f}"}
    element = ElementTree.SubElement(
        suite, "testcase", attributes | ({"file": xml_text(case.file)} if case.file else {})
    )
    _properties(element, {"verdict": str(case.verdict)})
    tag = RESULT_TAG.get(case.verdict)
    if tag is not None:
        found = {"type": str(case.verdict), "message": xml_text(case.reason)}
        text = xml_text("\n".join(part for part in (case.reason, case.detail) if part))
        ElementTree.SubElement(element, tag, found).text = text
    if case.files:
        marks = "\n".join(f"[[ATTACHMENT|{path}]]" for path in case.files)
        ElementTree.SubElement(element, "system-out").text = xml_text(marks)
