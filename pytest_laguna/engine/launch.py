# SPDX-License-Identifier: Apache-2.0
"""Starts an arm in a process of its own and brings back its record. Imports neither torch nor vLLM."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import ArmRecord, ArmRequest
from pytest_laguna.evidence.schemas import read_model

from . import arms

_PASSED_ON = ("PATH",)
_TAIL_BYTES = 4096


class ArmFailedError(RuntimeError):
    """An arm that left no record: its exit, and the line in which it said why."""


@dataclasses.dataclass(frozen=True, slots=True)
class ArmResult:
    """What became of an arm's process.

    Attributes:
        status: its exit status; negative is the signal that ended it.
        timed_out: whether the deadline passed and its process group was killed.
        stderr_tail: the end of what it wrote to standard error.
        record_path: where its record is, if it wrote one.
    """

    status: int
    timed_out: bool
    stderr_tail: str
    record_path: Path


def run_arm(request: ArmRequest, directory: Path, *, interpreter: Path, deadline_seconds: float) -> ArmRecord:
    """Run one arm and read its record.

    Args:
        request: what the arm is told.
        directory: made here with mode 0700; everything that the arm writes is below it.
        interpreter: the Python that has the lane's vLLM.
        deadline_seconds: after which the arm's process group is killed.

    Raises:
        FileExistsError: the directory exists; an arm's directory is never used twice.
        ArmFailedError: it exited with another status than 0, or the deadline passed.
        UnusableEvidenceError: its record is not one, or answers another request.
    """
    result = start_arm(request, directory, interpreter=interpreter, deadline_seconds=deadline_seconds)
    if result.timed_out:
        message = f"arm {request.arm} in {directory}: killed after its deadline of {deadline_seconds:g} s"
        raise ArmFailedError(message)
    if result.status != 0:
        last = (result.stderr_tail.strip().splitlines() or ["nothing on standard error"])[-1]
        message = f"arm {request.arm} in {directory}: exit status {result.status}: {last}"
        raise ArmFailedError(message)
    record = read_model(result.record_path, ArmRecord)
    if record.request != request:
        message = f"{result.record_path}: answers another request than {directory / 'request.json'}"
        raise ArmFailedError(message)
    return record


def start_arm(request: ArmRequest, directory: Path, *, interpreter: Path, deadline_seconds: float) -> ArmResult:
    """Run one arm's process to its end or its deadline; see ``run_arm``."""
    directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    for name in ("home", "tmp"):
        (directory / name).mkdir(mode=files.PRIVATE_DIRECTORY)
    request_path, record_path = directory / "request.json", directory / "record.json"
    files.write_new(request_path, files.canonical_json(request.canonical()))
    argv = [str(interpreter), "-P", "-B", "-m", "pytest_laguna.engine.arm", str(request_path), str(record_path)]
    status, timed_out = run_in_group(argv, environment(request, directory), directory, deadline_seconds)
    return ArmResult(status, timed_out, _tail(directory / "stderr.log"), record_path)


def environment(request: ArmRequest, directory: Path) -> dict[str, str]:
    """The arm's whole environment: what decides its result, private directories, and nothing inherited but ``PATH``."""
    inherited = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    private = {
        "HOME": str(directory / "home"),
        "TMPDIR": str(directory / "tmp"),
        "LC_ALL": "C.UTF-8",
    }
    return inherited | private | arms.environment(request)


def run_in_group(
    argv: list[str], environment_: dict[str, str], directory: Path, deadline_seconds: float
) -> tuple[int, bool]:
    """Run a command in its own session, its output in ``directory``; kill all of its process group at the deadline.

    Whatever of the group is left when the command ends by itself is killed as well.

    Returns:
        Its exit status, and whether the deadline passed.
    """
    with (directory / "stdout.log").open("xb") as stdout, (directory / "stderr.log").open("xb") as stderr:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment_,
            cwd=directory,
            start_new_session=True,
        )
        try:
            status, timed_out = process.wait(deadline_seconds), False
        except subprocess.TimeoutExpired:
            status, timed_out = None, True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.wait() if status is None else status, timed_out


def _tail(path: Path) -> str:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return stream.read().decode(errors="replace")
