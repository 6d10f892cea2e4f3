# SPDX-License-Identifier: Apache-2.0
"""Another verifier of sealed roots, from docs/evidence-format.md and the shipped schemas: nothing of this project runs.

What a gate's own analysis and the looks at its cards came to it takes as it was sealed; all else it derives.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import stat
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import rfc8785

SCHEMAS = Path(__file__).resolve().parents[1] / "pytest_laguna" / "evidence" / "json_schemas"
CODES = {"PASS": 0, "STOP": 20, "FAIL": 21, "VOID": 22, "NOT_PROVEN": 23}
CAUSES = {"assertion": "FAIL", "stop": "STOP", "not-proven": "NOT_PROVEN", "skip": "NOT_PROVEN"}
TAGS = {"STOP": "failure", "FAIL": "failure", "VOID": "error", "NOT_PROVEN": "error"}
RESULTS = {"failure", "error", "skipped"}
TYPES = {"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:pytest-laguna:gate-receipt:v1"}
UNUSABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, ElementTree.ParseError)
SCHEMA = jsonschema.Draft202012Validator


def need(holds: Any, reason: str, verdict: str = "VOID") -> None:
    if not holds:
        raise ValueError(verdict, reason)


def sha(value: Any) -> str:
    return hashlib.sha256(value if isinstance(value, bytes) else rfc8785.dumps(value)).hexdigest()


def is_directory(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def read(path: Path) -> bytes:
    need(stat.S_ISREG(path.lstat().st_mode), f"{path.name}: not a regular file")
    return path.read_bytes()


def fill(validator: Any, properties: Any, value: Any, schema: Any) -> Iterator[Any]:
    if isinstance(value, dict) and value.keys() >= set(schema.get("required", [])):
        value |= {name: own["default"] for name, own in properties.items() if "default" in own and name not in value}
    yield from SCHEMA.VALIDATORS["properties"](validator, properties, value, schema)


@functools.cache
def form(name: str) -> Any:
    kind = jsonschema.validators.extend(SCHEMA, {"properties": fill})  # type: ignore[no-untyped-call]
    return kind(json.loads((SCHEMAS / f"pytest-laguna-{name}-v1.json").read_bytes()))


def parse(content: bytes, name: str | None = None) -> Any:
    value = json.loads(content)
    need(rfc8785.dumps(value) == content, f"{name}: not canonical JSON")
    need(name is None or form(name).is_valid(value), f"{name}: not of its form")
    return value


def entries(top: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(top.rglob("*")):
        kind = "directory" if is_directory(path) else "file"
        size, digest = (len(content := read(path)), sha(content)) if kind == "file" else (None, None)
        yield {"path": path.relative_to(top).as_posix(), "kind": kind, "size": size, "sha256": digest}


def journal(attempt: Path) -> Iterator[dict[str, Any]]:
    *lines, rest = read(attempt / "journal.jsonl").split(b"\n")
    previous = sha(read(attempt / "attempt.json"))
    for index, line in enumerate(lines):
        event = parse(line, "journal-line")
        need((event["sequence"], event["previous"], rest) == (index, previous, b""), f"journal.jsonl: line {index + 1}")
        previous = sha(line)
        yield event


def of_clause(own: list[dict[str, Any]]) -> str:
    phases, starts = [e["data"] for e in own if e["kind"] == "phase"], sum(e["kind"] == "test-started" for e in own)
    need(all(map(form("journal-phase").is_valid, phases)), "journal.jsonl: a phase is not of its form")
    whens = [phase["when"] for phase in phases]
    if starts != 1 or len(set(whens)) != len(whens):
        return "VOID" if starts else "NOT_PROVEN"
    for phase in (phase for phase in phases if phase["outcome"] != "passed"):
        verdict = CAUSES.get(phase["cause"], "VOID")
        return "VOID" if phase["when"] != "call" and verdict == "FAIL" else verdict
    proven = whens == ["setup", "call", "teardown"] and any(event["kind"] == "proof" for event in own)
    return "PASS" if proven else "NOT_PROVEN"


def of_session(events: list[dict[str, Any]], nodeids: set[str], evidence: Path) -> Iterator[str]:
    for kind, at in (("session-started", 0), ("session-finished", -1)):
        there = [index for index, event in enumerate(events) if event["kind"] == kind]
        yield "PASS" if there == [at % len(events)] else "NOT_PROVEN"
    for data, kind in ((event["data"], event["kind"]) for event in events):
        yield "PASS" if data.get("nodeid", None) in {None, *nodeids} else "VOID"
        if kind == "session-finished":
            yield "PASS" if data["exit_status"] in {0, 1} else "NOT_PROVEN"
        elif kind == "problem":
            yield data["verdict"] if data.get("verdict") in {"FAIL", "NOT_PROVEN"} else "VOID"
        elif kind == "recorded":
            yield "PASS" if sha(read(evidence / data["path"])) == data["sha256"] else "VOID"


def check_analysis(start: Any, analysis: Any, events: list[dict[str, Any]], evidence: Path) -> None:
    stated, nodeids = analysis["clauses"], {nodeid for _, nodeid in start["clauses"]}
    need([[one["clause"], one["nodeid"]] for one in stated] == start["clauses"], "analysis.json: other clauses")
    for one in stated:
        own = [event for event in events if event["data"].get("nodeid") == one["nodeid"]]
        need(of_clause(own) in {"PASS", one["verdict"]}, f"analysis.json: {one['clause']} is {of_clause(own)}")
        proofs = [proof | {"nodeid": one["nodeid"]} for proof in one["proofs"]]
        need([event["data"] for event in own if event["kind"] == "proof"] == proofs, "analysis.json: other proofs")
    came = [*(one["verdict"] for one in stated), *of_session(events, nodeids, evidence)]
    need(CODES[analysis["verdict"]] >= max(map(CODES.__getitem__, came)), "analysis.json: better than the journal")
    good = f"{len(stated)} clauses proven" if analysis["verdict"] == "PASS" else ""
    need(analysis["reason"].startswith(good), "analysis.json: another reason")


def check_junit(content: bytes, start: Any, analysis: Any) -> None:
    (suite,) = ElementTree.fromstring(content)  # noqa: S314 - expat loads nothing from elsewhere
    cases = [(f"{case.get('file')}::{case.get('name')}", [*case]) for case in suite.findall("testcase")]
    told = [(where, [(one.tag, one.get("type")) for one in parts if one.tag in RESULTS]) for where, parts in cases]
    due = [(one["nodeid"], [(TAGS[v], v)] if (v := one["verdict"]) in TAGS else []) for one in analysis["clauses"]]
    tags = [tag for _, results in due for tag, _ in results]
    counts = [str(count) for count in (len(due), tags.count("failure"), tags.count("error"), 0)]
    name = f"{start['campaign_name']} {start['lane']} gate {start['gate']}"
    stated = [suite.get(each) for each in ("name", "tests", "failures", "errors", "skipped")]
    need((told, stated) == (due, [name, *counts]), "junit.xml: not what analysis.json says")


def check_campaign(evidence: Path, start: Any) -> Any:
    campaign = json.loads(json.dumps(tomllib.loads(read(evidence / "campaign.toml").decode()), default=str))
    clauses = [list(pair) for pair in campaign["clauses"].get(str(start["gate"]), {}).items()]
    need(clauses == start["clauses"], "attempt.json: its clauses are not the campaign's")
    need(form("campaign").is_valid(campaign), "campaign.toml: not of its form")
    need(rfc8785.dumps(campaign) == read(evidence / "campaign.json"), "campaign.json: not what campaign.toml says")
    need(sha(campaign) == start["identity"]["campaign"], "campaign.json: not the one that attempt.json names")
    return campaign["gates"]


def check_before(lane: Path, gate: int, number: int, start: Any) -> None:
    need([one["attempt"] for one in start["earlier"]] == list(range(1, number)), "attempt.json: a gap", "NOT_PROVEN")
    for one in start["earlier"]:
        attempt = lane / f"gate{gate}" / f"{one['attempt']:04d}"
        need(attempt.is_dir(), f"{attempt.name}: missing", "NOT_PROVEN")
        seen = (verify(lane, gate, one["attempt"])[0], receipt_digest(lane, gate, one["attempt"]))
        need(seen == (one["verdict"], one["receipt"]), f"{attempt.name}: {seen}; it was seen otherwise")
        tree = {"schema": "pytest-laguna-manifest-v1", "entries": [*entries(attempt)] if one["tree"] else []}
        need(one["tree"] is None or sha(tree) == one["tree"], f"{attempt.name}: its files are not those that were seen")
    opened = start["previous"] or {"gate": 0, "attempt": 0, "receipt": None}
    need(opened["gate"] == gate - 1, "attempt.json: names no attempt of the gate before")
    seen = (verify(lane, gate - 1, opened["attempt"])[0], receipt_digest(lane, gate - 1, opened["attempt"]))
    need(gate == 1 or seen == ("PASS", opened["receipt"]), f"gate {gate - 1}: {seen}; it does not open this gate")


def receipt_digest(lane: Path, gate: int, number: int) -> str | None:
    receipt = lane / f"gate{gate}" / f"{number:04d}" / "receipt.json"
    return sha(read(receipt)) if os.path.lexists(receipt) else None


def judge(lane: Path, gate: int, number: int) -> tuple[str, str]:
    attempt = lane / f"gate{gate}" / f"{number:04d}"
    need(is_directory(attempt) and is_directory(attempt.parent), "a link on the way")
    need(os.path.lexists(attempt / "attempt.json"), "attempt.json: missing", "NOT_PROVEN")
    start, evidence = parse(read(attempt / "attempt.json"), "attempt"), attempt / "evidence"
    place = [start[name] for name in ("campaign_name", "lane", "gate", "attempt")]
    need(place == [lane.parent.name, lane.name, gate, number], "attempt.json: of another place")
    need(os.path.lexists(attempt / "receipt.json"), "receipt.json: missing", "NOT_PROVEN")
    receipt, manifest = parse(read(attempt / "receipt.json")), read(attempt / "manifest.json")
    listed = [one for one in entries(attempt) if one["path"] not in {"manifest.json", "receipt.json"}]
    files = [("manifest.json", sha(manifest)), *((one["path"], one["sha256"]) for one in listed if one["sha256"])]
    subject = [{"name": name, "digest": {"sha256": digest}} for name, digest in files]
    need(subject[0] in receipt["subject"], "manifest.json: not the one that the receipt names")
    need(parse(manifest, "manifest")["entries"] == listed, "manifest.json: something is missing, extra or changed")
    events, analysis = list(journal(attempt)), parse(read(attempt / "analysis.json"), "analysis")
    check_analysis(start, analysis, events, evidence)
    check_junit(read(attempt / "junit.xml"), start, analysis)
    said = {name: analysis[name] for name in ("verdict", "reason", "unexercised")}
    said |= {"journal_head": sha(events[-1]), "attempt": start}
    said["clauses"] = [[one["clause"], one["nodeid"], one["verdict"]] for one in analysis["clauses"]]
    need(receipt == TYPES | {"subject": subject, "predicate": said}, "receipt.json: does not follow")
    gates, record = check_campaign(evidence, start), parse(read(evidence / "identity.json"))
    parts = {name: sha(record[name]) for name in ("candidate", "harness")} | {"campaign": start["identity"]["campaign"]}
    need((sha(record), parts) == (start["record"], start["identity"]), "identity.json: not what attempt.json names")
    check_before(lane, gate, number, start)
    proven = {one["clause"] for one in analysis["clauses"] if one["verdict"] == "PASS" and gate == 1}
    for clause, name in (("rehearsal", "rehearsed"), ("null-exact", "rehearsed-null")):
        inner = [*verify_root(evidence / name / "sealed")]
        good = {gate for _, gate, verdict, reason in inner if verdict == "PASS" or "candidate-ran" in reason}
        need(not inner or clause not in proven or good >= set(gates), f"{name}: a gate does not pass")
    return analysis["verdict"], analysis["reason"]


@functools.cache
def verify(lane: Path, gate: int, number: int) -> tuple[str, str]:
    try:
        return judge(lane, gate, number)
    except UNUSABLE as error:
        return error.args if error.args[:1] in {("VOID",), ("NOT_PROVEN",)} else ("VOID", str(error))


def verify_root(top: Path, above: str = "") -> Iterator[tuple[str, int, str, str]]:
    for path in sorted(top.iterdir()) if top.exists() else ():
        place, depth = f"{above}{path.name}", above.count("/")
        gate = {"gate1": 1, "gate2": 2, "gate3": 3}.get(path.name, 0) if depth == 2 else 0
        if not is_directory(path) or (depth == 2 and not gate):
            yield place, 0, "VOID", "does not belong there"
        elif not gate:
            yield from verify_root(path, f"{place}/")
        else:
            names = sorted(each.name for each in path.iterdir())
            fit = [re.fullmatch("(?!0000)[0-9]{4}", name) and is_directory(path / name) for name in names]
            found = verify(path.parent, gate, int(names[-1])) if names and all(fit) else ("VOID", "not an attempt")
            yield place, gate, *(found if names else ("NOT_PROVEN", "no attempt"))


if __name__ == "__main__":
    gates = [*verify_root(Path(sys.argv[1]))]
    print(*(f"{place} {verdict} {reason}" for place, _, verdict, reason in gates), sep="\n")
    sys.exit(max((CODES[verdict] for _, _, verdict, _ in gates), default=CODES["NOT_PROVEN"]))
