# SPDX-License-Identifier: Apache-2.0
"""The engine of a device gate: its interpreter, its models, and the identity of both."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pytest_laguna.analysis.arms.engine_identity import BEFORE_ARMS, IDENTITY_RULES
from pytest_laguna.analysis.arms.identity_case import IdentityCase
from pytest_laguna.analysis.machine.device_runtime import LANE as XPU
from pytest_laguna.analysis.review import Running, models_of_frozen, needs_review
from pytest_laguna.attempt.attempt import Attempt
from pytest_laguna.campaign import Campaign, GeneratedPair, LaneEngine
from pytest_laguna.engine import launch
from pytest_laguna.evidence import files, reading, review, root
from pytest_laguna.evidence.arms.engine_identity import (
    ArmModels,
    Binary,
    DiagnosticIdentity,
    EngineIdentity,
    EngineState,
    FrozenSources,
    ModelFiles,
)
from pytest_laguna.evidence.machine import leased_cards
from pytest_laguna.evidence.machine.device_runtime import DeviceRuntime
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.schemas import Schema, parse_model
from pytest_laguna.evidence.values import Lane
from pytest_laguna.identity import engine
from pytest_laguna.identity.device_runtime import kernel_closure
from pytest_laguna.identity.source import IdentityError
from pytest_laguna.machine.cards import Card
from pytest_laguna.machine.environment import EnvironmentRefusedError
from pytest_laguna.machine.xpu_host import host_runtime
from pytest_laguna.run.arm_runner import ArmRunner
from pytest_laguna.run.leasing import LeasedCards
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, raise_verdict

_LOOK_SECONDS = 120.0
"""Time limit for the engine's interpreter to describe itself."""

RUN_ERRORS = (
    launch.ArmSurvivedError,
    EnvironmentRefusedError,
    IdentityError,
    NotProvenError,
    OSError,
    UnusableEvidenceError,
)
"""Errors of a run without a record; each is written down and ends the experiment."""


@dataclasses.dataclass(frozen=True, slots=True)
class Models:
    """The model pair, and the prompt of the arms."""

    target: Path
    draft: Path
    prompt: str


@dataclasses.dataclass(frozen=True, slots=True)
class EngineRun:
    """Campaign, cards and attempt of a device gate while its engine runs.

    Attributes:
        start: starts processes on the leased cards.
        directory: of the experiment, below the attempt's evidence; made by the caller.
        project: base of the campaign's relative paths.
    """

    campaign: Campaign
    lane: Lane
    held: LeasedCards
    start: ArmRunner
    attempt: Attempt
    directory: Path
    project: Path

    @property
    def engine(self) -> LaneEngine:
        """The campaign's engine on this lane.

        Raises:
            NotProvenError: the lane has none.
        """
        settings = self.campaign.lane_settings(self.lane).engine
        if settings is None:
            message = f"campaign {self.campaign.name}: no table lanes.{self.lane}.engine; expected the engine to run"
            raise NotProvenError(message)
        return settings

    @property
    def interpreter(self) -> Path:
        """The engine's Python; errors as ``engine``."""
        named = self.engine.interpreter
        return Path(sys.executable) if named is None else self.project / named

    @contextlib.contextmanager
    def models(self, interpreter: Path) -> Iterator[Models]:
        """Yield the model pair; a generated one is no evidence, since its inputs are hashed.

        A generated pair lies in pytest's temporary directory, so a killed session leaves it to pytest's later cleaning.

        Raises:
            NotProvenError: the pair lacks the prompt, or a folder is missing; also as ``launch.build_tiny_pair``.
        """
        model = self.engine.model
        if not isinstance(model, GeneratedPair):
            yield Models(_folder(self.project, model.target), _folder(self.project, model.draft), model.prompt)
            return
        directory = Path(tempfile.mkdtemp(prefix="laguna-models-", dir=self.start.bytecode.parent))
        try:
            pair = self.start.tiny_pair(
                directory / "models",
                interpreter=interpreter,
                layers=model.layers,
                tensor_parallel_size=len(self.held.cards),
                width=model.width,
                vllm=self.campaign.lane_settings(self.lane).vllm,
            )
            if model.prompt not in pair.prompts:
                message = f"lanes.{self.lane}.engine.model: seen prompt {model.prompt!r}; expected one of the pair's"
                raise NotProvenError(f"{message}: {', '.join(sorted(pair.prompts))}")
            yield Models(pair.target, pair.draft, pair.prompts[model.prompt])
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def copy_configurations(self, pair: Models) -> None:
        """Keep the models' configurations."""
        for name, folder in ((reading.TARGET_CONFIG, pair.target), (reading.DRAFT_CONFIG, pair.draft)):
            content = files.read_bytes(folder / reading.CONFIG, limit=reading.CONFIG_LIMIT)
            files.write_new(self.directory / name, content)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Write down an error that ends the experiment before its analysis.

        Raises:
            NotProvenError: an input is missing or could not be made.
            UnusableEvidenceError: an input cannot be used.
            ArmSurvivedError: a process was left running.
        """
        try:
            yield
        except RUN_ERRORS as error:
            write_failure(self.directory, error)
            if isinstance(error, launch.ArmSurvivedError | NotProvenError | UnusableEvidenceError):
                raise
            raise NotProvenError(_reason(error)) from error

    def describe(self, interpreter: Path, frozen: ModelFiles) -> EngineIdentity:
        """Describe the engine, hash its files, and apply the rules that need no run.

        Raises:
            NotProvenError: a rule of ``BEFORE_ARMS`` finds something missing, so that no arm runs in vain.
            UnusableEvidenceError: a rule finds another engine than the frozen one.
            Exception: as ``identity.engine.describe_engine``.
        """
        place, package = self.directory / "engine-before", self.campaign.candidate.package
        found = engine.describe_engine(interpreter, package, place, deadline_seconds=_LOOK_SECONDS, run=self.start)
        if self.lane == XPU:
            runtime = DeviceRuntime(host=host_runtime(), closure=kernel_closure(found.state))
            found = found.model_copy(update={"runtime": runtime})
        identity = self.identity(found, None, frozen=frozen, models_around={}, arm_directories={}, binaries=[])
        case = IdentityCase(identity, arms={}, packets={}, validator=self.campaign.candidate.validator)
        for rule in BEFORE_ARMS:
            finding = IDENTITY_RULES[rule](case)
            if finding is not None and finding[0] is not None:
                raise_verdict(finding[0], f"before any arm: {rule}: {finding[1]}")
        return found

    def require_frozen(self, frozen: ModelFiles) -> None:
        """Refuse models other than the frozen and reviewed ones, as soon as they are hashed; for gate 2.

        Raises:
            NotProvenError: a model file differs.
            UnusableEvidenceError: the record of freezing is malformed.
        """
        named = self.campaign.folders(self.lane)
        if not named or not needs_review(2, self.lane):
            return
        place = self.attempt.directory / root.EVIDENCE / review.DIRECTORY
        finding = models_of_frozen(
            review.read_reviewed(place / review.FROZEN, place / review.REVIEW),
            Running(self.attempt.identity, frozen.named(named)),
        )
        if finding is not None:
            raise_verdict(finding[0], f"before any arm: models-of-frozen: {finding[1]}")

    def look_again(self, interpreter: Path) -> EngineState | None:
        """Take the engine's snapshot after the runs; on failure write the reason and return None."""
        place, package = self.directory / "engine-after", self.campaign.candidate.package
        try:
            return engine.look_at_engine(interpreter, package, place, deadline_seconds=_LOOK_SECONDS, run=self.start)
        except RUN_ERRORS as error:
            write_failure(place, error)
            return None

    def identity(  # noqa: PLR0913 - each is a part of the identity
        self,
        before: EngineIdentity,
        after: EngineState | None,
        *,
        frozen: ModelFiles,
        models_around: Mapping[str, ArmModels],
        arm_directories: Mapping[str, str],
        binaries: Sequence[Binary],
    ) -> DiagnosticIdentity:
        """Identity of everything that ran, with the digests of the attempt."""
        record = files.read_canonical_json(self.attempt.directory / root.IDENTITY)
        sources = {name: record[name] for name in FrozenSources.model_fields} if isinstance(record, dict) else None
        python = record.get("python") if isinstance(record, dict) else None
        return DiagnosticIdentity(
            attempt=self.attempt.identity,
            frozen=parse_model(sources, FrozenSources, root.IDENTITY),
            candidate=self.campaign.candidate.package,
            python=str(python["executable"]) if isinstance(python, dict) else "",
            engine=before,
            engine_after=after,
            models=frozen,
            models_around=dict(models_around),
            arm_directories=dict(arm_directories),
            binaries=list(binaries),
        )

    def look_after(self) -> None:
        """Take the cards' snapshots after all runs; without them the record is missing and proves nothing."""
        with contextlib.suppress(NotProvenError):
            self.look_at_cards("after", self.held.cards, Path(leased_cards.IDLE_AFTER))

    def look_at_cards(self, phase: Literal["before", "after"], cards: Sequence[Card], path: Path) -> IdleRecord:
        """Take the campaign's snapshots of cards and record them; errors as ``LeasedCards.take_idle``."""
        record = self.held.take_idle(phase, cards)
        self.write(path, record)
        return record

    def write(self, path: Path, record: Schema) -> None:
        """Write a record; a relative path starts from ``directory``."""
        files.write_new(self.directory / path, files.canonical_json(record.canonical()))


def _folder(project: Path, named: str) -> Path:
    """Return a model's folder.

    Raises:
        NotProvenError: it holds no ``config.json``.
    """
    folder = project / named
    if not (folder / reading.CONFIG).is_file():
        message = f"{folder}: no config.json; expected the campaign's model {named}; fetch it as in docs/xpu-lane.md"
        raise NotProvenError(message)
    return folder


def write_failure(directory: Path, error: Exception) -> None:
    """Write the reason for a missing record into the run's directory."""
    directory.mkdir(mode=files.PRIVATE_DIRECTORY, exist_ok=True)
    files.write_new(directory / reading.FAILURE, files.canonical_json({"reason": _reason(error)}))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
