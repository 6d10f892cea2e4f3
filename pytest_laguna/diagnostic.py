# SPDX-License-Identifier: Apache-2.0
"""Carries out the exact diagnostic: packets and arms in the frozen order, each once, with the evidence of all of it.

Nothing is run again and nothing is chosen by a result: the first run that leaves no record ends it, and the analysis
says what that leaves unproven.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pytest_laguna.analysis.diagnostic import diagnose
from pytest_laguna.arm_runner import ArmRunner
from pytest_laguna.attempt import Attempt
from pytest_laguna.campaign import Campaign, Engine, GeneratedPair, Lane
from pytest_laguna.engine import launch
from pytest_laguna.evidence import diagnostic_reader as reader
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.arm_record import Arm, ArmRequest, MappedFile, Planted
from pytest_laguna.evidence.diagnostic import DIRECTORY, Diagnosis, DiagnosticPlan
from pytest_laguna.evidence.diagnostic_evidence import present
from pytest_laguna.evidence.engine_identity import (
    ArmModels,
    Binary,
    DiagnosticIdentity,
    EngineIdentity,
    EngineState,
    FrozenSources,
    ModelFiles,
)
from pytest_laguna.evidence.parity import PacketRequest
from pytest_laguna.evidence.schemas import Schema, parse_model
from pytest_laguna.identity import binaries, engine, models
from pytest_laguna.identity.source import IdentityError
from pytest_laguna.leasing import LeasedCards
from pytest_laguna.machine.cards import Card
from pytest_laguna.machine.process import ProcessError
from pytest_laguna.planning import plan_diagnostic
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError

_CONFIG_LIMIT = 1024 * 1024
_LOOK_SECONDS = 120.0
"""How long the engine's interpreter may take to say what it is."""

RUN_ERRORS = (
    launch.ArmFailedError,
    launch.ArmSurvivedError,
    IdentityError,
    NotProvenError,
    OSError,
    ProcessError,
    UnusableEvidenceError,
)
"""Why a run left no record: it is written down, and ends the diagnostic."""


class _EndedError(Exception):
    """A run left no record, and said why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Models:
    """The pair that all runs load, and the text that the arms continue."""

    target: Path
    draft: Path
    prompt: str


@dataclasses.dataclass(frozen=True, slots=True)
class Runs:
    """What runs, each in a fresh supervised process.

    Attributes:
        directory: the diagnostic's.
        held: the leased cards.
        start: starts processes on them.
        interpreter: the engine's Python.
        plan: what is expected.
        pair: the models.
        frozen: their files.
        models_around: the looks at them around each arm.
        binaries: what has been mapped so far.
    """

    directory: Path
    held: LeasedCards
    start: ArmRunner
    interpreter: Path
    plan: DiagnosticPlan
    pair: Models
    frozen: ModelFiles
    models_around: dict[str, ArmModels] = dataclasses.field(default_factory=dict)
    binaries: list[Binary] = dataclasses.field(default_factory=list)

    def carry_out(self) -> None:
        """Every packet and then every arm, up to the first that leaves no record."""
        with contextlib.suppress(_EndedError):
            for position, card in enumerate(self.held.cards):
                with _recorded(self.directory / reader.PACKETS / str(position)) as directory:
                    self._packet(position, card, directory)
            for arm in Arm:
                with _recorded(self.directory / reader.ARMS / arm) as directory:
                    self._arm(arm, directory)

    def _packet(self, position: int, card: Card, directory: Path) -> None:
        request = PacketRequest(
            lane=self.plan.lane,
            rank=position,
            target=str(self.pair.target),
            draft=str(self.pair.draft),
            queries=self.plan.queries,
            planted=Planted.NONE,
        )
        record = self.start.on_card(card).packet(request, directory, interpreter=self.interpreter)
        self._hash(record.mapped)
        look_at_cards(self.held, "after", [card], directory / reader.IDLE)

    def _arm(self, arm: Arm, directory: Path) -> None:
        request = ArmRequest(
            arm=arm,
            lane=self.plan.lane,
            target=str(self.pair.target),
            draft=str(self.pair.draft) if arm.speculates else None,
            prompt=self.pair.prompt,
            tokens=self.plan.completion_tokens,
            tensor_parallel_size=self.plan.ranks,
            collective_breaks=self.plan.collective_breaks,
            planted=Planted.NONE,
            profile_samples=self.plan.samples if arm.graphs else 0,
        )
        before = models.check_models(self.frozen)
        try:
            record = self.start.arm(request, directory, interpreter=self.interpreter)
        finally:
            self.models_around[arm] = ArmModels(before=before, after=models.check_models(self.frozen))
        self._hash([file for report in record.ranks for file in report.mapped])
        look_at_cards(self.held, "after", self.held.cards, directory / reader.IDLE)

    def _hash(self, mapped: Sequence[MappedFile]) -> None:
        self.binaries[:] = binaries.hash_mapped(mapped, self.binaries)


class Diagnostic:
    """One diagnostic of one attempt."""

    def __init__(self, campaign: Campaign, lane: Lane, held: LeasedCards, start: ArmRunner, attempt: Attempt) -> None:
        """Take what the session holds.

        Raises:
            NotProvenError: the campaign has no engine on this lane.
        """
        settings = campaign.lane_settings(lane).engine
        if settings is None:
            raise NotProvenError(f"campaign {campaign.name} has no table lanes.{lane}.engine; there is nothing to run")
        self._campaign = campaign
        self._lane: Lane = lane
        self._engine: Engine = settings
        self._held = held
        self._start = start
        self._attempt = attempt
        self._directory = attempt.directory / root.EVIDENCE / DIRECTORY

    def carry_out(self, project: Path) -> Diagnosis:
        """Run everything and judge it.

        Args:
            project: that the campaign's relative paths start from.

        Raises:
            FileExistsError: it has been carried out before.
            NotProvenError: it could not begin: the models or the engine are not there, or the cards cannot be seen.
            UnusableEvidenceError: what the models say of themselves cannot be used.
        """
        self._directory.mkdir(mode=files.PRIVATE_DIRECTORY)
        for name in (reader.PACKETS, reader.ARMS):
            (self._directory / name).mkdir(mode=files.PRIVATE_DIRECTORY)
        named = self._engine.interpreter
        interpreter = Path(sys.executable) if named is None else project / named
        try:
            with self._models(interpreter) as pair:
                plan = self._run_all(interpreter, pair)
        except IdentityError as error:
            raise NotProvenError(str(error)) from error
        with contextlib.suppress(NotProvenError):  # what is not there proves nothing
            look_at_cards(self._held, "after", self._held.cards, self._directory / "idle-after.json")
        diagnosis = diagnose(plan, reader.read_diagnostic(self._directory))
        self._write("analysis.json", diagnosis)
        return diagnosis

    def _run_all(self, interpreter: Path, pair: Models) -> DiagnosticPlan:
        plan = self._plan(pair)
        frozen = models.freeze_models([pair.target, pair.draft])
        before = self._describe_engine(interpreter)
        look_at_cards(self._held, "before", self._held.cards, self._directory / "idle-before.json")
        runs = Runs(self._directory, self._held, self._start, interpreter, plan, pair, frozen)
        runs.carry_out()
        after = self._look_at_engine(interpreter)
        self._write("identity.json", self._identity(before, after, runs))
        return plan

    @contextlib.contextmanager
    def _models(self, interpreter: Path) -> Iterator[Models]:
        model = self._engine.model
        if not isinstance(model, GeneratedPair):
            yield Models(Path(model.target), Path(model.draft), model.prompt)
            return
        # No evidence: it is large, and what it is made from is hashed.
        directory = Path(tempfile.mkdtemp(prefix="laguna-models-"))
        try:
            pair = self._start.tiny_pair(
                directory / "models",
                interpreter=interpreter,
                layers=model.layers,
                tensor_parallel_size=len(self._held.cards),
            )
            yield Models(pair.target, pair.draft, pair.prompts[model.prompt])
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _plan(self, pair: Models) -> DiagnosticPlan:
        for name, folder in (("target-config.json", pair.target), ("draft-config.json", pair.draft)):
            content = files.read_bytes(folder / "config.json", limit=_CONFIG_LIMIT)
            files.write_new(self._directory / name, content)
        config = present(reader.read_diagnostic(self._directory).target_config)
        cards = [card.identity for card in self._held.cards]
        plan = plan_diagnostic(self._campaign, self._lane, cards, config)
        self._write("plan.json", plan)
        return plan

    def _describe_engine(self, interpreter: Path) -> EngineIdentity:
        place, package = self._directory / "engine-before", self._campaign.candidate.package
        return engine.describe_engine(interpreter, package, place, deadline_seconds=_LOOK_SECONDS, run=self._start)

    def _look_at_engine(self, interpreter: Path) -> EngineState | None:
        place, package = self._directory / "engine-after", self._campaign.candidate.package
        try:
            return engine.look_at_engine(interpreter, package, place, deadline_seconds=_LOOK_SECONDS, run=self._start)
        except RUN_ERRORS as error:
            _write_failure(place, error)
            return None

    def _identity(self, before: EngineIdentity, after: EngineState | None, runs: Runs) -> DiagnosticIdentity:
        record = files.read_canonical_json(self._attempt.directory / root.IDENTITY)
        sources = {name: record[name] for name in FrozenSources.model_fields} if isinstance(record, dict) else None
        return DiagnosticIdentity(
            attempt=self._attempt.identity,
            frozen=parse_model(sources, FrozenSources, root.IDENTITY),
            candidate=self._campaign.candidate.package,
            engine=before,
            engine_after=after,
            models=runs.frozen,
            models_around=runs.models_around,
            arm_directories={arm: str(self._directory / reader.ARMS / arm) for arm in runs.models_around},
            binaries=runs.binaries,
        )

    def _write(self, name: str, record: Schema) -> None:
        files.write_new(self._directory / name, files.canonical_json(record.canonical()))


def look_at_cards(held: LeasedCards, phase: Literal["before", "after"], cards: Sequence[Card], path: Path) -> None:
    """Take the campaign's looks at cards and record them; ``LeasedCards.take_idle`` says what is raised."""
    files.write_new(path, files.canonical_json(held.take_idle(phase, cards).canonical()))


@contextlib.contextmanager
def _recorded(directory: Path) -> Iterator[Path]:
    """Where a run writes; when it leaves no record, the reason is written in its place.

    Raises:
        _EndedError: it left none.
    """
    try:
        yield directory
    except RUN_ERRORS as error:
        # What left something running may have a record, which stands; its process speaks against it.
        if not (isinstance(error, launch.ArmSurvivedError) and (directory / reader.RECORD).exists()):
            _write_failure(directory, error)
        raise _EndedError from error


def _write_failure(directory: Path, error: Exception) -> None:
    directory.mkdir(mode=files.PRIVATE_DIRECTORY, exist_ok=True)
    reason = " ".join(str(error).split()) or type(error).__name__
    files.write_new(directory / reader.FAILURE, files.canonical_json({"reason": reason}))
