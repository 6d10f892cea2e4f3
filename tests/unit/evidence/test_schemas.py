# SPDX-License-Identifier: Apache-2.0
"""The receipt's form, and how a file that is not of its form is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.schemas import (
    Analysis,
    AttemptStart,
    ClauseProof,
    ClauseResult,
    Entry,
    Identity,
    Manifest,
    Phase,
    Previous,
    Schema,
    parse_model,
    read_model,
    receipt_statement,
)
from pytest_laguna.verdict import JSON, UnusableEvidenceError, Verdict

DIGEST = "d" * 64
START = AttemptStart(
    campaign_name="demo", lane="cpu", gate=2, attempt=1, sealed_root="sealed", nonce="0" * 32,
    clauses=[("one", "a.py::test_one")], plugins=[], arguments=[], cards=[],
    identity=Identity(campaign=DIGEST, candidate=DIGEST, harness=DIGEST), record=DIGEST, previous=None, earlier=[],
)  # fmt: skip
CLAUSE = ClauseResult(
    clause="one", nodeid="a.py::test_one", verdict=Verdict.FAIL, reason="slow", detail="", seconds=1.5,
    proofs=[ClauseProof(statement="s", observed={})],
)  # fmt: skip


def test_the_receipt_is_an_in_toto_statement() -> None:
    analysis = Analysis(
        verdict=Verdict.FAIL, reason="1 of 1", clauses=[CLAUSE], unexercised=[("one", "rule", "why")], figures={}
    )
    manifest = Manifest(entries=[Entry(path="d", kind="directory"), Entry(path="d/a", kind="file", sha256=DIGEST)])
    receipt = receipt_statement(START, analysis, manifest, {"manifest": "1" * 64, "journal_head": "2" * 64})
    assert receipt == {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "urn:pytest-laguna:gate-receipt:v2",
        "subject": [
            {"name": "manifest.json", "digest": {"sha256": "1" * 64}},
            {"name": "d/a", "digest": {"sha256": DIGEST}},
        ],
        "predicate": {
            "verdict": "FAIL",
            "clauses": [["one", "a.py::test_one", "FAIL"]],
            "unexercised": [["one", "rule"]],
            "journal_head": "2" * 64,
            "attempt": START.canonical(),
        },
    }


def test_a_model_is_told_in_values_of_json() -> None:
    told: JSON = START.canonical()
    assert isinstance(told, dict)
    assert (told["schema"], told["clauses"]) == ("pytest-laguna-attempt-v1", [["one", "a.py::test_one"]])
    assert json.loads(json.dumps(told)) == told


PHASE: dict[str, JSON] = {
    "nodeid": "a", "when": "call", "outcome": "passed", "cause": "", "reason": "", "detail": "", "seconds": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": "1"}, "seconds: Input should be a valid number"),
        ({"nodeid": 1, "when": "later"}, "nodeid: Input should be a valid string"),
        ({"new\x1b": 1}, r"new\\x1b: Extra inputs are not permitted"),
    ],
    ids=["type", "first", "unknown"],
)
def test_the_first_defect_of_a_file_is_told_in_one_line(changes: dict[str, JSON], message: str, tmp_path: Path) -> None:
    assert parse_model(PHASE, Phase, "phase.json") == Phase.model_validate(PHASE)
    (tmp_path / "phase.json").write_bytes(files.canonical_json(PHASE | changes))
    with pytest.raises(UnusableEvidenceError, match=rf"^phase\.json: {message}$"):
        read_model(tmp_path / "phase.json", Phase)
    with pytest.raises(UnusableEvidenceError, match=rf"^phase\.json: {message}$"):
        parse_model(PHASE | changes, Phase, "phase.json")


def test_a_defect_within_is_told_with_its_way() -> None:
    value = START.canonical()
    assert isinstance(value, dict)
    previous = Previous(gate=1, attempt=1, receipt=DIGEST).canonical()
    assert isinstance(previous, dict)
    with pytest.raises(
        UnusableEvidenceError, match=r"^attempt\.json: previous\.gate: Input should be a valid integer$"
    ):
        parse_model(value | {"previous": previous | {"gate": "1"}}, AttemptStart, "attempt.json")


class _Inner(Schema):
    there: int


class _Outer(Schema):
    name: str
    inner: _Inner


def test_beside_a_missing_field_stands_the_unknown_one_of_its_own_place() -> None:
    inner: JSON = {"there": 1, "elsewhere": 2}
    with pytest.raises(UnusableEvidenceError, match="name: Field required, and nome is unknown"):
        parse_model({"inner": inner, "nome": "x"}, _Outer, "file.json")
    with pytest.raises(UnusableEvidenceError, match=r"name: Field required, and nome is unknown$"):
        parse_model({"inner": inner, "nome": "x", "surname": "y"}, _Outer, "file.json")
    with pytest.raises(UnusableEvidenceError, match=r"name: Field required$"):
        parse_model({"inner": inner}, _Outer, "file.json")
