# SPDX-License-Identifier: Apache-2.0
"""Where each rank of an arm was shortly before the arm would be ended: the text that Python's fault handler writes.

A rank that answers in time leaves none. The handler writes ASCII from a thread of its own, which needs nothing of the
rank's interpreter: a rank that spins or waits is written down, and one that is stopped is not.
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
"""How each text of a file begins; where a step came back after all, a later one may follow."""
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):.*")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>[0-9]+|\?\?\?) in (?P<function>.*)')
_CUT = "  ..."
"""What stands for frames that are too many."""
_OUTERMOST = {"<module>", "_run_module_as_main"}
"""In what the main thread of a program or of a module runs, as no other does."""


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One call of a rank's, as Python's fault handler writes it.

    Attributes:
        file: path of its source.
        line: its number; ``???`` where the handler did not know it.
        function: its name.
    """

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        *_, where = self.file.rpartition("site-packages/")
        return f"{self.function} ({where}, line {self.line})"


Stack: TypeAlias = tuple[Frame, ...]
"""The calls that a rank's main thread was in, the innermost first."""


def remove_unwritten(directory: Path) -> None:
    """Take away the files in which the ranks of an arm, having all answered, have had nothing to write."""
    for path in stack_files(directory):
        if path.stat().st_size == 0:
            path.unlink()


def stack_files(directory: Path) -> list[Path]:
    """What the ranks of an arm have made, sorted; nothing where there is no directory."""
    try:
        return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))
    except OSError:
        return []


def read_stack(path: Path) -> Stack:
    """Read the last stack in a rank's file; empty if the rank wrote nothing.

    Raises:
        UnusableEvidenceError: the file is torn, or not what the handler writes.
    """
    content = files.read_bytes(path, limit=SIZE_LIMIT)
    try:
        return main_stack(content.decode("ascii"), path.name) if content else ()
    except UnicodeDecodeError as error:
        message = f"{path.name}: not ASCII; expected what Python's fault handler writes"
        raise UnusableEvidenceError(message) from error


def main_stack(text: str, name: str) -> Stack:
    """The main thread's calls; it is the oldest thread, which the handler writes last.

    Args:
        text: what the handler wrote, once or more often.
        name: what an error calls it.

    Raises:
        UnusableEvidenceError: it is torn, or nothing that the handler writes.
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
    """The calls of a thread, and whether there were more than are written; none where a line is anything else."""
    cut = bool(lines) and lines[-1] == _CUT
    matches = [_FRAME.fullmatch(line) for line in (lines[:-1] if cut else lines)]
    found = [match for match in matches if match]
    return tuple(Frame(*match.groups()) for match in found) if len(found) == len(matches) else (), cut
