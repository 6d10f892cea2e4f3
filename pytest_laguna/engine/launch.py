# SPDX-License-Identifier: Apache-2.0
"""What an arm's process is told, and what is made of its end. Imports neither torch nor vLLM."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import ArmRecord, ArmRequest
from pytest_laguna.evidence.parity import PacketRecord, PacketRequest
from pytest_laguna.evidence.process_record import ProcessRecord
from pytest_laguna.evidence.schemas import Schema, read_model
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError

from . import arms, packets
from .tiny_pair import shape
from .tiny_pair.prompts import gate_2_prompts

TINY_PAIR_LAYERS = shape.LAYERS
"""Of the target, unless a pair of another depth is asked for."""
TINY_PAIR_VLLM = shape.VLLM
"""The version that a pair is written for, unless another is named."""
TINY_PAIR_HIDDEN = shape.HIDDEN
"""Hidden size of a pair of width 1."""
TINY_PAIR_PROMPTS = gate_2_prompts()
"""The texts that an arm may continue, by name."""

Record = TypeVar("Record", bound=Schema)


class Runner(Protocol):
    """Runs a program to its end under supervision; the session has the real one."""

    def __call__(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> ProcessRecord:
        """Run it, and record how it ended.

        Args:
            argv: the program, as an absolute path, and its arguments.
            variables: what decides its result; where things are is added, and nothing is inherited.
            directory: its own, where ``stdout.log`` and ``stderr.log`` are made.
            deadline_seconds: after which it is ended with everything below it.
        """


class ArmFailedError(NotProvenError):
    """An arm that left no record: how its process ended, and the line in which it said why."""


class ArmSurvivedError(AssertionError):
    """An arm of which something was left running: a broken contract, whatever it computed."""


class ArmUnprovenError(ArmSurvivedError, NotProvenError):
    """An arm of which something may have been left running: nobody saw the end of all of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class TinyPair:
    """The tiny target and draft that every lane's rehearsal runs on.

    Attributes:
        target: folder of the target model.
        draft: folder of the draft model.
        prompts: by name; docs/tiny-pair.md says how sure the target is after each, and what becomes of the drafts.
    """

    target: Path
    draft: Path
    prompts: dict[str, str]


def build_tiny_pair(  # noqa: PLR0913
    directory: Path,
    *,
    layers: int = TINY_PAIR_LAYERS,
    tensor_parallel_size: int = 1,
    width: int = 1,
    vllm: str = TINY_PAIR_VLLM,
    interpreter: Path,
    deadline_seconds: float,
    run: Runner,
) -> TinyPair:
    """Write the tiny pair into a new directory, in a process of its own because that needs torch.

    Args:
        directory: made here with mode 0700.
        layers: of the target, a multiple of four and at least eight; 12 make a quick pair.
        tensor_parallel_size: ranks that the pair is made for, 1, 2 or 4; each holds two KV heads.
        width: times the hidden size, 1, 4, 16 or 64; the function stays the same.
        vllm: the version that is to read it.
        interpreter: a Python that has torch and safetensors.
        deadline_seconds: after which the process is ended.
        run: runs it.

    Raises:
        FileExistsError: the directory exists.
        ArmFailedError: it could not be written, or its bytes are not the shipped ones.
        ArmSurvivedError: something of it was left running, or that may be.
    """
    directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    pair = directory / "pair"
    argv = [str(interpreter), "-P", "-m", "pytest_laguna.engine.tiny_pair", str(pair)]
    argv += ["--layers", str(layers), "--tensor-parallel-size", str(tensor_parallel_size)]
    argv += ["--width", str(width), "--vllm", vllm]
    _require_clean(run(argv, {}, directory, deadline_seconds), "tiny pair", directory)
    prompts = {name: str(text) for name, text in json.loads((pair / "prompts.json").read_text()).items()}
    return TinyPair(pair / "target", pair / "draft", prompts)


def run_arm(
    request: ArmRequest, directory: Path, *, interpreter: Path, deadline_seconds: float, run: Runner
) -> ArmRecord:
    """Run one arm and read its record.

    Args:
        request: what the arm is told.
        directory: made here with mode 0700; everything that the arm writes is below it.
        interpreter: the Python that has the lane's vLLM.
        deadline_seconds: after which the arm is ended with everything below it.
        run: runs it.

    Raises:
        FileExistsError: the directory exists; an arm's directory is never used twice.
        ArmFailedError: it exited with another status than 0, or was ended.
        ArmSurvivedError: something of it was left running, or that may be.
        UnusableEvidenceError: its record is not one, or answers another request.
    """
    directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    if arms.profile(request, directory):
        arms.profile_root(directory).mkdir(mode=files.PRIVATE_DIRECTORY)
    variables = arms.environment(request) | arms.profile(request, directory)
    variables |= arms.last_stacks(directory, time.monotonic() + deadline_seconds)
    program = _Program("pytest_laguna.engine.arm", f"arm {request.arm}", interpreter, variables, deadline_seconds)
    record = program.ask(request, ArmRecord, directory, run)
    _require_answer(record.request, request, directory)
    return record


def run_packet(
    request: PacketRequest, directory: Path, *, interpreter: Path, deadline_seconds: float, run: Runner
) -> PacketRecord:
    """Run one parity packet and read its record.

    Args:
        request: what the packet is told.
        directory: made here with mode 0700, as an arm's.
        interpreter: the Python that has the lane's vLLM.
        deadline_seconds: after which the packet is ended with everything below it.
        run: runs it, and shows it one card.

    Raises:
        FileExistsError: the directory exists; a packet's directory is never used twice.
        ArmFailedError: it exited with another status than 0, or was ended.
        ArmSurvivedError: something of it was left running, or that may be.
        UnusableEvidenceError: its record is not one, or answers another request.
    """
    directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    what, variables = f"packet {request.rank}", packets.environment(request)
    program = _Program("pytest_laguna.engine.parity", what, interpreter, variables, deadline_seconds)
    record = program.ask(request, PacketRecord, directory, run)
    _require_answer(record.request, request, directory)
    return record


@dataclasses.dataclass(frozen=True, slots=True)
class _Program:
    """A program of the engine that answers a request file with a record file.

    Attributes:
        module: the program.
        what: how an error calls it.
        interpreter: the Python that has the lane's vLLM.
        variables: what decides its result.
        deadline_seconds: after which it is ended.
    """

    module: str
    what: str
    interpreter: Path
    variables: Mapping[str, str]
    deadline_seconds: float

    def ask(self, request: Schema, record: type[Record], directory: Path, run: Runner) -> Record:
        """Run it in its directory and read what it wrote; see ``run_arm`` for what is raised."""
        request_path, record_path = directory / "request.json", directory / "record.json"
        files.write_new(request_path, files.canonical_json(request.canonical()))
        argv = [str(self.interpreter), "-P", "-m", self.module, str(request_path), str(record_path)]
        process = run(argv, self.variables, directory, self.deadline_seconds)
        _require_clean(process, self.what, directory)
        return read_model(record_path, record)


def _require_answer(answered: Schema, asked: Schema, directory: Path) -> None:
    if answered != asked:
        message = f"{directory / 'record.json'}: answers another request than {directory / 'request.json'}"
        raise UnusableEvidenceError(message)


def _require_clean(process: ProcessRecord, what: str, directory: Path) -> None:
    """Raise unless a process ended by itself with exit code 0 and left nothing behind."""
    if process.left_behind is not None or process.survivors:
        message = f"{what} in {directory}: {process}"
        raise ArmSurvivedError(message)
    if not process.proven_empty:
        message = f"{what} in {directory}: {process}"
        raise ArmUnprovenError(message)
    if not process.is_clean:
        message = f"{what} in {directory}: {process}: {_reason(files.read_tail(directory / 'stderr.log'))}"
        raise ArmFailedError(message)


def _reason(said: Sequence[str]) -> str:
    """The line in which the arm said why, or its last one: a process that dies by a signal says nothing."""
    why = (line for line in reversed(said) if line.startswith((arms.FAILED, packets.FAILED)))
    return next(why, said[-1] if said else "nothing on standard error")
