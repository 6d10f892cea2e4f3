# SPDX-License-Identifier: Apache-2.0
"""``laguna report``: a sealed root as one self-contained HTML file, from values derived again by verification.

The same root gives the same bytes. The file holds no script, and its content policy forbids every request.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_laguna.evidence import root
from pytest_laguna.evidence.aa.rehearsal import NullAnalysis
from pytest_laguna.evidence.diagnostic.analysis import NOTICE, Diagnosis
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.evidence.events.analysis import EventAnalysis
from pytest_laguna.evidence.experiments import DIAGNOSTIC
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.report import aa as null
from pytest_laguna.report import diagnostic, endpoint, events
from pytest_laguna.report.clauses import badge, clause_table
from pytest_laguna.report.figures import Drawing
from pytest_laguna.report.machine import machine_section
from pytest_laguna.report.markup import Markup, code, details, element, facts, joined, table
from pytest_laguna.report.shown import ShownAttempt, show_attempt
from pytest_laguna.report.style import STYLE
from pytest_laguna.verdict import Verdict, worst
from pytest_laguna.verify.verification import GateReport

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

MEANINGS = {
    Verdict.PASS: "every clause is proven",
    Verdict.STOP: "the evidence is good and says no",
    Verdict.FAIL: "a contract is broken",
    Verdict.VOID: "the evidence is unusable: the harness is at fault",
    Verdict.NOT_PROVEN: "something is missing",
}
"""Meaning of each verdict, as in the README."""

_LAST_GATE = len(root.GATES)
_DIAGNOSING = DIAGNOSTIC.gate


def require_matplotlib() -> None:
    """Require matplotlib before any work is done.

    Raises:
        ValueError: it is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        message = "matplotlib: not installed; expected it for the report's figures; pip install 'pytest-laguna[report]'"
        raise ValueError(message)


def report_document(sealed_root: Path, reports: Sequence[GateReport]) -> bytes:
    """Report of a root as HTML in UTF-8, from ``verify_root``'s reports; the root is only read.

    Raises:
        OSError: a file of an attempt cannot be read.
        UnusableEvidenceError: a file of an attempt changed since it was verified.
    """
    drawing = Drawing()
    name, version = sealed_root.resolve().name, importlib.metadata.version("pytest-laguna")
    body = [
        element("h1", _title(reports)),
        element("p", "Sealed root ", code(name), f", read by pytest-laguna {version}", class_="soft"),
        _told(reports),
        *_chains(reports),
        *(_attempt(sealed_root, report, drawing) for report in reports if report.gate),
        _foot(),
    ]
    head = joined([
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        element("title", f"{name}: {_overall(reports)}"),
        element("style", Markup(STYLE)),
    ])
    document = element("html", element("head", head), element("body", element("main", *body)), lang="en")
    return f"<!doctype html>\n{document}\n".encode()


def _overall(reports: Sequence[GateReport]) -> Verdict:
    return worst(report.verdict for report in reports)


def _title(reports: Sequence[GateReport]) -> str:
    campaigns = dict.fromkeys(report.campaign for report in reports if report.gate)
    return f"Gates of {', '.join(campaigns)}" if campaigns else "No gate"


def _told(reports: Sequence[GateReport]) -> Markup:
    """Overall verdict and the meanings of all."""
    overall = _overall(reports)
    line = joined([
        badge(overall),
        f" {MEANINGS[overall]}. Every verdict below was derived again from the raw files.",
    ])
    return joined([
        element("p", line),
        details("meaning of the verdicts", facts([(badge(v), MEANINGS[v]) for v in Verdict])),
    ])


def _chains(reports: Sequence[GateReport]) -> Iterator[Markup]:
    """Gates of each campaign on each lane, in order, also those without an attempt."""
    for report in reports:
        if not report.gate:
            yield element("p", badge(report.verdict), " ", report.reason, class_="notice")
    gates = filter(lambda report: report.gate, reports)
    for (campaign, lane), group in itertools.groupby(gates, key=lambda report: (report.campaign, report.lane)):
        found = {report.gate: report for report in group}
        yield element("h2", f"{campaign}, lane {lane}")
        yield element("div", *(_link(found.get(gate), gate) for gate in _gates(found)), class_="chain")


def _gates(found: dict[int, GateReport]) -> list[int]:
    return sorted({*range(1, _LAST_GATE + 1), *found})


def _link(report: GateReport | None, gate: int) -> Markup:
    if report is None:
        words = (element("div", f"gate {gate}", class_="title"), element("div", "no attempt", class_="reason"))
        return element("a", *words, class_="REFUSED")
    title = f"gate {gate}, attempt {report.attempt:04d}" if report.attempt else f"gate {gate}"
    return element(
        "a",
        element("div", title, class_="title"),
        badge(report.verdict),
        element("div", report.reason, class_="reason"),
        class_=str(report.verdict),
        href=f"#{_anchor(report)}",
    )


def _anchor(report: GateReport) -> str:
    return f"{report.campaign}-{report.lane}-{report.gate}"


def _attempt(sealed_root: Path, report: GateReport, drawing: Drawing) -> Markup:
    title = f"{report.campaign}, {report.lane}, gate {report.gate}" + (
        f", attempt {report.attempt:04d}" if report.attempt else ""
    )
    content = [element("h2", title, id=_anchor(report)), element("p", badge(report.verdict), " ", report.reason)]
    gate = sealed_root / report.campaign / report.lane / f"gate{report.gate}"
    shown = show_attempt(root.attempt_directory(gate, report.attempt), report) if report.attempt else None
    if shown is None:
        content.append(element("p", _silent(report), class_="notice"))
    else:
        content += _content(shown, drawing)
    return element("section", *content, class_="attempt")


def _silent(report: GateReport) -> str:
    if not report.attempt:
        return "This gate has no attempt."
    return "The files of this attempt are not shown: verification does not trust it, so none of its figures counts."


def _content(shown: ShownAttempt, drawing: Drawing) -> Iterator[Markup]:
    if NOTICE in shown.analysis.reason or (
        shown.derived is not None and shown.derived.experiment.row.gate == _DIAGNOSING
    ):
        yield element("p", NOTICE.capitalize() + ".", class_="notice")
    yield from _earlier(shown)
    yield element("h3", "Clauses")
    yield clause_table(shown)
    if shown.missing:
        yield element("p", f"The gate's own analysis is not shown: {shown.missing}", class_="notice")
    yield from _figures(shown, drawing)
    yield element("h3", "Limits of this evidence")
    yield element("ul", *(element("li", line) for line in _undetectable(shown)))
    yield from _unexercised(shown)
    yield machine_section(shown)
    yield from _files(shown)


_SECTIONS: Mapping[type[Schema], tuple[Callable[..., Markup], Callable[..., Iterator[str]]]] = {
    Diagnosis: (diagnostic.diagnostic_section, diagnostic.undetectable),
    EventAnalysis: (events.events_section, events.undetectable),
    EndpointAnalysis: (endpoint.endpoint_section, endpoint.undetectable),
    NullAnalysis: (null.null_section, null.undetectable),
}
"""By type of analysis: its section, and the limits of its measurements."""


def _figures(shown: ShownAttempt, drawing: Drawing) -> Iterator[Markup]:
    if shown.derived is None:
        return
    if type(shown.derived.analysis) in _SECTIONS:
        section, _ = _SECTIONS[type(shown.derived.analysis)]
        yield section(shown, shown.derived.analysis, drawing)
    elif shown.derived.figures:
        yield element("h3", "Figures")
        yield facts([(name, value) for name, value in shown.derived.figures.items()])


def _undetectable(shown: ShownAttempt) -> Iterator[str]:
    if shown.derived is not None and type(shown.derived.analysis) in _SECTIONS:
        _, undetectable = _SECTIONS[type(shown.derived.analysis)]
        yield from undetectable(shown.derived.analysis)
    else:
        yield "This gate has no analysis of time: statements of its tests about speed have no interval."
    if shown.start.lane == "cpu" and shown.start.gate > 1:
        yield "The cpu lane shows correct code paths and results; it says nothing about speed on a card."
    yield "Only a receipt's digest kept elsewhere shows that nobody rewrote the whole root."


def _unexercised(shown: ShownAttempt) -> Iterator[Markup]:
    rows = [(code(clause), code(rule), why) for clause, rule, why in shown.analysis.unexercised]
    if rows:
        yield details(f"{len(rows)} rules that prove nothing here", table(("clause", "rule", "why"), rows))


def _earlier(shown: ShownAttempt) -> Iterator[Markup]:
    rows = [
        (f"{one.attempt:04d}", badge(one.verdict), code((one.receipt or "none")[:16])) for one in shown.start.earlier
    ]
    if rows:
        yield element("p", f"Earlier attempts at this gate: all {len(rows)}.")
        yield table(("attempt", "verdict", "receipt"), rows)


def _files(shown: ShownAttempt) -> Iterator[Markup]:
    rows = [
        (code(entry.path), str(entry.size), code(entry.sha256 or ""))
        for entry in shown.manifest.entries
        if entry.kind == "file"
    ]
    yield details(f"{len(rows)} files of the attempt", table(("file", "bytes", "SHA-256"), rows))


def _foot() -> Markup:
    told = "This file only describes the sealed root. The root is the evidence: check it with laguna verify."
    return element("p", told, class_="soft")
