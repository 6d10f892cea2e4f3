# SPDX-License-Identifier: Apache-2.0
"""``laguna verify --junit``: sealed roots made elsewhere, as a JUnit report of the collecting job.

The report inside an attempt covers one gate and is evidence. This one has a suite for each gate. Its first case is the
gate itself, present even if nothing could be read, and file names are paths in the root. Class names contain the gate,
for readers that merge suites.

The form is that of GitLab's reader and the usual GitHub actions: counts, ``classname``, ``name``, ``file``, ``time``, a
``failure`` or an ``error`` with type and message, ``properties``, and in ``system-out`` GitLab's mark of an attachment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from pytest_laguna.evidence import root
from pytest_laguna.evidence.junit import Case, render, suite_element, write_case
from pytest_laguna.report.shown import show_attempt
from pytest_laguna.verdict import UnusableEvidenceError, Verdict
from pytest_laguna.verify.verification import GateReport, clause_cases


def collected_junit(sealed_root: Path, reports: Sequence[GateReport]) -> bytes:
    """JUnit report of one root, or of several copied into one, as XML in UTF-8.

    The name of ``sealed_root`` is part of the report's paths; ``reports`` hold the newest attempt of each gate.
    """
    suites = [_suite(sealed_root, report) for report in reports]
    document = ElementTree.Element("testsuites", {
        name: str(sum(int(suite.attrib[name]) for suite in suites))
        for name in ("tests", "failures", "errors", "skipped")
    })  # fmt: skip
    document.extend(suites)
    return render(document)


def _suite(sealed_root: Path, report: GateReport) -> ElementTree.Element:
    place = sealed_root / report.campaign / report.lane / f"gate{report.gate}"
    attempt = root.attempt_directory(place, report.attempt)
    # A report of no gate is named by its reason's subject: readers drop one of two cases with the same name.
    called = f"gate {report.gate}" if report.gate else report.reason.partition(":")[0]
    gate = Case("", called, report.verdict, report.reason, files=_receipt(attempt, report))
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


def _receipt(attempt: Path, report: GateReport) -> tuple[str, ...]:
    return (str(attempt / root.RECEIPT),) if report.receipt is not None else ()


def _clauses(attempt: Path, report: GateReport) -> Iterator[Case]:
    """Each clause with its verdict; nothing if verification has a finding against the attempt."""
    try:
        shown = show_attempt(attempt, report) if report.attempt else None
    except UnusableEvidenceError as error:
        yield Case("", "files", Verdict.VOID, f"changed since it was verified: {error}")
        return
    if shown is not None:
        yield from clause_cases(
            shown.analysis, [entry.path for entry in shown.manifest.entries if entry.kind == "file"], attempt
        )


def _element(name: str, classname: str, properties: dict[str, str], cases: Sequence[Case]) -> ElementTree.Element:
    suite = suite_element(name, properties, cases)
    for case in cases:
        file = case.nodeid.partition("::")[0]
        attributes = {"classname": classname, "name": case.clause} | ({"file": file} if file else {})
        write_case(suite, attributes, case)
    return suite
