# SPDX-License-Identifier: Apache-2.0
"""The frozen reader of schema v1, which sealed sentences beside their evidence.

Its result is the same content in the present schema, so that a root of v1 verifies to the same verdict under every
later version, however that words its reasons. Nothing here changes any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pytest_laguna.evidence import files
from pytest_laguna.evidence.schemas import PREDICATE_TYPE, Model, parse_model
from pytest_laguna.verdict import JSON, UnusableEvidenceError

WARNING: Final = "null.warning."
"""Prefix of the sentences that v1 had among the figures, which JUnit has as properties ``figure.<name>``."""
_RECEIPT_V1: Final = "urn:pytest-laguna:gate-receipt:v1"


def _rule_results(value: dict[str, Any]) -> None:
    for results in value["clauses"].values():
        for result in results.values():
            del result["reason"]


def _analysis(value: dict[str, Any]) -> None:
    del value["reason"]
    for clause in value["clauses"]:
        del clause["reason"]
    value["unexercised"] = [[clause, rule] for clause, rule, _ in value["unexercised"]]
    value["figures"] = {name: told for name, told in value["figures"].items() if not name.startswith(WARNING)}


def _endpoint(value: dict[str, Any]) -> None:
    del value["reason"]
    for finding in value["findings"]:
        del finding["reason"]
    if value["phase_1"] is not None:
        del value["phase_1"]["reasons"]


def _aa(value: dict[str, Any]) -> None:
    value["against"] = list(value["against"])


def _receipt(value: dict[str, Any]) -> None:
    predicate = value["predicate"]
    del predicate["reason"]
    predicate["unexercised"] = [[clause, rule] for clause, rule, _ in predicate["unexercised"]]


_RAISED: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "pytest-laguna-analysis-v1": _analysis,
    "pytest-laguna-diagnosis-v1": _rule_results,
    "pytest-laguna-event-analysis-v1": _rule_results,
    "pytest-laguna-endpoint-analysis-v1": _endpoint,
    "pytest-laguna-null-analysis-v1": _aa,
}


def raised(value: JSON, name: str) -> JSON:
    """Return the content of a file in the present schema; a file of the present schema is returned as it is.

    Args:
        value: the file's content; it is not changed.
        name: the file's, for errors.

    Raises:
        UnusableEvidenceError: it says that it is of v1, and is not of that form.
    """
    if not isinstance(value, dict):
        return value
    schema, predicate_type = str(value.get("schema")), value.get("predicateType")
    strip = _receipt if predicate_type == _RECEIPT_V1 else _RAISED.get(schema)
    if strip is None:
        return value
    copy: dict[str, Any] = files.parse_json(files.canonical_json(value), name)  # type: ignore[assignment]
    try:
        strip(copy)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"{name}: not of the form of {_RECEIPT_V1 if strip is _receipt else schema}"
        raise UnusableEvidenceError(message) from error
    named = {"predicateType": PREDICATE_TYPE} if strip is _receipt else {"schema": f"{schema.removesuffix('v1')}v2"}
    return copy | named


def read_raised(path: Path, model: type[Model]) -> Model:
    """Read a file of v1 or of the present schema into its model; raises UnusableEvidenceError."""
    return parse_model(raised(files.read_canonical_json(path), path.name), model, path.name)


def same_content(path: Path, derived: bytes) -> bool:
    """Compare a canonical JSON file, of v1 or of the present schema, with derived content.

    Args:
        path: the file's.
        derived: canonical JSON in the present schema.

    Raises:
        UnusableEvidenceError: the file is not canonical JSON, or not of the form that it states.
    """
    return files.canonical_json(raised(files.read_canonical_json(path), path.name)) == derived
