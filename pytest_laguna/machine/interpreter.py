# SPDX-License-Identifier: Apache-2.0
"""Asks an engine's interpreter something, in a child that is thrown away and is given nothing of this environment."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from pytest_laguna.machine.errors import MendableError


class InterpreterError(MendableError):
    """An interpreter gave no answer."""


def ask(
    interpreter: Path, program: str, *, deadline_seconds: float, python: str = "python3"
) -> subprocess.CompletedProcess[str]:
    """Have an interpreter run a program.

    Args:
        interpreter: a relative path is one from here.
        program: its text.
        deadline_seconds: how long it may take.
        python: what such an interpreter is made with.

    Raises:
        InterpreterError: it cannot be run, or took longer.
    """
    with tempfile.TemporaryDirectory(prefix="laguna-doctor-") as home:
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": home, "VLLM_LOGGING_LEVEL": "ERROR"}
        try:
            return subprocess.run(
                [interpreter.absolute(), "-I", "-c", program],
                cwd=home,
                env=environment,
                check=False,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=deadline_seconds,
            )
        except OSError as error:
            found = f"{interpreter} cannot be run ({error.strerror})"
            raise InterpreterError(found, f"{python} -m venv {interpreter.parent.parent}") from error
        except subprocess.TimeoutExpired as error:
            found = f"{interpreter} imported no engine in {deadline_seconds} s"
            raise InterpreterError(found, f"{interpreter} -X importtime -c 'import vllm'") from error


def last_line(output: str) -> str:
    """What a program said at last: libraries say this and that before it."""
    return output.strip().rpartition("\n")[2]
