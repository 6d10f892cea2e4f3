# SPDX-License-Identifier: Apache-2.0
"""Carries out the exact diagnostic: packets and arms in the frozen order, each once, with the evidence of all of it.

Nothing is run again and nothing is chosen by a result: the first run that leaves no record ends it, and the analysis
says what that leaves unproven.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_laguna.analysis.diagnostic import diagnose
from pytest_laguna.engine import launch
from pytest_laguna.engine_run import RUN_ERRORS, EngineRun, Models, write_failure
from pytest_laguna.evidence import diagnostic_reader as reader
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import Arm, ArmRequest, MappedFile, Planted
from pytest_laguna.evidence.diagnostic import Diagnosis, DiagnosticPlan
from pytest_laguna.evidence.diagnostic_evidence import present
from pytest_laguna.evidence.engine_identity import ArmModels, Binary, ModelFiles
from pytest_laguna.evidence.parity import PacketRequest
from pytest_laguna.identity import binaries, models
from pytest_laguna.machine.cards import Card
from pytest_laguna.planning import plan_diagnostic
from pytest_laguna.verdict import NotProvenError


class _EndedError(Exception):
    """A run left no record, and said why."""


def carry_out(engine: EngineRun, project: Path) -> Diagnosis:
    """Run everything and judge it.

    Args:
        engine: what the session holds; its directory does not exist yet.
        project: that the campaign's relative paths start from.

    Raises:
        FileExistsError: it has been carried out before.
        NotProvenError: it could not begin: the models or the engine are not there, or the cards cannot be seen.
        UnusableEvidenceError: the engine is not the frozen one, or what the models say of themselves cannot be used.
    """
    engine.directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    for name in (reader.PACKETS, reader.ARMS):
        (engine.directory / name).mkdir(mode=files.PRIVATE_DIRECTORY)
    with engine.explained():
        interpreter = engine.interpreter(project)
        with engine.models(interpreter) as pair:
            plan = _run_all(engine, interpreter, pair)
        with contextlib.suppress(NotProvenError):  # what is not there proves nothing
            engine.look_at_cards("after", engine.held.cards, Path("idle-after.json"))
        diagnosis = diagnose(plan, reader.read_diagnostic(engine.directory))
        engine.write(Path("analysis.json"), diagnosis)
        return diagnosis


def _run_all(engine: EngineRun, interpreter: Path, pair: Models) -> DiagnosticPlan:
    plan = _plan(engine, pair)
    frozen = models.freeze_models([pair.target, pair.draft])
    before = engine.describe(interpreter, frozen)
    engine.look_at_cards("before", engine.held.cards, Path("idle-before.json"))
    runs = _Runs(engine, interpreter, plan, pair, frozen)
    runs.carry_out()
    identity = engine.identity(
        before,
        engine.look_again(interpreter),
        frozen=frozen,
        models_around=runs.models_around,
        arm_directories={arm: str(engine.directory / reader.ARMS / arm) for arm in runs.models_around},
        binaries=runs.binaries,
    )
    engine.write(Path("identity.json"), identity)
    return plan


def _plan(engine: EngineRun, pair: Models) -> DiagnosticPlan:
    engine.copy_configurations(pair)
    config = present(reader.read_diagnostic(engine.directory).target_config)
    plan = plan_diagnostic(engine.campaign, engine.lane, [card.identity for card in engine.held.cards], config)
    engine.write(Path("plan.json"), plan)
    return plan


@dataclasses.dataclass(frozen=True, slots=True)
class _Runs:
    """What runs, each in a fresh supervised process.

    Attributes:
        engine: what the session holds.
        interpreter: the engine's Python.
        plan: what is expected.
        pair: the models.
        frozen: their files.
        models_around: the looks at them around each arm.
        binaries: what has been mapped so far.
    """

    engine: EngineRun
    interpreter: Path
    plan: DiagnosticPlan
    pair: Models
    frozen: ModelFiles
    models_around: dict[str, ArmModels] = dataclasses.field(default_factory=dict)
    binaries: list[Binary] = dataclasses.field(default_factory=list)

    def carry_out(self) -> None:
        """Every packet and then every arm, up to the first that leaves no record."""
        with contextlib.suppress(_EndedError):
            for position, card in enumerate(self.engine.held.cards):
                with _recorded(self.engine.directory / reader.PACKETS / str(position)) as directory:
                    self._packet(position, card, directory)
            for arm in Arm:
                with _recorded(self.engine.directory / reader.ARMS / arm) as directory:
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
        record = self.engine.start.on_card(card).packet(request, directory, interpreter=self.interpreter)
        self._hash(record.mapped)
        self.engine.look_at_cards("after", [card], directory / reader.IDLE)

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
            null=self.plan.null,
        )
        before = models.check_models(self.frozen)
        try:
            record = self.engine.start.arm(request, directory, interpreter=self.interpreter)
        finally:
            self.models_around[arm] = ArmModels(before=before, after=models.check_models(self.frozen))
        self._hash([file for report in record.ranks for file in report.mapped])
        self.engine.look_at_cards("after", self.engine.held.cards, directory / reader.IDLE)

    def _hash(self, mapped: Sequence[MappedFile]) -> None:
        self.binaries[:] = binaries.hash_mapped(mapped, self.binaries)


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
            write_failure(directory, error)
        raise _EndedError from error
