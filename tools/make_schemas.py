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
from typing import get_args

import pydantic

import pytest_laguna.endpoint
import pytest_laguna.evidence
from pytest_laguna.campaign import Campaign
from pytest_laguna.evidence.journal import Event
from pytest_laguna.evidence.schemas import Phase, Schema

TARGET = Path(pytest_laguna.evidence.__path__[0]) / "json_schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
CAMPAIGN = "pytest-laguna-campaign-v1"
JOURNAL_LINE = "pytest-laguna-journal-line-v1"
JOURNAL_PHASE = "pytest-laguna-journal-phase-v1"


def json_schemas() -> dict[str, str]:
    """File name to text: for each model that names its own schema, and for those that are read without its word."""
    unnamed: dict[str, type[pydantic.BaseModel]] = {CAMPAIGN: Campaign, JOURNAL_LINE: Event, JOURNAL_PHASE: Phase}
    return {f"{name}.json": _text(name, model) for name, model in (*_models(), *unnamed.items())}


def _models() -> Iterator[tuple[str, type[Schema]]]:
    for package in (pytest_laguna.evidence, pytest_laguna.endpoint):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, Schema) and (name := _name(value)) is not None:
                    yield name, value


def _name(model: type[Schema]) -> str | None:
    """What a file says of itself under ``schema``; None where it says nothing."""
    field = model.model_fields.get("file_schema")
    if field is None or field.alias != "schema":
        return None
    (name,) = get_args(field.annotation)
    return str(name)


def _text(name: str, model: type[pydantic.BaseModel]) -> str:
    schema = {"$schema": DIALECT, "$id": f"urn:{name}", **model.model_json_schema(by_alias=True)}
    schema["description"] = _description(model)
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def _description(model: type[pydantic.BaseModel]) -> str:
    """What its docstring says of it, and those of the forms that it begins with."""
    forms = (form for form in model.__mro__ if form not in {Schema, *Schema.__mro__})
    return "\n\n".join(inspect.cleandoc(form.__doc__ or "") for form in forms)


def main() -> None:
    """Write them all, and remove what is left of earlier ones."""
    TARGET.mkdir(exist_ok=True)
    texts = json_schemas()
    for path in TARGET.glob("*.json"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (TARGET / name).write_text(text)


if __name__ == "__main__":
    main()
