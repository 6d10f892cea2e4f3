# SPDX-License-Identifier: Apache-2.0
"""What a diagnostic runs, one after the other, each once in a fresh process, and what is observed around it.

Nothing is run again: the first run that leaves no record ends all, with the reason in its place.
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
    """A run left no record; the reason is written in its place."""


@dataclasses.dataclass(frozen=True, slots=True)
class Runs:
    """What runs, in the order in which it is asked for.

    Attributes:
        engine: what the session holds.
        interpreter: the engine's Python.
        frozen: the models' files.
        models_around: the looks at them around each arm that was started.
        binaries: what has been mapped so far.
    """

    engine: EngineRun
    interpreter: Path
    frozen: ModelFiles
    models_around: dict[str, ArmModels] = dataclasses.field(default_factory=dict)
    binaries: list[Binary] = dataclasses.field(default_factory=list)

    def arm(self, name: str, request: ArmRequest) -> None:
        """Run an arm on all cards; where it leaves no record, the block of ``observed`` ends here."""
        with self._recorded(f"{reading.ARMS}/{name}") as directory:
            before = models.check_models(self.frozen)
            try:
                record = self.engine.start.arm(request, directory, interpreter=self.interpreter)
            finally:
                self.models_around[name] = ArmModels(before=before, after=models.check_models(self.frozen))
            self._map(file for report in record.ranks for file in report.mapped)
            self.engine.look_at_cards("after", self.engine.held.cards, directory / reading.IDLE)

    def packet(self, card: Card, request: PacketRequest) -> None:
        """Run a parity packet on one card; likewise."""
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
            # What left something running may have a record, which stands; its process speaks against it.
            if not (isinstance(error, launch.ArmSurvivedError) and (directory / reading.RECORD).exists()):
                write_failure(directory, error)
            raise _EndedError from error


def carry_out_arms(
    engine: EngineRun,
    experiment: Experiment[Plan, Evidence, Analysis],
    run_all: Callable[[Runs, Plan, Models], None],
    close: Callable[[Runs], None] = lambda _: None,
) -> Derived[Analysis]:
    """Plan an experiment from the cards and models at hand, run its arms, judge them, and write everything down.

    Nothing is run again and nothing is chosen by a result: the first run that leaves no record ends the experiment,
    and the analysis says what that leaves unproven.

    Args:
        engine: what the session holds; its directory does not exist yet.
        experiment: the experiment.
        run_all: runs what the plan asks for, in its order.
        close: writes what must stand beside the runs before they are judged.

    Raises:
        FileExistsError: it has been carried out before.
        NotProvenError: it could not begin: models, engine or cards are missing.
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
    """The fields of an arm's request that are the same in every campaign."""
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
    """Runs whose engine and models are looked at before and after, and whose cards are looked at before.

    Args:
        engine: what the session holds.
        interpreter: the engine's Python.
        pair: the models.

    Raises:
        Exception: whatever ``EngineRun.require_frozen``, ``describe`` and ``look_at_cards`` raise, before anything ran.
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
