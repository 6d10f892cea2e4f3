# SPDX-License-Identifier: Apache-2.0
"""Carries out the event profile campaign: its arms in the frozen order, each once, with the evidence of all of it.

Nothing is run again and nothing is chosen by a result: the first arm that leaves no record ends it, and the analysis
says what that leaves unproven.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from pytest_laguna.analysis.event_diagnosis import analyse_events
from pytest_laguna.engine import launch
from pytest_laguna.engine_run import RUN_ERRORS, EngineRun, Models, write_failure
from pytest_laguna.evidence import diagnostic_reader as reader
from pytest_laguna.evidence import event_reader, files
from pytest_laguna.evidence.arm_record import ArmRequest, Planted
from pytest_laguna.evidence.diagnostic_evidence import present
from pytest_laguna.evidence.engine_identity import ArmModels, Binary, ModelFiles
from pytest_laguna.evidence.event_analysis import (
    CONFIGURATION,
    FITNESS,
    SPARSE,
    TEACHER,
    EventAnalysis,
    EventClosure,
    EventPlan,
)
from pytest_laguna.identity import binaries, models
from pytest_laguna.planning import plan_events
from pytest_laguna.verdict import NotProvenError


def carry_out(engine: EngineRun, project: Path) -> EventAnalysis:
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
    (engine.directory / reader.ARMS).mkdir(mode=files.PRIVATE_DIRECTORY)
    with engine.explained():
        interpreter = engine.interpreter(project)
        with engine.models(interpreter) as pair:
            plan, generations = _run_all(engine, interpreter, pair)
        with contextlib.suppress(NotProvenError):  # what is not there proves nothing
            engine.look_at_cards("after", engine.held.cards, Path("idle-after.json"))
        bound = event_reader.file_digests(engine.directory)
        engine.write(Path(event_reader.CLOSURE), EventClosure(model_generations=generations, files=bound))
        analysis = analyse_events(plan, event_reader.read_events(engine.directory, plan.arms))
        engine.write(Path("analysis.json"), analysis)
        return analysis


def _run_all(engine: EngineRun, interpreter: Path, pair: Models) -> tuple[EventPlan, int]:
    """The plan, and how many arms were started."""
    engine.copy_configurations(pair)
    config = present(reader.read_configuration(engine.directory, "target-config.json"))
    plan = plan_events(engine.campaign, engine.lane, [card.identity for card in engine.held.cards], config)
    engine.write(Path(event_reader.PLAN), plan)
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
    return plan, len(runs.models_around)


@dataclasses.dataclass(frozen=True, slots=True)
class _Runs:
    """What runs, each in a fresh supervised process.

    Attributes:
        engine: what the session holds.
        interpreter: the engine's Python.
        plan: what is expected.
        pair: the models.
        frozen: their files.
        models_around: the looks at them around each arm that was started.
        binaries: what has been mapped so far.
    """

    engine: EngineRun
    interpreter: Path
    plan: EventPlan
    pair: Models
    frozen: ModelFiles
    models_around: dict[str, ArmModels] = dataclasses.field(default_factory=dict)
    binaries: list[Binary] = dataclasses.field(default_factory=list)

    def carry_out(self) -> None:
        """Every arm, up to the first that leaves no record, whose reason is written in its place."""
        for arm in self.plan.arms:
            directory = self.engine.directory / reader.ARMS / arm
            try:
                self._arm(arm, directory)
            except RUN_ERRORS as error:
                # What left something running may have a record, which stands; its process speaks against it.
                if not (isinstance(error, launch.ArmSurvivedError) and (directory / reader.RECORD).exists()):
                    write_failure(directory, error)
                return

    def _arm(self, arm: str, directory: Path) -> None:
        before = models.check_models(self.frozen)
        try:
            record = self.engine.start.arm(self._request(arm), directory, interpreter=self.interpreter)
        finally:
            self.models_around[arm] = ArmModels(before=before, after=models.check_models(self.frozen))
        mapped = [file for report in record.ranks for file in report.mapped]
        self.binaries[:] = binaries.hash_mapped(mapped, self.binaries)
        self.engine.look_at_cards("after", self.engine.held.cards, directory / reader.IDLE)

    def _request(self, arm: str) -> ArmRequest:
        configuration = CONFIGURATION[arm]
        trial = self.plan.fitness.rounds if arm == FITNESS and self.plan.fitness else 0
        return ArmRequest(
            arm=configuration,
            lane=self.plan.lane,
            target=str(self.pair.target),
            draft=str(self.pair.draft) if configuration.speculates else None,
            prompt=self.pair.prompt,
            tokens=self.plan.completion_tokens,
            tensor_parallel_size=self.plan.ranks,
            collective_breaks=self.plan.collective_breaks,
            planted=Planted.NONE,
            profile_samples=0,
            event_profile=None if arm == TEACHER else self.plan.topology.order_sha256,
            event_fitness_rounds=trial,
            event_sparse_replays=self.plan.sparse_replays if arm == SPARSE else 0,
            isolated=True,
        )
