# SPDX-License-Identifier: Apache-2.0
"""Runs xpu-smi: always the same file, a fixed environment, no mask, a deadline, and its pid on record."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.machine.xpu_smi import PROGRAM
from pytest_laguna.machine.errors import CardError

PROGRAM_PATH = Path("/usr/bin") / PROGRAM
DEADLINE_SECONDS = 20.0

ENVIRONMENT = {"LANG": "C", "LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
"""Nothing is inherited: under a mask the tool counts only the cards that the mask leaves."""


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """One finished run: program and arguments, the file that ran with links resolved, and its whole output."""

    command: tuple[str, ...]
    executable: str
    executable_sha256: str
    pid: int
    output: str


def run(program: Path, words: Sequence[str]) -> Done:
    """Run the tool and return its output.

    Raises:
        CardError: it is missing, changed while it ran, became another program, failed, printed to standard error or
            took too long.
    """
    command = (str(program), *words)
    shown = f"xpu: {' '.join(command)}"
    executable = program.resolve()
    try:
        before = files.sha256_file(executable)
        child = subprocess.Popen(
            command, cwd="/", env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        found = f"{shown}: seen {error.strerror}; expected Intel's XPU manager"
        raise CardError(found, "apt-get install xpu-smi") from error
    with child:
        try:
            _require_image(child, executable, shown)
            output, errors = child.communicate(timeout=DEADLINE_SECONDS)
        except subprocess.TimeoutExpired as error:
            child.kill()
            found = f"{shown}: seen no answer in {DEADLINE_SECONDS} s; expected one"
            raise CardError(found, "run it by hand; see the kernel's log") from error
    if child.returncode != 0 or errors:
        tail = errors.decode(errors="replace").strip().rpartition("\n")[2]
        found = f"{shown}: seen exit status {child.returncode}, {tail!r}; expected 0, no message"
        raise CardError(found, "run it by hand")
    if files.sha256_file(executable) != before:
        found = f"{shown}: seen {executable} changed while it ran; expected one file"
        raise CardError(found, "wait until its package is installed")
    return Done(command, str(executable), before, child.pid, output.decode(errors="replace"))


def _require_image(child: subprocess.Popen[bytes], executable: Path, shown: str) -> None:
    """Require that the process runs the hashed file, for as long as it lives; an ended process has no image.

    Raises:
        CardError: it runs another file; it is killed.
    """
    try:
        seen = Path(f"/proc/{child.pid}/exe").stat()
    except OSError:
        return
    expected = _image(executable)
    if not os.path.samestat(seen, expected.stat()):
        child.kill()
        found = f"{shown}: seen process {child.pid} running another file; expected {expected}"
        raise CardError(found, "run it by hand")


def _image(executable: Path) -> Path:
    """The file the kernel executes: of a script, its interpreter."""
    with executable.open("rb") as stream:
        first = stream.readline(4096)
    words = first.removeprefix(b"#!").split()
    return Path(os.fsdecode(words[0])).resolve() if first.startswith(b"#!") and words else executable
