# SPDX-License-Identifier: Apache-2.0
"""The engine's side of a device gate: its interpreter, the pair that it loads, and the identity of both."""

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
"""How long the engine's interpreter may take to say what it is."""

RUN_ERRORS = (
    launch.ArmSurvivedError,
    EnvironmentRefusedError,
    IdentityError,
    NotProvenError,
    OSError,
    UnusableEvidenceError,
)
"""Why a run left no record: it is written down, and ends what it is a part of."""


@dataclasses.dataclass(frozen=True, slots=True)
class Models:
    """The pair that everything loads, and the text that the diagnostic's arms continue."""

    target: Path
    draft: Path
    prompt: str


@dataclasses.dataclass(frozen=True, slots=True)
class EngineRun:
    """What a device gate's session holds while its engine runs.

    Attributes:
        campaign: that runs.
        lane: where.
        held: the leased cards.
        start: starts processes on them.
        attempt: that it is for.
        directory: below the attempt's evidence, made by the caller.
        project: that the campaign's relative paths start from.
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
            NotProvenError: it has none.
        """
        settings = self.campaign.lane_settings(self.lane).engine
        if settings is None:
            message = f"campaign {self.campaign.name} has no table lanes.{self.lane}.engine; there is nothing to run"
            raise NotProvenError(message)
        return settings

    @property
    def interpreter(self) -> Path:
        """The engine's Python; raises as ``engine``."""
        named = self.engine.interpreter
        return Path(sys.executable) if named is None else self.project / named

    @contextlib.contextmanager
    def models(self, interpreter: Path) -> Iterator[Models]:
        """The pair, for as long as it is needed; what is generated is no evidence: what it is made from is hashed.

        It lies with what pytest keeps for a session and removes some sessions later, however this one ends.

        Raises:
            NotProvenError: the pair has no such prompt, or is not there; and what ``launch.build_tiny_pair`` raises.
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
                message = f"lanes.{self.lane}.engine.model: prompt {model.prompt!r}; expected one of the pair's"
                raise NotProvenError(f"{message}: {', '.join(sorted(pair.prompts))}")
            yield Models(pair.target, pair.draft, pair.prompts[model.prompt])
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def copy_configurations(self, pair: Models) -> None:
        """Keep what the models say of themselves."""
        for name, folder in ((reading.TARGET_CONFIG, pair.target), (reading.DRAFT_CONFIG, pair.draft)):
            content = files.read_bytes(folder / reading.CONFIG, limit=reading.CONFIG_LIMIT)
            files.write_new(self.directory / name, content)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Write down what ends the gate's engine before there is an analysis.

        Raises:
            NotProvenError: something that it needs is missing, or could not be made.
            UnusableEvidenceError: something that it needs cannot be used.
            ArmSurvivedError: something was left running.
        """
        try:
            yield
        except RUN_ERRORS as error:
            write_failure(self.directory, error)
            if isinstance(error, launch.ArmSurvivedError | NotProvenError | UnusableEvidenceError):
                raise
            raise NotProvenError(_reason(error)) from error

    def describe(self, interpreter: Path, frozen: ModelFiles) -> EngineIdentity:
        """Look at the engine, hash what it consists of, and ask of it what can be asked before anything runs.

        Raises:
            NotProvenError: a rule of ``BEFORE_ARMS`` finds something missing; no arm runs in vain.
            UnusableEvidenceError: one finds another engine than the frozen one.
            Exception: whatever ``identity.engine.describe_engine`` raises.
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
        """Refuse models that are not those that were frozen and reviewed, as soon as they are hashed; for gate 2.

        Raises:
            NotProvenError: a file of theirs is another one.
            UnusableEvidenceError: the record of what was frozen is not of its form.
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
        """The later look; None, with the reason written down, where it cannot be taken."""
        place, package = self.directory / "engine-after", self.campaign.candidate.package
        try:
            return engine.look_at_engine(interpreter, package, place, deadline_seconds=_LOOK_SECONDS, run=self.start)
        except RUN_ERRORS as error:
            write_failure(place, error)
            return None

    def identity(  # noqa: PLR0913 - each is a part of it
        self,
        before: EngineIdentity,
        after: EngineState | None,
        *,
        frozen: ModelFiles,
        models_around: Mapping[str, ArmModels],
        arm_directories: Mapping[str, str],
        binaries: Sequence[Binary],
    ) -> DiagnosticIdentity:
        """Everything about what ran, with the digests that the attempt is bound to."""
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
        """The last look at the cards; what is not there proves nothing."""
        with contextlib.suppress(NotProvenError):
            self.look_at_cards("after", self.held.cards, Path(leased_cards.IDLE_AFTER))

    def look_at_cards(self, phase: Literal["before", "after"], cards: Sequence[Card], path: Path) -> IdleRecord:
        """Take the campaign's looks at cards and record them; ``LeasedCards.take_idle`` says what is raised."""
        record = self.held.take_idle(phase, cards)
        self.write(path, record)
        return record

    def write(self, path: Path, record: Schema) -> None:
        """Write a record; a relative path starts from ``directory``."""
        files.write_new(self.directory / path, files.canonical_json(record.canonical()))


def _folder(project: Path, named: str) -> Path:
    """A model's folder.

    Raises:
        NotProvenError: it is not there.
    """
    folder = project / named
    if not (folder / reading.CONFIG).is_file():
        message = f"{folder}: holds no config.json; expected the campaign's model {named}: docs/xpu-lane.md fetches it"
        raise NotProvenError(message)
    return folder


def write_failure(directory: Path, error: Exception) -> None:
    """Say in a run's directory why it left no record."""
    directory.mkdir(mode=files.PRIVATE_DIRECTORY, exist_ok=True)
    files.write_new(directory / reading.FAILURE, files.canonical_json({"reason": _reason(error)}))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
