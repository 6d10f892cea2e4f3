# SPDX-License-Identifier: Apache-2.0
"""Roots that an earlier version sealed keep their verdicts: ``tests/data/roots/README.md`` says what each is."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_laguna.evidence.schema_v1 import WARNING, raised
from tests.demo import laguna

ROOTS = Path(__file__).parents[1] / "data" / "roots" / "v1"
KINDS = [
    "damaged",
    "diagnostic",
    "fail-gate-1",
    "interrupted",
    "made-aa-starts",
    "made-diagnostic",
    "made-diagnostic-fail",
    "made-endpoint-aa",
    "made-endpoint-fail",
    "made-endpoint-phase-1",
    "made-events",
    "made-events-fitness",
    "made-events-unfit",
    "made-failed",
    "made-passed",
    "made-stopped",
    "made-three-gates",
    "made-unfinished",
    "not-proven",
    "void",
]
WORDS = {"reason", "reasons", "said", "lines"}
"""Keys of what is told in words, which may be worded otherwise one day."""

PASSED, JUDGED = "made-events", "void"
"""A root that passes, and one with figures and an analysis of its own."""

NO_ANALYSIS = 4
"""Exit code of ``laguna analyze`` for a gate that has only its journal."""


def unpack(kind: str, directory: Path) -> None:
    with tarfile.open(ROOTS / f"{kind}.tar.xz") as archive:
        archive.extractall(directory, filter="data")


def frozen(kind: str) -> dict[str, Any]:
    """Observations of the version that sealed the root; of the analyses that of the last gate, for the sake of time."""
    value: dict[str, Any] = json.loads((ROOTS / f"{kind}.json").read_bytes())
    del value["commit"]
    last = f"/gate{value['verify']['gates'][-1]['gate']}/"
    value["analyze"] = {place: told for place, told in value["analyze"].items() if last in place}
    for told in value["analyze"].values():
        told["analysis"] = raised(told["analysis"], "analysis.json")
    return value


def observe(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Observations of the present version, in the form of the frozen ones."""
    monkeypatch.chdir(directory)
    done = laguna("verify", "sealed", "--json", "--junit", "all.xml")
    gates = json.loads(done.stdout)["gates"]
    suites = dict(_suites(Path("all.xml")))
    return {
        "verify": {"exit": done.returncode, "gates": gates},
        "clauses": {place: clauses for place, (clauses, _) in suites.items()},
        "figures": {place: figures for place, (_, figures) in suites.items()},
        "analyze": dict(_analyze(gates[-1])),
    }


def _suites(report: Path) -> Iterator[tuple[str, tuple[dict[str, Any], dict[str, str]]]]:
    """Clauses and figures of each gate, by its place."""
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):  # noqa: S314 - written here
        properties = {one.attrib["name"]: one.attrib["value"] for one in suite.iter("property")}
        figures = {name.removeprefix("figure."): properties[name] for name in properties if name.startswith("figure.")}
        clauses = {case.attrib["name"]: _finding(case) for case in suite.iter("testcase")}
        yield "/".join(properties[name] for name in ("campaign", "lane", "gate")), (clauses, figures)


def _finding(case: ElementTree.Element) -> dict[str, str]:
    for against in (*case.iter("failure"), *case.iter("error")):
        return {"verdict": against.attrib["type"], "reason": against.attrib["message"]}
    return {"verdict": "PASS", "reason": ""}


def _analyze(gate: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A gate's own analysis with the verdict of each of its rules, by the attempt's place."""
    place = f"{gate['campaign']}/{gate['lane']}/gate{gate['gate']}/{gate['attempt']:04d}"
    out = Path("analysis.json")
    done = laguna("analyze", f"sealed/{place}", "--out", str(out))
    if done.returncode != NO_ANALYSIS:
        said, *lines = done.stdout.splitlines()
        analysis = json.loads(out.read_bytes()) if out.exists() else None
        yield place, {"exit": done.returncode, "said": said, "lines": lines, "analysis": analysis}


def _told(key: str) -> bool:
    return key in WORDS or key.startswith(WARNING)


def without_words(value: Any) -> Any:
    """Verdicts, clauses, rules, figures and digests alone."""
    if isinstance(value, dict):
        return {key: without_words(entry) for key, entry in value.items() if not _told(key)}
    return [without_words(entry) for entry in value] if isinstance(value, list) else value


def test_every_kind_of_root_is_kept() -> None:
    assert sorted(path.name for path in ROOTS.iterdir()) == sorted(
        f"{kind}{ending}" for kind in KINDS for ending in (".json", ".tar.xz")
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_sealed_root_keeps_its_verdicts(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack(kind, tmp_path)
    assert without_words(observe(tmp_path, monkeypatch)) == without_words(frozen(kind))


# What would not be seen could not fail


@pytest.mark.parametrize("name", ["journal.jsonl", "receipt.json", "record.json"])
def test_one_changed_byte_of_a_root_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack(PASSED, tmp_path)
    path = max((tmp_path / "sealed").rglob(name))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"sha256") + 12 if name == "receipt.json" else len(content) // 2] ^= 1
    path.write_bytes(content)
    seen, kept = observe(tmp_path, monkeypatch), frozen(PASSED)
    assert without_words(seen["verify"]) != without_words(kept["verify"])
    assert without_words(seen["clauses"]) != without_words(kept["clauses"])


def _leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of everything that is neither an object nor a list."""
    if not isinstance(value, dict | list):
        yield place
        return
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(entry, (*place, key))


def test_every_verdict_and_figure_is_compared_and_no_reason() -> None:
    places = {
        place for place in _leaves(frozen(JUDGED)) if not any(isinstance(key, str) and _told(key) for key in place)
    }
    assert {*_leaves(without_words(frozen(JUDGED)))} == places
    assert {place[0] for place in places} == {"verify", "clauses", "figures", "analyze"}
