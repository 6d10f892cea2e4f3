# SPDX-License-Identifier: Apache-2.0
"""Carries out the endpoint campaign: each leg is a fresh server and one pass of the suite, in the frozen order.

Phase 1 is judged after the first adjacent pair. No leg is repeated, replaced or added. Once the server of a block's
second candidate leg was started, its control runs too, whatever the result.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.analysis.endpoint.campaign_rules import PHASE_1_LEGS
from pytest_laguna.analysis.machine.idle import judge_idle
from pytest_laguna.campaign import SIZE_LIMIT
from pytest_laguna.endpoint import sockets
from pytest_laguna.endpoint.leg import LegBounds, LegPlace, ServerSurvivedError, run_leg
from pytest_laguna.endpoint.server import ServerFailedError
from pytest_laguna.endpoint.suite import SUITES, read_answers, read_suite
from pytest_laguna.engine.serving import ServedArm
from pytest_laguna.evidence import files, reading, root
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.arms.engine_identity import ArmModels, ModelFiles
from pytest_laguna.evidence.endpoint import reader
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.evidence.endpoint.leg import LegName, LegRequest
from pytest_laguna.evidence.endpoint.plan import EndpointPlan, leg_name, planned_legs
from pytest_laguna.evidence.schemas import AttemptStart
from pytest_laguna.experiments.endpoint import EXPERIMENT
from pytest_laguna.experiments.experiment import Derived, derive_from_files, read_attempted
from pytest_laguna.experiments.protocol import Protocol, commit_of, parse_protocol, require_frozen
from pytest_laguna.identity import models
from pytest_laguna.run.engine_run import RUN_ERRORS, EngineRun, Models, write_failure
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict, raise_verdict

_LEG_ERRORS = (*RUN_ERRORS, ServerFailedError, ServerSurvivedError)


def carry_out(engine: EngineRun, campaign_file: Path) -> Derived[EndpointAnalysis]:
    """Run every leg and judge them; the engine's directory must not exist yet.

    Raises:
        FileExistsError: the campaign has run before.
        NotProvenError: the protocol is not committed, or models, engine or cards are missing.
        UnusableEvidenceError: protocol, suite or teacher cannot be used.
    """
    engine.directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    (engine.directory / reader.LEGS).mkdir(mode=files.PRIVATE_DIRECTORY)
    with engine.explained():
        attempted, interpreter = read_attempted(engine.attempt.directory), engine.interpreter
        protocol = _take_protocol(engine, campaign_file, attempted.start)
        with engine.models(interpreter) as pair:
            engine.copy_configurations(pair)
            plan = EXPERIMENT.plan(attempted, engine.directory)
            engine.write(Path(reading.PLAN), plan)
            frozen = models.freeze_models([pair.target, pair.draft])
            _run_all(_Legs(engine, interpreter, plan, protocol, pair, frozen))
        derived = derive_from_files(EXPERIMENT, attempted)
        files.write_new(engine.directory / root.ANALYSIS, derived.content)
        return derived


def _run_all(legs: _Legs) -> None:
    """Run the legs between two snapshots of the engine, and write the identity."""
    engine = legs.engine
    before = engine.describe(legs.interpreter, legs.frozen)
    legs.carry_out()
    identity = engine.identity(
        before,
        engine.look_again(legs.interpreter),
        frozen=legs.frozen,
        models_around=legs.models_around,
        arm_directories={},
        binaries=[],
    )
    engine.write(Path(reading.IDENTITY), identity)


def _take_protocol(engine: EngineRun, campaign_file: Path, start: AttemptStart) -> Protocol:
    """Read the committed protocol, and keep it with its suite and teacher."""
    named = engine.engine.protocol
    if named is None:
        message = f"lanes.{engine.lane}.engine: no protocol; expected one for gate 3; see docs/campaign.md"
        raise NotProvenError(message)
    path = campaign_file.parent / named
    if not path.is_file():
        message = f"protocol {path}: no such file; write it after gate 2 has passed, and commit it"
        raise NotProvenError(message)
    content = files.read_bytes(path, limit=SIZE_LIMIT)
    commit = commit_of(path, content)
    require_frozen(content, engine.attempt.directory, start)
    protocol = parse_protocol(content, path.name)
    files.write_new(engine.directory / reader.PROTOCOL, content)
    engine.write(Path(reader.PROTOCOL_COMMIT), commit)
    _keep_prompts(engine.directory, path, protocol)
    return protocol


def _keep_prompts(directory: Path, path: Path, protocol: Protocol) -> None:
    """Keep the suite and, if the protocol has one, the teacher; each must have the pinned digest."""
    sources = {reader.SUITE: _beside_or_shipped(path, protocol.suite.file)}
    if protocol.teacher is not None:
        sources[reader.TEACHER] = _beside_or_shipped(path, protocol.teacher.file)
    for kept, source in sources.items():
        files.write_new(directory / kept, files.read_bytes(source, limit=SIZE_LIMIT))
    suite = read_suite(directory / reader.SUITE, protocol.suite.pin)
    if protocol.teacher is not None:
        read_answers(directory / reader.TEACHER, suite, protocol.teacher.sha256)


def _beside_or_shipped(protocol: Path, name: str) -> Path:
    beside = protocol.parent / name
    return beside if beside.exists() else SUITES / name


@dataclasses.dataclass(frozen=True, slots=True)
class _Legs:
    """Runs the planned legs.

    Attributes:
        interpreter: the engine's Python.
        models_around: snapshots of the models around each leg.
    """

    engine: EngineRun
    interpreter: Path
    plan: EndpointPlan
    protocol: Protocol
    pair: Models
    frozen: ModelFiles
    models_around: dict[str, ArmModels] = dataclasses.field(default_factory=dict)

    def carry_out(self) -> None:
        """Run every planned leg, up to a stop after phase 1 or the first leg without a record."""
        failed = False
        for sequence, (block, leg) in enumerate(planned_legs(self.engine.campaign.digest, self.plan.blocks), start=1):
            if failed and not self._owes(block):
                continue
            failed = not self._completed(sequence, block, leg) or failed
            if sequence == PHASE_1_LEGS and not failed:
                phase_1 = self.analyse()
                self.engine.write(Path(reader.PHASE_1), phase_1)
                if phase_1.phase_1 is not None and phase_1.phase_1.stops:
                    return

    def _owes(self, block: int) -> bool:
        """True if a block goes on after a failed leg: once the server of its B2 was started, its A2 runs."""
        order = planned_legs(self.engine.campaign.digest, self.plan.blocks)
        candidate = leg_name(order.index((block, "B2")) + 1, "B2")
        return candidate in reader.started_legs(self.engine.directory)

    def analyse(self) -> EndpointAnalysis:
        """Judge the legs so far."""
        evidence = reader.read_legs(self.engine.directory)
        teacher = reader.take_teacher(self.engine.directory, evidence.legs)
        return analyse_endpoint(
            self.plan,
            evidence.legs,
            teacher=teacher,
            campaign=self.engine.campaign.digest,
            ended=evidence.ended,
        )

    def _completed(self, sequence: int, block: int, leg: LegName) -> bool:
        """Run a leg; True if it left its record, else its reason is written in the record's place."""
        directory = reader.leg_directory(self.engine.directory, sequence, leg)
        before = models.check_models(self.frozen)
        try:
            self._require_idle(sequence)
            run_leg(self._request(sequence, block, leg), directory, self._place(sequence))
        except _LEG_ERRORS as error:
            write_failure(directory, error)
            return False
        finally:
            self.models_around[directory.name] = ArmModels(before=before, after=models.check_models(self.frozen))
        return True

    def _require_idle(self, sequence: int) -> None:
        """Require idle cards; a leg beside another user would measure both.

        Raises:
            NotProvenError: the cards are not idle, or cannot be seen.
            UnusableEvidenceError: a snapshot cannot be used.
        """
        held, path = self.engine.held, reader.idle_file(self.engine.directory, sequence, "before")
        verdict, reason = judge_idle(self.engine.look_at_cards("before", held.cards, path), held.idle)
        if verdict is not Verdict.PASS:
            raise_verdict(verdict, reason)

    def _request(self, sequence: int, block: int, leg: LegName) -> LegRequest:
        candidate = leg.startswith("B") and not self.plan.null
        arm = Arm.GRAPH_CANDIDATE if candidate else Arm.GRAPH_CONTROL
        diagnostic = self.engine.campaign.diagnostic
        served = ServedArm(
            arm=arm,
            lane=self.engine.lane,
            target=str(self.pair.target),
            draft=str(self.pair.draft),
            tensor_parallel_size=len(self.engine.held.cards),
            collective_breaks=diagnostic is not None and diagnostic.collective_breaks,
            max_model_tokens=self.protocol.server.max_model_tokens,
            executor_backend=self.protocol.server.executor_backend,
        )
        return LegRequest(
            leg=leg,
            block=block,
            sequence=sequence,
            arm=arm,
            lane=self.engine.lane,
            model=self.protocol.model,
            suite=self.plan.suite,
            engine_arguments=served.engine_arguments(),
            variables=served.variables(),
        )

    def _place(self, sequence: int) -> LegPlace:
        bounds = self.engine.start.bounds
        return LegPlace(
            interpreter=self.interpreter,
            suite=self.engine.directory / reader.SUITE,
            port=sockets.free_port(),
            bounds=LegBounds(
                deadline_seconds=bounds.deadline_seconds,
                ready_seconds=self.protocol.server.ready_seconds,
                row_seconds=self.protocol.server.row_seconds,
            ),
            start=self.engine.start.start,
            idle_after=lambda: self._idle_after(sequence),
        )

    def _idle_after(self, sequence: int) -> bool | None:
        """True if the leased cards are idle again; None if it is unknown, as beside another user."""
        held = self.engine.held
        try:
            record = held.take_idle("after", held.cards)
        except (NotProvenError, UnusableEvidenceError):
            return None
        self.engine.write(reader.idle_file(self.engine.directory, sequence, "after"), record)
        verdict, _ = judge_idle(record, held.idle)
        return None if verdict in {Verdict.VOID, Verdict.NOT_PROVEN} else verdict is Verdict.PASS
