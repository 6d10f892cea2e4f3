# SPDX-License-Identifier: Apache-2.0
"""The last stack of each rank of an arm, written by Python's fault handler shortly before the arm is ended.

A rank that answers in time leaves none. The handler writes ASCII from a thread of its own, which needs nothing of the
rank's interpreter: it writes down a spinning or waiting rank, but not a stopped one.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TypeAlias

from pytest_laguna.evidence import files
from pytest_laguna.verdict import UnusableEvidenceError

SIZE_LIMIT = 1024 * 1024
"""The handler writes at most 100 threads of 100 frames; a rank has some ten of some 50."""

_NAME = re.compile(r"rank-(0|[1-9][0-9]{0,3})-stack\.txt")
_WRITTEN = "Timeout ("
"""Begin of each text in a file; if a step returned after all, a later text may follow."""
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):.*")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>[0-9]+|\?\?\?) in (?P<function>.*)')
_CUT = "  ..."
"""Placeholder of frames beyond the limit."""
_OUTERMOST = {"<module>", "_run_module_as_main"}
"""Outermost functions of a main thread, of no other thread."""


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One call of a rank, as Python's fault handler writes it.

    Attributes:
        line: its number; ``???`` if the handler did not know it.
    """

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        *_, where = self.file.rpartition("site-packages/")
        return f"{self.function} ({where}, line {self.line})"


Stack: TypeAlias = tuple[Frame, ...]
"""Calls of a rank's main thread, the innermost first."""


def remove_unwritten(directory: Path) -> None:
    """Remove empty stack files: every rank of the arm answered in time."""
    for path in stack_files(directory):
        if path.stat().st_size == 0:
            path.unlink()


def stack_files(directory: Path) -> list[Path]:
    """Stack files of an arm's ranks, sorted; none without a directory."""
    try:
        return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))
    except OSError:
        return []


def read_stack(path: Path) -> Stack:
    """Read the last stack in a rank's file; empty if the rank wrote nothing.

    Raises:
        UnusableEvidenceError: the file is torn, or not of the handler's form.
    """
    content = files.read_bytes(path, limit=SIZE_LIMIT)
    try:
        return main_stack(content.decode("ascii"), path.name) if content else ()
    except UnicodeDecodeError as error:
        raise UnusableEvidenceError(f"{path.name}: not ASCII; expected what Python's fault handler writes") from error


def main_stack(text: str, name: str) -> Stack:
    """Return the calls of the main thread, the oldest thread: the handler writes it last.

    Raises:
        UnusableEvidenceError: the text is torn, or not of the handler's form; it is called ``name``.
    """
    before, written, last = text.rpartition(_WRITTEN)
    lines = last.splitlines()[1:]
    begins = [number for number, line in enumerate(lines) if _THREAD.fullmatch(line)]
    whole = bool(written) and (not before or before.endswith("\n")) and text.endswith("\n") and bool(begins)
    frames, cut = _frames(lines[begins[-1] + 1 :]) if whole else ((), False)
    if not frames or not (cut or frames[-1].function in _OUTERMOST):
        message = f"{name}: not the whole stack of a main thread; expected what Python's fault handler writes"
        raise UnusableEvidenceError(message)
    return frames


def _frames(lines: list[str]) -> tuple[Stack, bool]:
    """Return the calls of a thread, and True if more were cut off; no calls if a line is anything else."""
    cut = bool(lines) and lines[-1] == _CUT
    matches = [_FRAME.fullmatch(line) for line in (lines[:-1] if cut else lines)]
    found = [match for match in matches if match]
    return tuple(Frame(*match.groups()) for match in found) if len(found) == len(matches) else (), cut
