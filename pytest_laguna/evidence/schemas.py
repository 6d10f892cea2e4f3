# SPDX-License-Identifier: Apache-2.0
"""The files of an attempt, as frozen models; unknown fields and loose types are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.verdict import JSON, UnusableEvidenceError, Verdict

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:pytest-laguna:gate-receipt:v2"

Sentence = Annotated[str, pydantic.Field(exclude=True)]
"""A line for people, rendered from the evidence whenever that is judged; it is neither sealed nor compared."""

Sha256 = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]


class Schema(pydantic.BaseModel):
    """Base of all evidence models: frozen, closed, with JSON types as they are."""

    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(frozen=True, extra="forbid")

    def canonical(self) -> JSON:
        """The model as a JSON value."""
        value: JSON = self.model_dump(mode="json", by_alias=True)
        return value


class Earlier(Schema):
    """An earlier attempt of the same gate.

    Attributes:
        attempt: its number.
        receipt: digest of its receipt; None when it has none.
        tree: digest of the list of its files; it binds an attempt without a receipt too. None if unreadable.
        campaign: its campaign digest; None when its ``attempt.json`` cannot be read.
        verdict: by verification.
    """

    attempt: int
    receipt: Sha256 | None
    tree: Sha256 | None
    campaign: Sha256 | None
    verdict: Verdict


class Previous(Schema):
    """The attempt of the previous gate, the opener of this one."""

    gate: int
    attempt: int
    receipt: Sha256


class Identity(Schema):
    """Digests shared by the gates of a campaign; the host is not among them."""

    campaign: Sha256
    candidate: Sha256
    harness: Sha256


class AttemptStart(Schema):
    """``attempt.json``: written before the first test.

    Attributes:
        state: always STARTED; the result is in the receipt or nowhere.
        sealed_root: path of the root, relative to pytest's directory if it is below that.
        nonce: 32 random hexadecimal digits that join attempt, report and receipt.
        clauses: the frozen clause ids and node ids, in order.
        plugins: name and version of every installed pytest plugin that was loaded.
        arguments: pytest's arguments as typed.
        record: digest of ``evidence/identity.json``.
    """

    file_schema: Annotated[Literal["pytest-laguna-attempt-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-attempt-v1"
    )
    state: Literal["STARTED"] = "STARTED"
    campaign_name: str
    lane: str
    gate: int
    attempt: int
    sealed_root: str
    nonce: Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{32}$")]
    clauses: list[tuple[str, str]]
    plugins: list[str]
    arguments: list[str]
    cards: list[str]
    identity: Identity
    record: Sha256
    previous: Previous | None
    earlier: list[Earlier]


class Phase(Schema):
    """The data of a ``phase`` journal event: set-up, call or teardown of one test.

    Attributes:
        cause: kind of the failure; empty for a pass.
        reason: one line.
        detail: the traceback.
    """

    nodeid: str
    when: Literal["setup", "call", "teardown"]
    outcome: Literal["passed", "failed", "skipped"]
    cause: Literal["", "assertion", "stop", "unusable", "not-proven", "error", "skip"]
    reason: str
    detail: str
    seconds: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


class ClauseProof(Schema):
    """A proof as the journal holds it."""

    statement: str
    observed: dict[str, pydantic.JsonValue]


class ClauseResult(Schema):
    """Verdict of one clause."""

    clause: str
    nodeid: str
    verdict: Verdict
    reason: Sentence = ""
    detail: str
    seconds: float
    proofs: list[ClauseProof]


class Analysis(Schema):
    """``analysis.json``: the verdict object, a pure function of the journal and the raw evidence.

    Attributes:
        verdict: the gate's.
        reason: for PASS, how many clauses are proven.
        unexercised: clause, rule and reason of each rule that proves nothing here: it is reported only, or the lane
            cannot exercise it. Clause and rule are sealed.
        figures: the few numbers of its experiment that the report for machines carries, as text.
    """

    file_schema: Annotated[Literal["pytest-laguna-analysis-v2"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-analysis-v2"
    )
    verdict: Verdict
    reason: Sentence = ""
    clauses: list[ClauseResult]
    unexercised: list[tuple[str, str, str]]
    figures: dict[str, str]

    @pydantic.field_validator("unexercised", mode="before")
    @classmethod
    def _without_reason(cls, listed: Any) -> Any:
        """Accept rules as they are sealed, without their reasons."""
        pair = 2
        if isinstance(listed, list) and all(isinstance(rule, list | tuple) for rule in listed):
            return [(*rule, "") if len(rule) == pair else rule for rule in listed]
        return listed

    @pydantic.field_serializer("unexercised")
    def _sealed(self, listed: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
        return [(clause, rule) for clause, rule, _ in listed]


class Entry(Schema):
    """One entry of the manifest: a directory has neither size nor digest."""

    path: str
    kind: Literal["file", "directory"]
    size: int | None = None
    sha256: Sha256 | None = None


class Manifest(Schema):
    """``manifest.json``: everything in the attempt but itself and the receipt, sorted by path."""

    file_schema: Annotated[Literal["pytest-laguna-manifest-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-manifest-v1"
    )
    entries: list[Entry]


Model = TypeVar("Model", bound=Schema)


def read_model(path: Path, model: type[Model]) -> Model:
    """Read a canonical JSON file into its model.

    Raises:
        UnusableEvidenceError: not canonical JSON, or not of that form; the first wrong field is named.
    """
    return _validate(json.dumps(files.read_canonical_json(path)), model, path.name)


def parse_model(value: JSON, model: type[Model], name: str) -> Model:
    """Turn a JSON value into its model; ``name`` is what an error calls it.

    Raises:
        UnusableEvidenceError: not of that form; the first wrong field is named.
    """
    return _validate(files.canonical_json(value), model, name)


def _validate(content: str | bytes, model: type[Model], name: str) -> Model:
    try:
        return model.model_validate_json(content, strict=True)
    except pydantic.ValidationError as error:
        raise UnusableEvidenceError(f"{name}: {first_defect(error)}") from error


def first_defect(error: pydantic.ValidationError, whole: str = "") -> str:
    """Return the first wrong field and its defect, as one line.

    For a missing field, the line also names an unknown sibling: probably a typo.

    Args:
        error: what pydantic said.
        whole: stands for the field where it is the whole that is wrong; where it has no name, nothing does.
    """
    first, *others = error.errors(include_url=False)
    field = ".".join(str(part) for part in first["loc"]) or whole
    told = f"{field}: {first['msg']}" if field else first["msg"]
    if first["type"] == "missing":
        *place, _ = first["loc"]
        unknown = [other["loc"] for other in others if other["type"] == "extra_forbidden"]
        beside = [name for *where, name in unknown if where == place]
        if beside:
            told += f", and {beside[0]} is unknown"
    return files.printable(told)


def receipt_statement(
    start: AttemptStart, analysis: Analysis, manifest: Manifest, digests: dict[str, str]
) -> dict[str, Any]:
    """Return the receipt as an in-toto Statement: a pure function of the attempt's other files.

    Args:
        start: ``attempt.json``.
        analysis: ``analysis.json``.
        manifest: ``manifest.json``.
        digests: ``manifest`` (SHA-256 of ``manifest.json``) and ``journal_head`` (of the journal's last line).

    Source: in-toto attestation framework, Statement v1.
    """
    subjects = [{"name": "manifest.json", "digest": {"sha256": digests["manifest"]}}]
    subjects += [
        {"name": entry.path, "digest": {"sha256": entry.sha256}} for entry in manifest.entries if entry.kind == "file"
    ]
    predicate = {
        "verdict": analysis.verdict.value,
        "clauses": [[clause.clause, clause.nodeid, clause.verdict.value] for clause in analysis.clauses],
        "unexercised": [[clause, rule] for clause, rule, _ in analysis.unexercised],
        "journal_head": digests["journal_head"],
        "attempt": start.canonical(),
    }
    return {
        "_type": STATEMENT_TYPE,
        "predicateType": PREDICATE_TYPE,
        "subject": subjects,
        "predicate": predicate,
    }
