# SPDX-License-Identifier: Apache-2.0
"""What the engine's programs share: request and record, one line on failure, and an environment of their own."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_laguna.evidence import files
from pytest_laguna.evidence.schemas import Schema, read_model

from . import arms

Request = TypeVar("Request", bound=Schema)


def answer(arguments: Sequence[str], request: type[Request], run: Callable[[Request], Schema], failed: str) -> int:
    """Read a request, run it, and write its record.

    Args:
        arguments: of the program: where the request is, and where the record goes.
        request: the form of the request.
        run: what is done.
        failed: how the one line on standard error begins where there is no record.

    Returns:
        The exit code: 0 only when the record is on disk. A traceback lies beside where it would be.
    """
    if len(arguments) != 2:  # noqa: PLR2004
        sys.stderr.write(f"{failed}expected REQUEST.json RECORD.json, got {len(arguments)} arguments\n")
        return 2
    end_quickly()
    request_path, record_path = (Path(argument) for argument in arguments)
    try:
        record = run(read_model(request_path, request))
        files.write_new(record_path, files.canonical_json(record.canonical()))
    except Exception as error:  # noqa: BLE001 - whatever it was, it is told in one line
        record_path.with_suffix(".traceback").write_text(traceback.format_exc())
        sys.stderr.write(f"{failed}{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    return 0


def end_quickly() -> None:
    """Have the interpreter not search all of vLLM for garbage when it ends, which takes it seconds.

    It comes after everything that runs at the end of a program, and before what the interpreter does by itself.
    """
    atexit.register(gc.freeze)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Have the interpreter search nothing for garbage that is imported meanwhile, which takes long.

    Imports make some million objects that stay, and each would be looked at again and again, by the collector and by
    vLLM, which asks for searches. It also freezes its heap in this way, once its engine has started.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def require_environment(expected: Mapping[str, str]) -> dict[str, str]:
    """The environment as it is now, which vLLM adds to later.

    Args:
        expected: every variable that decides what is computed.

    Raises:
        RuntimeError: one of them has another value, or one is there that decides something and is not among them.
    """
    seen = dict(sorted(os.environ.items()))
    for name in sorted((seen.keys() | expected.keys()) - arms.PLACES - arms.LEASE - arms.STACKS):
        if seen.get(name) != expected.get(name):
            message = (
                f"{name} is {seen.get(name)!r} in the environment, expected {expected.get(name)!r}; "
                "start it with engine.launch, which sets all of it"
            )
            raise RuntimeError(message)
    return seen
