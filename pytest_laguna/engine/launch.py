# SPDX-License-Identifier: Apache-2.0
"""Starts the engine's programs, and judges how their processes ended; imports neither torch nor vLLM."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import ArmRecord, ArmRequest
from pytest_laguna.evidence.arms.parity import PacketRecord, PacketRequest
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.schemas import Schema, read_model
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError

from . import packets
from .tiny_pair import shape
from .tiny_pair.prompts import gate_2_prompts

TINY_PAIR_LAYERS = shape.LAYERS
"""Default depth of the target."""
TINY_PAIR_VLLM = shape.VLLM
"""Default version of vLLM for a pair."""
TINY_PAIR_HIDDEN = shape.HIDDEN
"""Hidden size of a pair of width 1."""
TINY_PAIR_PROMPTS = gate_2_prompts()
"""Texts for an arm to continue, by name."""

Record = TypeVar("Record", bound=Schema)


class Runner(Protocol):
    """Runs a program to its end under supervision; the session has the real one."""

    def __call__(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> ProcessRecord:
        """Run the program and record its end.

        Args:
            argv: absolute path of the program, and its arguments.
            variables: its environment. Private directories are added, and nothing is inherited.
            directory: gets ``stdout.log`` and ``stderr.log``.
            deadline_seconds: time until it is ended with all its descendants.
        """


class ArmFailedError(NotProvenError):
    """An arm left no record; says how its process ended, and the reason it gave."""


class ArmSurvivedError(AssertionError):
    """An arm left a process running: a broken contract, whatever it computed."""


class ArmUnprovenError(ArmSurvivedError, NotProvenError):
    """An arm may have left a process running: nobody saw all of its processes end."""


@dataclasses.dataclass(frozen=True, slots=True)
class TinyPair:
    """The tiny target and draft of every lane's rehearsal.

    Attributes:
        target: folder of the target model.
        draft: folder of the draft model.
        prompts: by name; docs/tiny-pair.md has the target's margins and the accepted drafts for each.
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
    """Write the tiny pair into a new directory, in a separate process because that needs torch.

    Args:
        directory: created here with mode 0700.
        layers: of the target, a multiple of four and at least eight; 12 make a quick pair.
        tensor_parallel_size: ranks of the pair, 1, 2 or 4; each holds two KV heads.
        width: factor on the hidden size, 1, 4, 16 or 64; the function stays the same.
        vllm: version to read it.
        interpreter: a Python with torch and safetensors.
        deadline_seconds: limit of the process.
        run: runs it.

    Raises:
        FileExistsError: the directory exists.
        ArmFailedError: it could not be written, or its bytes are not the shipped ones.
        ArmSurvivedError: a process was, or may have been, left running.
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
        request: content of the arm's request file.
        directory: created here with mode 0700; gets all files of the arm.
        interpreter: the Python with the lane's vLLM.
        deadline_seconds: time until the arm is ended with all its descendants.
        run: runs it.

    Raises:
        FileExistsError: the directory exists; no two arms share one.
        ArmFailedError: the arm exited with another status than 0, or was ended.
        ArmSurvivedError: a process was, or may have been, left running.
        UnusableEvidenceError: the record is malformed, or answers another request.
    """
    directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    if arm_settings.profile(request, directory):
        arm_settings.profile_root(directory).mkdir(mode=files.PRIVATE_DIRECTORY)
    variables = arm_settings.environment(request) | arm_settings.profile(request, directory)
    variables |= arm_settings.last_stacks(directory, time.monotonic() + deadline_seconds)
    program = _Program("pytest_laguna.engine.arm", f"arm {request.arm}", interpreter, variables, deadline_seconds)
    record = program.ask(request, ArmRecord, directory, run)
    _require_answer(record.request, request, directory)
    return record


def run_packet(
    request: PacketRequest, directory: Path, *, interpreter: Path, deadline_seconds: float, run: Runner
) -> PacketRecord:
    """Run one parity packet and read its record.

    Args:
        request: content of the packet's request file.
        directory: created here with mode 0700, as an arm's.
        interpreter: the Python with the lane's vLLM.
        deadline_seconds: time until the packet is ended with all its descendants.
        run: runs it, and shows it one card.

    Raises:
        FileExistsError, ArmFailedError, ArmSurvivedError, UnusableEvidenceError: as ``run_arm``.
    """
    directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    what, variables = f"packet {request.rank}", packets.environment(request)
    program = _Program("pytest_laguna.engine.parity", what, interpreter, variables, deadline_seconds)
    record = program.ask(request, PacketRecord, directory, run)
    _require_answer(record.request, request, directory)
    return record


@dataclasses.dataclass(frozen=True, slots=True)
class _Program:
    """A program of the engine; answers a request file with a record file.

    Attributes:
        module: name of the program.
        what: subject of error messages.
        interpreter: the Python with the lane's vLLM.
        variables: its environment.
        deadline_seconds: limit of its process.
    """

    module: str
    what: str
    interpreter: Path
    variables: Mapping[str, str]
    deadline_seconds: float

    def ask(self, request: Schema, record: type[Record], directory: Path, run: Runner) -> Record:
        """Run it in its directory and read its record; raises what ``run_arm`` raises."""
        request_path, record_path = directory / "request.json", directory / "record.json"
        files.write_new(request_path, files.canonical_json(request.canonical()))
        argv = [str(self.interpreter), "-P", "-m", self.module, str(request_path), str(record_path)]
        process = run(argv, self.variables, directory, self.deadline_seconds)
        _require_clean(process, self.what, directory)
        return read_model(record_path, record)


def _require_answer(answered: Schema, asked: Schema, directory: Path) -> None:
    if answered != asked:
        message = f"{directory / 'record.json'}: seen an answer to another request; expected one to request.json"
        raise UnusableEvidenceError(message)


def _require_clean(process: ProcessRecord, what: str, directory: Path) -> None:
    """Raise unless a process ended by itself with exit code 0 and left nothing behind."""
    if process.left_behind is not None or process.survivors:
        raise ArmSurvivedError(f"{what} in {directory}: {process}")
    if not process.proven_empty:
        raise ArmUnprovenError(f"{what} in {directory}: {process}")
    if not process.is_clean:
        raise ArmFailedError(f"{what} in {directory}: {process}: {_reason(files.read_tail(directory / 'stderr.log'))}")


def _reason(said: Sequence[str]) -> str:
    """The arm's own line about its failure, or its last one: a process killed by a signal gives no reason."""
    why = (line for line in reversed(said) if line.startswith((arm_settings.FAILED, packets.FAILED)))
    return next(why, said[-1] if said else "nothing on standard error")
