# SPDX-License-Identifier: Apache-2.0
"""Writes a JSON Schema of every kind of evidence file into pytest_laguna/evidence/json_schemas, for other verifiers.

``python tools/make_schemas.py`` writes them; the test suite says when that is due.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pydantic
from pydantic.json_schema import JsonSchemaMode

import pytest_laguna.endpoint
import pytest_laguna.evidence
from pytest_laguna.campaign import Campaign
from pytest_laguna.evidence.journal import Event
from pytest_laguna.evidence.schemas import PREDICATE_TYPE, STATEMENT_TYPE, Phase, Schema
from pytest_laguna.experiments.protocol import Protocol
from pytest_laguna.verdict import Verdict

TARGET = Path(pytest_laguna.evidence.__path__[0]) / "json_schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
CAMPAIGN = "pytest-laguna-campaign-v1"
PROTOCOL = "pytest-laguna-endpoint-protocol-v1"
IDENTITY = "pytest-laguna-identity-v1"
RECEIPT = "pytest-laguna-gate-receipt-v2"
JOURNAL_LINE = "pytest-laguna-journal-line-v1"
JOURNAL_PHASE = "pytest-laguna-journal-phase-v1"
FROZEN = frozenset(
    f"pytest-laguna-{name}-v1.json"
    for name in ("analysis", "diagnosis", "endpoint-analysis", "event-analysis", "gate-receipt", "null-analysis")
)
"""Schemas of files that earlier versions sealed and no version writes any more."""


def json_schemas() -> dict[str, str]:
    """Texts by file name, for each model with a schema id and for those read without one."""
    unnamed: dict[str, type[pydantic.BaseModel]] = {
        CAMPAIGN: Campaign,
        PROTOCOL: Protocol,
        JOURNAL_LINE: Event,
        JOURNAL_PHASE: Phase,
    }
    models = {f"{name}.json": _text(name, model) for name, model in (*_models(), *unnamed.items())}
    frozen = {name: (TARGET / name).read_text() for name in FROZEN}
    return frozen | models | {f"{name}.json": _dump(name, schema) for name, schema in _WITHOUT_MODEL.items()}


def _object(description: str, **properties: object) -> dict[str, object]:
    """A closed object with all of these properties required."""
    closed: dict[str, object] = {"additionalProperties": False, "required": sorted(properties)}
    return {"type": "object", "description": description, "properties": properties} | closed


def _objects(of: object) -> dict[str, object]:
    return {"type": "object", "additionalProperties": of}


def _row(*columns: object) -> dict[str, object]:
    count = len(columns)
    return {"type": "array", "prefixItems": list(columns), "items": False, "minItems": count, "maxItems": count}


_TEXT = {"type": "string"}
_DIGEST = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_VERDICT = {"enum": [verdict.value for verdict in Verdict]}
_COMMIT = {
    "anyOf": [
        _object(
            "The checkout; where nobody committed yet, commit and tree are empty.",
            commit=_TEXT,
            tree=_TEXT,
            dirty={"type": "boolean"},
        ),
        {"type": "null"},
    ]
}
_WITHOUT_MODEL: dict[str, dict[str, Any]] = {
    IDENTITY: _object(
        "What an attempt ran and where: evidence/identity.json.",
        schema={"const": IDENTITY},
        candidate=_objects(_DIGEST),
        harness=_objects(_DIGEST),
        binaries=_objects(_DIGEST),
        git=_COMMIT,
        python=_object("Of the gate's own process.", version=_TEXT, executable=_TEXT),
        packages=_objects(_TEXT),
        environment=_object(
            "The variables that may matter, and of all others their number and the digest of their names.",
            recorded=_objects(_TEXT),
            others={"type": "integer", "minimum": 0},
            names_sha256=_DIGEST,
        ),
        host=_object("Where.", system=_TEXT, processors={"type": ["integer", "null"]}),
    ),
    RECEIPT: _object(
        "The receipt of a gate, an in-toto Statement: receipt.json.",
        _type={"const": STATEMENT_TYPE},
        predicateType={"const": PREDICATE_TYPE},
        subject={
            "type": "array",
            "minItems": 1,
            "items": _object("A file.", name=_TEXT, digest=_object("Of its bytes.", sha256=_DIGEST)),
        },
        predicate=_object(
            "What the gate came to.",
            verdict=_VERDICT,
            clauses={"type": "array", "items": _row(_TEXT, _TEXT, _VERDICT)},
            unexercised={"type": "array", "items": _row(_TEXT, _TEXT)},
            journal_head=_DIGEST,
            attempt={"type": "object", "description": "attempt.json, whole: pytest-laguna-attempt-v1."},
        ),
    ),
}
"""Forms that are put together and compared whole, and so have no model."""


def _models() -> Iterator[tuple[str, type[Schema]]]:
    for package in (pytest_laguna.evidence, pytest_laguna.endpoint):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, Schema) and (name := _name(value)) is not None:
                    yield name, value


def _name(model: type[Schema]) -> str | None:
    """A model's ``schema`` value, or None."""
    field = model.model_fields.get("file_schema")
    if field is None or field.alias != "schema":
        return None
    (name,) = get_args(field.annotation)
    return str(name)


def _text(name: str, model: type[pydantic.BaseModel]) -> str:
    """Schema of the form that is written, or that people write."""
    mode: JsonSchemaMode = "serialization" if issubclass(model, Schema) else "validation"
    return _dump(name, model.model_json_schema(by_alias=True, mode=mode) | {"description": _description(model)})


def _dump(name: str, schema: dict[str, Any]) -> str:
    whole = {"$schema": DIALECT, "$id": f"urn:{name}", **schema}
    return json.dumps(whole, indent=2, sort_keys=True) + "\n"


def _description(model: type[pydantic.BaseModel]) -> str:
    """The model's docstring, then those of its base models."""
    forms = (form for form in model.__mro__ if form not in {Schema, *Schema.__mro__})
    return "\n\n".join(inspect.cleandoc(form.__doc__ or "") for form in forms)


def main() -> None:
    """Write all schemas, and remove stale ones."""
    TARGET.mkdir(exist_ok=True)
    texts = json_schemas()
    for path in TARGET.glob("*.json"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (TARGET / name).write_text(text)


if __name__ == "__main__":
    main()
