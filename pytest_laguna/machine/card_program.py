# SPDX-License-Identifier: Apache-2.0
"""The program of an isolated card process: ``python -m pytest_laguna.machine.card_program REQUEST.json RESULT.json``.

It loads one function from its file, calls it with JSON arguments and writes the JSON value that it returns. Whatever
the function imports, torch first of all, is imported here and not in pytest.
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
"""How the one line begins in which the program says why it left no result."""


class CardRequest(Schema):
    """What a card process is asked to do.

    Attributes:
        file: absolute path of the Python file that defines the function.
        function: its qualified name in that file.
        arguments: its positional arguments.
    """

    file: str
    function: str
    arguments: list[pydantic.JsonValue]


class CardResult(Schema):
    """What the function returned."""

    value: pydantic.JsonValue


def main(arguments: list[str]) -> int:
    """Run the function; the exit code is 0 only when its result is on disk."""
    try:
        request_path, result_path = (Path(argument) for argument in arguments)
        request = read_model(request_path, CardRequest)
        value = _load(request)(*request.arguments)
        files.write_new(result_path, files.canonical_json(CardResult(value=value).canonical()))
    except Exception as error:  # noqa: BLE001 - whatever it was, it is told in one line
        sys.stderr.write(f"{FAILED}{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    return 0


def _load(request: CardRequest) -> Any:
    spec = importlib.util.spec_from_file_location("laguna_card_function", request.file)
    if spec is None or spec.loader is None:
        message = f"{request.file}: not a Python file"
        raise ImportError(message)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: Any = module
    for part in request.function.split("."):
        found = getattr(found, part)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
