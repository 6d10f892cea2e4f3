# SPDX-License-Identifier: Apache-2.0
"""Asks an engine's interpreter in a disposable child that inherits nothing of this environment."""

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
    """Run a program text in an interpreter; ``python`` is the command that makes such an interpreter, for the remedy.

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
            found = f"{interpreter}: seen {error.strerror}; expected a Python that runs"
            raise InterpreterError(found, f"{python} -m venv {interpreter.parent.parent}") from error
        except subprocess.TimeoutExpired as error:
            found = f"{interpreter}: seen no engine imported in {deadline_seconds} s; expected one"
            raise InterpreterError(found, f"{interpreter} -X importtime -c 'import vllm'") from error


UNLISTED = """
import csv, importlib.metadata, importlib.util, pathlib, sys, sysconfig
def origin(name):
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    return spec and spec.origin
def listed(place):
    for found in importlib.metadata.distributions(path=[str(place)]):
        rows = csv.reader((found.read_text("RECORD") or "").splitlines())
        yield from (place / row[0] for row in rows if len(row) > 1 and row[1])
def unlisted():
    places = [pathlib.Path(place) for place in dict.fromkeys(sys.path)]
    started = [pathlib.Path(found) for name in ("sitecustomize", "usercustomize") if (found := origin(name))]
    started += [file for place in places for file in sorted(place.glob("*.pth"))]
    known = {file for place in places for file in listed(place)}
    system = pathlib.Path(sysconfig.get_path("stdlib"))
    return [str(file) for file in started if file not in known and file.parent != system]
"""
"""Part of a program: the start files refused by rule ``start-files-known``, with no digest in a RECORD."""

_OF_VIRTUALENV = "_virtualenv.pth"


def mend_unlisted(file: str) -> tuple[str, str]:
    """Return the finding and the remedy for a start file that no RECORD lists."""
    found = f"{file}: seen a start file of Python's that no RECORD lists; expected none: gate 2 would be VOID"
    if Path(file).name == _OF_VIRTUALENV:
        return found, f"rm {file} {Path(file).with_suffix('.py')}; they only patch old distutils"
    return found, f"mv {file} elsewhere, or have pip install what needs it"


def last_line(output: str) -> str:
    """Last line of a program's output: libraries may print before it."""
    return output.strip().rpartition("\n")[2]
