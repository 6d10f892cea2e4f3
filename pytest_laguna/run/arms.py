# SPDX-License-Identifier: Apache-2.0
"""Runs the arms and packets of an experiment, each once in a fresh process, between snapshots of their surroundings.

The first run without a record ends the experiment, and its reason takes the record's place. Nothing runs again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pytest_laguna.engine import launch
from pytest_laguna.evidence import files, reading, root
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRequest, MappedFile, Planted
from pytest_laguna.evidence.arms.engine_identity import ArmModels, Binary, ModelFiles
from pytest_laguna.evidence.arms.parity import PacketRequest
from pytest_laguna.evidence.arms.plan import ArmsPlan
from pytest_laguna.evidence.machine import leased_cards
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.experiments.experiment import Derived, Experiment, derive_from_files, read_attempted
from pytest_laguna.identity import binaries, models
from pytest_laguna.machine.cards import Card
from pytest_laguna.run.engine_run import RUN_ERRORS, EngineRun, Models, write_failure

Plan = TypeVar("Plan", bound=ArmsPlan)
Evidence = TypeVar("Evidence")
Analysis = TypeVar("Analysis", bound=Schema)


class _EndedError(Exception):
    """A run left no record; its directory holds the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Runs:
    """Runs arms and packets in the caller's order.

    Attributes:
        interpreter: the engine's Python.
        models_around: snapshots of the models around each started arm.
        binaries: mapped so far, with their digests.
    """

    engine: EngineRun
    interpreter: Path
    frozen: ModelFiles
    models_around: dict[str, ArmModels] = dataclasses.field(default_factory=dict)
    binaries: list[Binary] = dataclasses.field(default_factory=list)

    def arm(self, name: str, request: ArmRequest) -> None:
        """Run an arm on all cards; if it leaves no record, the block of ``observed`` ends."""
        with self._recorded(f"{reading.ARMS}/{name}") as directory:
            before = models.check_models(self.frozen)
            try:
                record = self.engine.start.arm(request, directory, interpreter=self.interpreter)
            finally:
                self.models_around[name] = ArmModels(before=before, after=models.check_models(self.frozen))
            self._map(file for report in record.ranks for file in report.mapped)
            self.engine.look_at_cards("after", self.engine.held.cards, directory / reading.IDLE)

    def packet(self, card: Card, request: PacketRequest) -> None:
        """Run a parity packet on one card; if it leaves no record, the block of ``observed`` ends."""
        with self._recorded(f"{reading.PACKETS}/{request.rank}") as directory:
            record = self.engine.start.on_card(card).packet(request, directory, interpreter=self.interpreter)
            self._map(record.mapped)
            self.engine.look_at_cards("after", [card], directory / reading.IDLE)

    def _map(self, mapped: Iterable[MappedFile]) -> None:
        self.binaries[:] = binaries.hash_mapped(list(mapped), self.binaries)

    @contextlib.contextmanager
    def _recorded(self, place: str) -> Iterator[Path]:
        directory = self.engine.directory / place
        try:
            yield directory
        except RUN_ERRORS as error:
            # An arm that left something running may still have a record: its process record carries the FAIL.
            if not (isinstance(error, launch.ArmSurvivedError) and (directory / reading.RECORD).exists()):
                write_failure(directory, error)
            raise _EndedError from error


def carry_out_arms(
    engine: EngineRun,
    experiment: Experiment[Plan, Evidence, Analysis],
    run_all: Callable[[Runs, Plan, Models], None],
    close: Callable[[Runs], None] = lambda _: None,
) -> Derived[Analysis]:
    """Plan an experiment from the cards and models, run its arms, judge them, and write everything down.

    The engine's directory must not exist yet. ``run_all`` runs the plan in its order, ``close`` then writes the files
    needed beside the runs. No result chooses what runs next: the first run without a record ends the experiment, and
    the analysis names what stays unproven.

    Raises:
        FileExistsError: the experiment has run before.
        NotProvenError: models, engine or cards are missing.
        UnusableEvidenceError: the engine is not the frozen one, or a model's configuration cannot be used.
    """
    engine.directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    (engine.directory / reading.ARMS).mkdir(mode=files.PRIVATE_DIRECTORY)
    with engine.explained():
        attempted, interpreter = read_attempted(engine.attempt.directory), engine.interpreter
        with engine.models(interpreter) as pair:
            engine.copy_configurations(pair)
            plan = experiment.plan(attempted, engine.directory)
            engine.write(Path(reading.PLAN), plan)
            with observed(engine, interpreter, pair) as runs:
                run_all(runs, plan, pair)
        engine.look_after()
        close(runs)
        derived = derive_from_files(experiment, attempted)
        files.write_new(engine.directory / root.ANALYSIS, derived.content)
        return derived


def asked_of_every_arm(plan: ArmsPlan, pair: Models, arm: Arm) -> dict[str, Any]:
    """Fields of an arm's request that all experiments share."""
    return {
        "arm": arm,
        "lane": plan.lane,
        "target": str(pair.target),
        "draft": str(pair.draft) if arm.speculates else None,
        "prompt": pair.prompt,
        "tokens": plan.completion_tokens,
        "tensor_parallel_size": plan.ranks,
        "collective_breaks": plan.collective_breaks,
        "planted": Planted.NONE,
    }


@contextlib.contextmanager
def observed(engine: EngineRun, interpreter: Path, pair: Models) -> Iterator[Runs]:
    """Yield runs after snapshots of engine, models and cards; at the end write the identity of it all.

    Raises:
        Exception: as ``EngineRun.require_frozen``, ``describe`` and ``look_at_cards``, before anything runs.
    """
    frozen = models.freeze_models([pair.target, pair.draft])
    engine.require_frozen(frozen)
    before = engine.describe(interpreter, frozen)
    engine.look_at_cards("before", engine.held.cards, Path(leased_cards.IDLE_BEFORE))
    runs = Runs(engine, interpreter, frozen)
    with contextlib.suppress(_EndedError):
        yield runs
    identity = engine.identity(
        before,
        engine.look_again(interpreter),
        frozen=frozen,
        models_around=runs.models_around,
        arm_directories={arm: str(engine.directory / reading.ARMS / arm) for arm in runs.models_around},
        binaries=runs.binaries,
    )
    engine.write(Path(reading.IDENTITY), identity)
