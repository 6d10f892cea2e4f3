# SPDX-License-Identifier: Apache-2.0
"""The JUnit report of a gate: written from the analysis, read back strictly.

pytest's own writer cannot give a case the verdict as its failure type, and readers made for display accept suites
without counts, doubled cases and empty files. A gate refuses all three.

The files behind a case stand in it by path, as its properties ``attachment`` and as ``[[ATTACHMENT|path]]`` in
``system-out``. Source: the common JUnit XML format (github.com/testmoapp/junitxml) and GitLab's documentation of unit
test reports.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal
from xml.etree import ElementTree

from pytest_laguna.evidence.files import printable
from pytest_laguna.verdict import UnusableEvidenceError, Verdict

SIZE_LIMIT = 64 * 1024 * 1024

ResultTag = Literal["failure", "error"]

RESULT_TAG: Mapping[Verdict, ResultTag] = {
    Verdict.STOP: "failure",
    Verdict.FAIL: "failure",
    Verdict.VOID: "error",
    Verdict.NOT_PROVEN: "error",
}

_ATTACHED = 20
_SENTENCE = re.compile(r"reason$|figure\.null\.warning\.")
"""Names of the properties that hold sentences; version 0.1 wrote the second kind."""
_ATTACHMENT = "attachment"
_OUTPUT = "system-out"

# XML 1.0, section 2.2: everything that is not a Char. Escape sequences of terminals begin with one of them.
_NOT_XML = re.compile("\x1b\\[[0-9;?]*[A-Za-z]|[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One clause's test in the report.

    Attributes:
        nodeid: pytest's node id, split into class name and name on writing.
        reason: one line; empty for PASS.
        detail: longer text (a traceback); may be empty.
        files: paths of the evidence behind it, from pytest's working directory.
    """

    nodeid: str
    clause: str
    verdict: Verdict
    reason: str = ""
    detail: str = ""
    seconds: float = 0.0
    files: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Content of a JUnit file after strict reading."""

    properties: Mapping[str, str]
    cases: tuple[Case, ...]


def xml_text(text: str) -> str:
    """Text without terminal colours and other characters forbidden by XML 1.0."""
    return _NOT_XML.sub("", text.encode("utf-8", "replace").decode("utf-8"))


def write_junit(name: str, properties: Mapping[str, str], cases: Iterable[Case]) -> bytes:
    """Render a report: one ``testsuite`` with its properties, and with its cases in the order of running."""
    listed = tuple(cases)
    suite = suite_element(name, properties, listed)
    for case in listed:
        file, _, test = case.nodeid.partition("::")
        classname = file.removesuffix(".py").replace("/", ".")
        write_case(suite, {"classname": classname, "name": test, "file": file}, case)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    return render(root)


def render(root: ElementTree.Element) -> bytes:
    """Return the document's bytes in UTF-8."""
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def suite_element(name: str, properties: Mapping[str, str], cases: Sequence[Case]) -> ElementTree.Element:
    """Return a suite with the counts of its cases and its properties, but without the cases."""
    seconds = f"{sum(case.seconds for case in cases):.3f}"
    suite = ElementTree.Element("testsuite", {"name": xml_text(name), **_counts(cases), "time": seconds})
    _write_properties(suite, properties.items())
    return suite


def write_case(suite: ElementTree.Element, attributes: Mapping[str, str], case: Case) -> None:
    """Write a case's verdict, its reason, and the first files behind it; readers link few, and the manifest has all.

    Readers show either the message of a result or its text, so the reason stands in both. They distinguish cases by the
    attributes.
    """
    named = {name: xml_text(value) for name, value in attributes.items()}
    element = ElementTree.SubElement(suite, "testcase", named | {"time": f"{case.seconds:.3f}"})
    paths = [xml_text(printable(path)) for path in case.files[:_ATTACHED]]
    told = [("clause", case.clause), ("verdict", str(case.verdict)), *((_ATTACHMENT, path) for path in paths)]
    _write_properties(element, told)
    tag = RESULT_TAG.get(case.verdict)
    if tag is not None:
        text = "\n".join(part for part in (case.reason, case.detail) if part)
        found = {"type": str(case.verdict), "message": xml_text(case.reason)}
        ElementTree.SubElement(element, tag, found).text = xml_text(text)
    if paths:
        ElementTree.SubElement(element, _OUTPUT).text = _marks(paths)


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    """Attributes of a suite with the counts of its cases."""
    tags = [RESULT_TAG.get(case.verdict) for case in cases]
    failures, errors = tags.count("failure"), tags.count("error")
    return {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors), "skipped": "0"}


def _write_properties(parent: ElementTree.Element, properties: Iterable[tuple[str, str]]) -> None:
    listing = ElementTree.SubElement(parent, "properties")
    for name, value in properties:
        ElementTree.SubElement(listing, "property", {"name": xml_text(name), "value": xml_text(value)})


def _marks(paths: Iterable[str]) -> str:
    return "\n".join(f"[[ATTACHMENT|{path}]]" for path in paths)


def read_junit(content: bytes) -> Report:
    """Read a report of ``write_junit``, without any trust in it.

    Raises:
        UnusableEvidenceError: not XML, a document type, no or several suites, a count that is missing or not the sum of
            the cases, a skipped, doubled, nameless or unknown element, or a result whose type is not a verdict.
    """
    if b"<!" in content:
        raise UnusableEvidenceError("junit.xml: holds a document type, comment or CDATA; expected plain elements")
    try:
        root = ElementTree.fromstring(content)  # noqa: S314 - without a document type there are no entities to expand
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise UnusableEvidenceError(f"junit.xml: not XML ({error}); expected the report as it was written") from error
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


def without_sentences(content: bytes) -> bytes:
    """Return a report without its reasons, which another version may word otherwise.

    Args:
        content: of a report that ``read_junit`` accepts.
    """
    root = ElementTree.fromstring(content)  # noqa: S314 - ``read_junit`` has refused document types
    for element in root.iter():
        if element.tag in RESULT_TAG.values():
            element.text = _read_detail(element)
            del element.attrib["message"]
        elif element.tag == "properties":
            for told in [one for one in element if _SENTENCE.match(one.get("name", ""))]:
                element.remove(told)
    return render(root)


def _check_counts(suite: ElementTree.Element, cases: tuple[Case, ...]) -> None:
    for name, count in _counts(cases).items():
        stated = suite.get(name)
        if stated != count:
            raise UnusableEvidenceError(f"junit.xml: testsuite states {name}={stated}; its cases add up to {count}")


def _read_properties(parent: ElementTree.Element, where: str) -> dict[str, str]:
    listings = parent.findall("properties")
    if len(listings) != 1:
        raise UnusableEvidenceError(f"junit.xml: {where} has {len(listings)} properties elements; expected one")
    found: dict[str, str] = {}
    for element in (child for child in listings[0] if child.get("name") != _ATTACHMENT):
        name, value = element.get("name"), element.get("value")
        if element.tag != "property" or name is None or value is None or name in found:
            message = f"junit.xml: {where} has a property that is doubled or lacks name or value ({name})"
            raise UnusableEvidenceError(message)
        found[name] = value
    return found


def _read_case(element: ElementTree.Element) -> Case:
    file, name = element.get("file"), element.get("name")
    if element.tag != "testcase" or not file or not name:
        raise UnusableEvidenceError(f"junit.xml: element {element.tag} ({name}) is not a test case with file and name")
    files = _read_files(element, name)
    properties = _read_properties(element, name)
    results = [child for child in element if child.tag not in {"properties", _OUTPUT}]
    verdict = _read_verdict(results, name)
    if properties.keys() != {"clause", "verdict"} or properties["verdict"] != verdict:
        message = f"junit.xml: {name} states verdict {properties.get('verdict')}; its result is {verdict}"
        raise UnusableEvidenceError(message)
    return Case(
        nodeid=f"{file}::{name}",
        clause=properties["clause"],
        verdict=verdict,
        reason=results[0].get("message", "") if results else "",
        detail=_read_detail(results[0]) if results else "",
        seconds=_read_seconds(element, name),
        files=files,
    )


def _read_detail(result: ElementTree.Element) -> str:
    return (result.text or "").removeprefix(result.get("message", "")).removeprefix("\n")


def _read_files(element: ElementTree.Element, where: str) -> tuple[str, ...]:
    """Return the files of a case's properties; its output must mark exactly these."""
    found = [one.get("value", "") for one in element.findall(f"properties/property[@name='{_ATTACHMENT}']")]
    written = [output.text for output in element.findall(_OUTPUT)]
    if written != ([_marks(found)] if found else []):
        message = f"junit.xml: {where} has another {_OUTPUT} than marks of its {len(found)} attachments"
        raise UnusableEvidenceError(message)
    return tuple(found)


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
        raise UnusableEvidenceError(f"junit.xml: {name} has time {text!r}; expected seconds with three decimals")
    return float(text)
