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

import rfc8785
from jsonschema import Draft202012Validator, validators

SCHEMAS = Path(__file__).resolve().parents[1] / "pytest_laguna" / "evidence" / "json_schemas"
CODES = {"PASS": 0, "STOP": 20, "FAIL": 21, "VOID": 22, "NOT_PROVEN": 23}
CAUSES = {"assertion": "FAIL", "stop": "STOP", "not-proven": "NOT_PROVEN", "skip": "NOT_PROVEN"}
TAGS = {"STOP": "failure", "FAIL": "failure", "VOID": "error", "NOT_PROVEN": "error"}
BESIDE = {"properties", "system-out"}
NULL = {"candidate-ran", "null-finds-nothing", "null-narrow"}
TYPES = {"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:pytest-laguna:gate-receipt:v2"}


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


def digest(path: Path) -> str | None:
    return sha(path.read_bytes()) if path.is_file() and not path.is_symlink() else None


def fill(validator: Any, properties: Any, value: Any, schema: Any) -> Iterator[Any]:
    if isinstance(value, dict) and value.keys() >= set(schema.get("required", [])):
        value |= {name: own["default"] for name, own in properties.items() if "default" in own and name not in value}
    yield from Draft202012Validator.VALIDATORS["properties"](validator, properties, value, schema)


@functools.cache
def form(name: str) -> Any:
    kind = validators.extend(Draft202012Validator, {"properties": fill})  # type: ignore[no-untyped-call]
    version = "v2" if name == "analysis" else "v1"
    return kind(json.loads((SCHEMAS / f"pytest-laguna-{name}-{version}.json").read_bytes()))


def parse(content: bytes, name: str | None = None) -> Any:
    value = json.loads(content)
    need(rfc8785.dumps(value) == content and (name is None or form(name).is_valid(value)), f"{name}: not of its form")
    return value


def entries(top: Path) -> Iterator[dict[str, Any]]:
    for one in sorted(top.rglob("*")):
        own = {"path": one.relative_to(top).as_posix(), "kind": "directory", "size": None, "sha256": None}
        yield own if is_directory(one) else own | {"kind": "file", "size": one.stat().st_size, "sha256": sha(read(one))}


def journal(attempt: Path) -> tuple[list[Any], str]:
    *lines, rest = read(attempt / "journal.jsonl").split(b"\n")
    events = [parse(line, "journal-line") for line in lines]
    chain = [*enumerate(map(sha, [read(attempt / "attempt.json"), *lines]))]
    need(rest == b"" and [(e["sequence"], e["previous"]) for e in events] == chain[:-1], "journal.jsonl: broken chain")
    return events, sha(lines[-1] if lines else b"")


def of_clause(own: list[dict[str, Any]]) -> str:
    kinds, phases = [e["kind"] for e in own], [e["data"] for e in own if e["kind"] == "phase"]
    need(all(map(form("journal-phase").is_valid, phases)), "journal.jsonl: a phase is not of its form")
    whens, starts = [phase["when"] for phase in phases], kinds.count("test-started")
    if starts != 1 or len(set(whens)) != len(whens):
        return "VOID" if starts else "NOT_PROVEN"
    for phase in (phase for phase in phases if phase["outcome"] != "passed"):
        verdict = CAUSES.get(phase["cause"], "VOID")
        return "VOID" if phase["when"] != "call" and verdict == "FAIL" else verdict
    return "PASS" if whens == ["setup", "call", "teardown"] and "proof" in kinds else "NOT_PROVEN"


def of_session(events: list[dict[str, Any]], nodeids: set[str], evidence: Path) -> Iterator[str]:
    ends = [event for event in events if event["kind"].startswith("session-")]
    whole = [end["kind"] for end in ends] == ["session-started", "session-finished"] and ends == [events[0], events[-1]]
    yield "PASS" if whole and ends[1]["data"].get("exit_status") in [0, 1] else "NOT_PROVEN"
    for data, kind in ((event["data"], event["kind"]) for event in events):
        yield "VOID" if "nodeid" in data and data["nodeid"] not in nodeids else "PASS"
        if kind == "problem":
            yield data["verdict"] if data.get("verdict") in ["FAIL", "NOT_PROVEN"] else "VOID"
        elif kind == "recorded":
            yield "PASS" if digest(evidence / data["path"]) == data["sha256"] else "VOID"


def check_analysis(start: Any, analysis: Any, events: list[dict[str, Any]], evidence: Path) -> None:
    stated, nodeids = analysis["clauses"], {nodeid for _, nodeid in start["clauses"]}
    need([[one["clause"], one["nodeid"]] for one in stated] == start["clauses"], "analysis.json: other clauses")
    for one in stated:
        own = [event for event in events if event["data"].get("nodeid") == one["nodeid"]]
        need(of_clause(own) in {"PASS", one["verdict"]}, f"analysis.json: {one['clause']} is {of_clause(own)}")
        proofs = [proof | {"nodeid": one["nodeid"]} for proof in one["proofs"]]
        need([event["data"] for event in own if event["kind"] == "proof"] == proofs, "analysis.json: other proofs")
    came = [*(one["verdict"] for one in stated), *of_session(events, nodeids, evidence)]
    need(CODES[analysis["verdict"]] >= max(map(CODES.__getitem__, came)), "analysis.json: not what follows")


def check_junit(content: bytes, start: Any, analysis: Any) -> None:
    (suite,) = ElementTree.fromstring(content)  # noqa: S314 - expat loads nothing from elsewhere
    cases = [(f"{case.get('file')}::{case.get('name')}", [*case]) for case in suite.findall("testcase")]
    told = [(where, [(one.tag, one.get("type")) for one in parts if one.tag not in BESIDE]) for where, parts in cases]
    due = [(one["nodeid"], [(TAGS[v], v)] if (v := one["verdict"]) in TAGS else []) for one in analysis["clauses"]]
    tags = [tag for _, results in due for tag, _ in results]
    counts = [str(count) for count in (len(due), tags.count("failure"), tags.count("error"), 0)]
    stated = [suite.get(each) for each in ("name", "tests", "failures", "errors", "skipped")]
    name = "{campaign_name} {lane} gate {gate}".format(**start)
    need((told, stated) == (due, [name, *counts]), "junit.xml: not what analysis.json says")


def check_frozen(evidence: Path, start: Any) -> Any:
    campaign = json.loads(json.dumps(tomllib.loads(read(evidence / "campaign.toml").decode()), default=str))
    clauses = [list(pair) for pair in campaign["clauses"].get(str(start["gate"]), {}).items()]
    need(clauses == start["clauses"] and form("campaign").is_valid(campaign), "campaign.toml: of another form or gate")
    need(rfc8785.dumps(campaign) == read(evidence / "campaign.json"), "campaign.json: not what campaign.toml says")
    record = parse(read(evidence / "identity.json"))
    parts = {name: sha(record[name]) for name in ("candidate", "harness")} | {"campaign": sha(campaign)}
    need((sha(record), parts) == (start["record"], start["identity"]), "not the identity that attempt.json names")
    return campaign["gates"]


def check_before(attempt: Path, start: Any) -> None:
    need([one["attempt"] for one in start["earlier"]] == [*range(1, start["attempt"])], "a gap before it", "NOT_PROVEN")
    opener = [start["previous"] | {"verdict": "PASS", "tree": None}] if start["previous"] else []
    need([one["gate"] for one in opener] == [*range(1, start["gate"])][-1:], "attempt.json: names not the gate before")
    for one in [*({"gate": start["gate"]} | each for each in start["earlier"]), *opener]:
        before = attempt.parents[1] / f"gate{one['gate']}" / f"{one['attempt']:04d}"
        need(before.is_dir(), f"{before.name}: missing", "NOT_PROVEN" if one["gate"] == start["gate"] else "VOID")
        tree = one["tree"] and sha({"schema": "pytest-laguna-manifest-v1", "entries": [*entries(before)]})
        found = (verify(before)[0], digest(before / "receipt.json"), tree)
        need(found == (one["verdict"], one["receipt"], one["tree"]), f"{before.name}: {found}, seen otherwise before")


def judge(attempt: Path) -> tuple[str, str, bool]:
    need(is_directory(attempt) and is_directory(attempt.parent), "a link on the way")
    need(os.path.lexists(attempt / "attempt.json"), "attempt.json: missing", "NOT_PROVEN")
    start, evidence = parse(read(attempt / "attempt.json"), "attempt"), attempt / "evidence"
    place = (start["campaign_name"], start["lane"], f"gate{start['gate']}", f"{start['attempt']:04d}")
    need(attempt.parts[-4:] == place, "attempt.json: of another place")
    need(os.path.lexists(attempt / "receipt.json"), "receipt.json: missing", "NOT_PROVEN")
    receipt, manifest = parse(read(attempt / "receipt.json")), read(attempt / "manifest.json")
    listed = [one for one in entries(attempt) if one["path"] not in {"manifest.json", "receipt.json"}]
    need(parse(manifest, "manifest")["entries"] == listed, "manifest.json: something is missing, extra or changed")
    (events, head), analysis = journal(attempt), parse(read(attempt / "analysis.json"), "analysis")
    check_analysis(start, analysis, events, evidence)
    check_junit(read(attempt / "junit.xml"), start, analysis)
    files = [("manifest.json", sha(manifest)), *((one["path"], one["sha256"]) for one in listed if one["sha256"])]
    subject = [{"name": name, "digest": {"sha256": sealed}} for name, sealed in files]
    said = {name: analysis[name] for name in ("verdict", "unexercised")} | {"journal_head": head}
    said["clauses"] = [[one["clause"], one["nodeid"], one["verdict"]] for one in analysis["clauses"]]
    need(receipt == TYPES | {"subject": subject, "predicate": said | {"attempt": start}}, "receipt.json: does not hold")
    gates = check_frozen(evidence, start)
    check_before(attempt, start)
    proven = {one["clause"] for one in analysis["clauses"] if one["verdict"] == "PASS"}
    gated = proven if start["gate"] == 1 else {}
    for clause, top, end in (("rehearsal", "rehearsed/sealed", 0), ("null-exact", "rehearsed-null/sealed", gates[-1])):
        good = {at for _, at, came, _, null in verify_root(evidence / top) if came == "PASS" or (null and at == end)}
        need(clause not in gated or not (evidence / top).exists() or good >= {*gates}, f"{top}: a gate does not pass")
    return analysis["verdict"], f"{len(proven)} clauses proven", {*failing(evidence)} <= NULL


def failing(evidence: Path) -> Iterator[str]:
    """Rules of the gate's experiment that did not hold."""
    for own in (parse(read(path)) for path in evidence.glob("*/analysis.json")):
        of_clauses = [pair for results in own.get("clauses", {}).values() for pair in results.items()]
        listed = [*of_clauses, *((one["rule"], one) for one in own.get("findings", []) if one["decides"])]
        yield from (rule for rule, one in listed if one["verdict"] not in {"PASS", None})


@functools.cache
def verify(attempt: Path) -> tuple[str, str, bool]:
    try:
        return judge(attempt)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SyntaxError) as error:
        verdict, reason = error.args if error.args[:1] in {("VOID",), ("NOT_PROVEN",)} else ("VOID", str(error))
        return verdict, reason, False


def verify_root(top: Path, above: str = "") -> Iterator[tuple[str, int, str, str, bool]]:
    for path in sorted(top.iterdir()) if top.exists() else ():
        place, deep = f"{above}{path.name}", above.count("/") == 2
        gate = deep * {"gate1": 1, "gate2": 2, "gate3": 3}.get(path.name, 0)
        below = sorted(path.iterdir()) if is_directory(path) else None
        if not below or gate < deep:
            yield place, gate, "VOID" if below is None or gate < deep else "NOT_PROVEN", "no attempt there", False
        elif not deep:
            yield from verify_root(path, f"{place}/")
        else:
            fit = all(re.fullmatch("(?!0000)[0-9]{4}", each.name) and is_directory(each) for each in below)
            yield place, gate, *(verify(below[-1]) if fit else ("VOID", "something else", False))


if __name__ == "__main__":
    gates = [*verify_root(Path(sys.argv[1]))]
    print(*(f"{place} {verdict} {reason}" for place, _, verdict, reason, _ in gates), sep="\n")
    sys.exit(max((CODES[verdict] for _, _, verdict, *_ in gates), default=CODES["NOT_PROVEN"]))
