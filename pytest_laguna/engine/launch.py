# SPDX-License-Identifier: Apache-2.0
"""Starts an arm in a process of its own and brings back its record. Imports neither torch nor vLLM."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import ArmRecord, ArmRequest
from pytest_laguna.evidence.schemas import read_model

from . import arms

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


@dataclasses.dataclass(frozen=True, slots=True)
class TinyPair:
    """The tiny target and draft that every lane's rehearsal runs on.

    Attributes:
        target: folder of the target model.
        draft: folder of the draft model.
        prompts: by name; the target is surest of ``word-chain``, whose drafts are accepted whole.
    """

    target: Path
    draft: Path
    prompts: dict[str, str]


def build_tiny_pair(directory: Path, *, interpreter: Path, deadline_seconds: float) -> TinyPair:
    """Write the tiny pair into a new directory, in a process of its own because that needs torch.

    Args:
        directory: made here with mode 0700.
        interpreter: a Python that has torch and safetensors.
        deadline_seconds: after which the process is killed.

    Raises:
        FileExistsError: the directory exists.
        ArmFailedError: it could not be written, or its bytes are not the shipped ones.
    """
    directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    pair = directory / "pair"
    argv = [str(interpreter), "-P", "-B", "-m", "pytest_laguna.engine.tiny_pair", str(pair)]
    status, timed_out = run_in_group(argv, _private_environment(directory), directory, deadline_seconds)
    if timed_out or status != 0:
        outcome = f"killed after {deadline_seconds:g} s" if timed_out else f"exit status {status}"
        message = f"tiny pair in {directory}: {outcome}: {_reason(_tail(directory / 'stderr.log'))}"
        raise ArmFailedError(message)
    prompts = {name: str(text) for name, text in json.loads((pair / "prompts.json").read_text()).items()}
    return TinyPair(pair / "target", pair / "draft", prompts)


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
        message = f"arm {request.arm} in {directory}: exit status {result.status}: {_reason(result.stderr_tail)}"
        raise ArmFailedError(message)
    record = read_model(result.record_path, ArmRecord)
    if record.request != request:
        message = f"{result.record_path}: answers another request than {directory / 'request.json'}"
        raise ArmFailedError(message)
    return record


def start_arm(request: ArmRequest, directory: Path, *, interpreter: Path, deadline_seconds: float) -> ArmResult:
    """Run one arm's process to its end or its deadline; see ``run_arm``."""
    directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    request_path, record_path = directory / "request.json", directory / "record.json"
    files.write_new(request_path, files.canonical_json(request.canonical()))
    argv = [str(interpreter), "-P", "-B", "-m", "pytest_laguna.engine.arm", str(request_path), str(record_path)]
    status, timed_out = run_in_group(argv, environment(request, directory), directory, deadline_seconds)
    return ArmResult(status, timed_out, _tail(directory / "stderr.log"), record_path)


def environment(request: ArmRequest, directory: Path) -> dict[str, str]:
    """The arm's whole environment: what decides its result, new private directories, and only ``PATH`` inherited."""
    return _private_environment(directory) | arms.environment(request)


def _private_environment(directory: Path) -> dict[str, str]:
    """``arms.PLACES``: ``PATH`` is inherited, and private directories are made here."""
    home, temporary = directory / "home", directory / "tmp"
    for new in (home, temporary):
        new.mkdir(mode=files.PRIVATE_DIRECTORY)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LC_ALL": "C.UTF-8",
    }


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


def _reason(stderr_tail: str) -> str:
    """The line in which the arm said why, or its last one: a process that dies by a signal says nothing."""
    lines = stderr_tail.strip().splitlines() or ["nothing on standard error"]
    return next((line for line in reversed(lines) if line.startswith(arms.FAILED)), lines[-1])


def _tail(path: Path) -> str:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return stream.read().decode(errors="replace")
