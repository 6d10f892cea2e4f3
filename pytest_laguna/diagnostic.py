# SPDX-License-Identifier: Apache-2.0
"""Carries out the exact diagnostic: packets and arms in the frozen order, each once, with the evidence of all of it.

Nothing is run again and nothing is chosen by a result: the first run that leaves no record ends it, and the analysis
says what that leaves unproven.
"""

from __future__ import annotations

from pathlib import Path

from pytest_laguna.analysis.diagnostic import diagnose
from pytest_laguna.arm_runs import Runs, observed
from pytest_laguna.engine_run import EngineRun, Models
from pytest_laguna.evidence import diagnostic_reader as reader
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import Arm, ArmRequest, Planted
from pytest_laguna.evidence.diagnostic import Diagnosis, DiagnosticPlan
from pytest_laguna.evidence.diagnostic_evidence import present
from pytest_laguna.evidence.parity import PacketRequest
from pytest_laguna.planning import plan_diagnostic


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
            plan = _plan(engine, pair)
            with observed(engine, interpreter, pair) as runs:
                _run_all(runs, plan, pair)
        engine.look_after()
        diagnosis = diagnose(plan, reader.read_diagnostic(engine.directory))
        engine.write(Path("analysis.json"), diagnosis)
        return diagnosis


def _plan(engine: EngineRun, pair: Models) -> DiagnosticPlan:
    engine.copy_configurations(pair)
    config = present(reader.read_diagnostic(engine.directory).target_config)
    plan = plan_diagnostic(engine.campaign, engine.lane, [card.identity for card in engine.held.cards], config)
    engine.write(Path("plan.json"), plan)
    return plan


def _run_all(runs: Runs, plan: DiagnosticPlan, pair: Models) -> None:
    """Every packet and then every arm, up to the first that leaves no record."""
    for position, card in enumerate(runs.engine.held.cards):
        runs.packet(card, _packet(position, plan, pair))
    for arm in Arm:
        runs.arm(arm, _arm(arm, plan, pair))


def _packet(position: int, plan: DiagnosticPlan, pair: Models) -> PacketRequest:
    return PacketRequest(
        lane=plan.lane,
        rank=position,
        target=str(pair.target),
        draft=str(pair.draft),
        queries=plan.queries,
        planted=Planted.NONE,
    )


def _arm(arm: Arm, plan: DiagnosticPlan, pair: Models) -> ArmRequest:
    return ArmRequest(
        arm=arm,
        lane=plan.lane,
        target=str(pair.target),
        draft=str(pair.draft) if arm.speculates else None,
        prompt=pair.prompt,
        tokens=plan.completion_tokens,
        tensor_parallel_size=plan.ranks,
        collective_breaks=plan.collective_breaks,
        planted=Planted.NONE,
        profile_samples=plan.samples if arm.graphs else 0,
        null=plan.null,
    )
