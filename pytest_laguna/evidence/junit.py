# SPDX-License-Identifier: Apache-2.0
"""The JUnit report of a gate: written from the analysis, read back strictly.

pytest's own writer cannot give a case the verdict as its failure type, and readers made for display accept suites
without counts, doubled cases and empty files. For a gate those are refusals.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Literal
from xml.etree import ElementTree

from pytest_laguna.verdict import UnusableEvidenceError, Verdict

SIZE_LIMIT = 64 * 1024 * 1024

ResultTag = Literal["failure", "error"]

RESULT_TAG: Mapping[Verdict, ResultTag] = {
    Verdict.STOP: "failure",
    Verdict.FAIL: "failure",
    Verdict.VOID: "error",
    Verdict.NOT_PROVEN: "error",
}

# XML 1.0, section 2.2: everything that is not a Char. Escape sequences of terminals begin with one of them.
_NOT_XML = re.compile("\x1b\\[[0-9;?]*[A-Za-z]|[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One clause's test as the report shows it.

    Attributes:
        nodeid: pytest's node id, split into class name and name on writing.
        clause: the clause's id.
        verdict: what it came to.
        reason: one line; empty for PASS.
        detail: longer text (a traceback); may be empty.
        seconds: duration of all phases.
    """

    nodeid: str
    clause: str
    verdict: Verdict
    reason: str = ""
    detail: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A JUnit file's content after strict reading."""

    properties: Mapping[str, str]
    cases: tuple[Case, ...]


def xml_text(text: str) -> str:
    """Text without what XML 1.0 cannot hold and without terminal colours."""
    return _NOT_XML.sub("", text.encode("utf-8", "replace").decode("utf-8"))


def write_junit(name: str, properties: Mapping[str, str], cases: Iterable[Case]) -> bytes:
    """Render a report: one ``testsuite`` whose counts are those of its cases.

    Args:
        name: the suite's name.
        properties: suite properties, for example campaign, lane, gate, attempt, nonce and digests.
        cases: in the order in which they ran.
    """
    listed = tuple(cases)
    tags = [RESULT_TAG.get(case.verdict) for case in listed]
    suite = ElementTree.Element("testsuite", {
        "name": xml_text(name),
        "tests": str(len(listed)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
        "skipped": "0",
        "time": f"{sum(case.seconds for case in listed):.3f}",
    })  # fmt: skip
    listing = ElementTree.SubElement(suite, "properties")
    for key, value in properties.items():
        ElementTree.SubElement(listing, "property", {"name": key, "value": xml_text(value)})
    for case in listed:
        _write_case(suite, case)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _write_case(suite: ElementTree.Element, case: Case) -> None:
    file, _, name = case.nodeid.partition("::")
    element = ElementTree.SubElement(suite, "testcase", {
        "classname": file.removesuffix(".py").replace("/", "."),
        "name": name,
        "file": file,
        "time": f"{case.seconds:.3f}",
    })  # fmt: skip
    listing = ElementTree.SubElement(element, "properties")
    ElementTree.SubElement(listing, "property", {"name": "clause", "value": case.clause})
    ElementTree.SubElement(listing, "property", {"name": "verdict", "value": case.verdict})
    tag = RESULT_TAG.get(case.verdict)
    if tag is not None:
        attributes = {"type": str(case.verdict), "message": xml_text(case.reason)}
        ElementTree.SubElement(element, tag, attributes).text = xml_text(case.detail)


def read_junit(content: bytes) -> Report:
    """Read a report that ``write_junit`` made, taking nothing on trust.

    Raises:
        UnusableEvidenceError: not XML, a document type, no or several suites, a count that is missing or not what the
            cases add up to, a skipped, doubled, nameless or unknown element, or a result whose type is not a verdict.
    """
    if b"<!" in content:
        raise UnusableEvidenceError("junit.xml: holds a document type, comment or CDATA; expected plain elements")
    try:
        root = ElementTree.fromstring(content)  # noqa: S314 - without a document type there are no entities to expand
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        message = f"junit.xml: not XML ({error}); expected the report as it was written"
        raise UnusableEvidenceError(message) from error
    if root.tag != "testsuites" or [child.tag for child in root] != ["testsuite"]:
        raise UnusableEvidenceError("junit.xml: expected testsuites with exactly one testsuite")
    suite = root[0]
    properties = _read_properties(suite, "testsuite")
    elements = [child for child in suite if child.tag != "properties"]
    cases = tuple(_read_case(element) for element in elements)
    if len({case.nodeid for case in cases}) != len(cases):
        raise UnusableEvidenceError("junit.xml: a test case stands twice; expected each once")
    _check_counts(suite, cases)
    return Report(properties, cases)


def _check_counts(suite: ElementTree.Element, cases: tuple[Case, ...]) -> None:
    tags = [RESULT_TAG.get(case.verdict) for case in cases]
    counted = {
        "tests": len(cases),
        "failures": tags.count("failure"),
        "errors": tags.count("error"),
        "skipped": 0,
    }
    for name, count in counted.items():
        stated = suite.get(name)
        if stated != str(count):
            message = f"junit.xml: testsuite states {name}={stated}; its cases add up to {count}"
            raise UnusableEvidenceError(message)


def _read_properties(parent: ElementTree.Element, where: str) -> dict[str, str]:
    listings = parent.findall("properties")
    if len(listings) != 1:
        message = f"junit.xml: {where} has {len(listings)} properties elements; expected one"
        raise UnusableEvidenceError(message)
    found: dict[str, str] = {}
    for element in listings[0]:
        name, value = element.get("name"), element.get("value")
        if element.tag != "property" or name is None or value is None or name in found:
            message = f"junit.xml: {where} has a property that is doubled or lacks name or value ({name})"
            raise UnusableEvidenceError(message)
        found[name] = value
    return found


def _read_case(element: ElementTree.Element) -> Case:
    file, name = element.get("file"), element.get("name")
    if element.tag != "testcase" or not file or not name:
        message = f"junit.xml: element {element.tag} ({name}) is not a test case with file and name"
        raise UnusableEvidenceError(message)
    properties = _read_properties(element, name)
    results = [child for child in element if child.tag != "properties"]
    verdict = _read_verdict(results, name)
    if properties.keys() != {"clause", "verdict"} or properties["verdict"] != verdict:
        message = f"junit.xml: {name} states verdict {properties.get('verdict')}; its result is {verdict}"
        raise UnusableEvidenceError(message)
    return Case(
        nodeid=f"{file}::{name}",
        clause=properties["clause"],
        verdict=verdict,
        reason=results[0].get("message", "") if results else "",
        detail=(results[0].text or "") if results else "",
        seconds=_read_seconds(element, name),
    )


def _read_verdict(results: list[ElementTree.Element], name: str) -> Verdict:
    if not results:
        return Verdict.PASS
    stated = results[0].get("type", "")
    if len(results) != 1 or stated not in set(Verdict) or RESULT_TAG.get(Verdict(stated)) != results[0].tag:
        tags = ", ".join(f"{result.tag} {result.get('type')}" for result in results)
        message = f"junit.xml: {name} holds {tags}; expected one failure or error whose type is its verdict"
        raise UnusableEvidenceError(message)
    return Verdict(stated)


def _read_seconds(element: ElementTree.Element, name: str) -> float:
    text = element.get("time", "")
    if not re.fullmatch(r"\d{1,9}\.\d{3}", text):
        message = f"junit.xml: {name} has time {text!r}; expected seconds with three decimals"
        raise UnusableEvidenceError(message)
    return float(text)
