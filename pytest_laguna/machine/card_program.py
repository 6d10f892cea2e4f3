# SPDX-License-Identifier: Apache-2.0
"""The program of an isolated card process: ``python -m pytest_laguna.machine.card_program REQUEST.json RESULT.json``.

It loads one function from its file, calls it with JSON arguments and writes the JSON value returned. The function's
imports, torch first of all, happen here and not in pytest.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.schemas import Schema, read_model

FAILED = "laguna-card failed: "
"""Prefix of the one line in which the program says why it left no result."""


class CardRequest(Schema):
    """One call: a Python file's absolute path, the function's qualified name in it, and positional arguments."""

    file: str
    function: str
    arguments: list[pydantic.JsonValue]


class CardResult(Schema):
    """The function's return value."""

    value: pydantic.JsonValue


def main(arguments: list[str]) -> int:
    """Run the function; return 0 only when its result is on disk."""
    try:
        request_path, result_path = (Path(argument) for argument in arguments)
        request = read_model(request_path, CardRequest)
        value = _load(request)(*request.arguments)
        files.write_new(result_path, files.canonical_json(CardResult(value=value).canonical()))
    except Exception as error:  # noqa: BLE001 - any failure becomes one line
        sys.stderr.write(f"{FAILED}{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    return 0


def _load(request: CardRequest) -> Any:
    spec = importlib.util.spec_from_file_location("laguna_card_function", request.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{request.file}: seen no loader for it; expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: Any = module
    for part in request.function.split("."):
        found = getattr(found, part)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
