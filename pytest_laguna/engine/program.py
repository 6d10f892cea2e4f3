# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the engine's programs: request and record, one line on failure, and a private environment."""

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
from pytest_laguna.evidence.arms.arm_settings import LEASE, PLACES, STACKS
from pytest_laguna.evidence.schemas import Schema, read_model

Request = TypeVar("Request", bound=Schema)


def answer(arguments: Sequence[str], request: type[Request], run: Callable[[Request], Schema], failed: str) -> int:
    """Read a request, run it, and write its record.

    Args:
        arguments: of the program: paths of request and record.
        request: schema of the request.
        run: makes the record.
        failed: start of the line on standard error if there is no record.

    Returns:
        The exit code: 0 only if the record is on disk. Otherwise a traceback lies in its place.
    """
    if len(arguments) != 2:  # noqa: PLR2004
        sys.stderr.write(f"{failed}seen {len(arguments)} arguments; expected REQUEST.json RECORD.json\n")
        return 2
    end_quickly()
    request_path, record_path = (Path(argument) for argument in arguments)
    try:
        record = run(read_model(request_path, request))
        files.write_new(record_path, files.canonical_json(record.canonical()))
    except Exception as error:  # noqa: BLE001 - every failure is told in one line
        record_path.with_suffix(".traceback").write_text(traceback.format_exc())
        sys.stderr.write(f"{failed}{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    return 0


def end_quickly() -> None:
    """Skip the interpreter's last garbage collection, which takes seconds with vLLM loaded.

    It runs after the program's other exit handlers, and before the interpreter's own clean-up.
    """
    atexit.register(gc.freeze)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Disable garbage collection inside the block, and freeze the heap after it.

    Imports create about a million permanent objects. Without this, the collector visits them again and again, and so do
    vLLM's own calls of it. vLLM freezes its heap in the same way once its engine has started.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def require_environment(expected: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as it is now; vLLM adds to it later.

    Args:
        expected: every variable that decides a result.

    Raises:
        RuntimeError: one of them has another value, or an unexpected variable is set.
    """
    seen = dict(sorted(os.environ.items()))
    for name in sorted((seen.keys() | expected.keys()) - PLACES - LEASE - STACKS):
        if seen.get(name) != expected.get(name):
            message = (
                f"{name}: seen {seen.get(name)!r} in the environment; expected {expected.get(name)!r}; "
                "start it with engine.launch, which sets all of it"
            )
            raise RuntimeError(message)
    return seen
