# SPDX-License-Identifier: Apache-2.0
"""Carries out the exact diagnostic: packets and arms in the frozen order, each once, with the evidence of all of it.

Nothing is run again and nothing is chosen by a result: the first run that leaves no record ends it, and the analysis
says what that leaves unproven.
"""

from __future__ import annotations

from pathlib import Path

from pytest_laguna.analysis.diagnostic import diagnose
from pytest_laguna.arm_runs import Runs, asked_of_every_arm, run_planned
from pytest_laguna.engine_run import EngineRun, Models
from pytest_laguna.evidence import diagnostic_reader as reader
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import Arm, ArmRequest, Planted
from pytest_laguna.evidence.diagnostic import Diagnosis, DiagnosticPlan
from pytest_laguna.evidence.parity import PacketRequest
from pytest_laguna.planning import plan_diagnostic


def carry_out(engine: EngineRun) -> Diagnosis:
    """Run everything and judge it.

    Args:
        engine: what the session holds; its directory does not exist yet.

    Raises:
        FileExistsError: it has been carried out before.
        NotProvenError: it could not begin: the models or the engine are not there, or the cards cannot be seen.
        UnusableEvidenceError: the engine is not the frozen one, or what the models say of themselves cannot be used.
    """
    engine.directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    for name in (reader.PACKETS, reader.ARMS):
        (engine.directory / name).mkdir(mode=files.PRIVATE_DIRECTORY)
    with engine.explained():
        plan, _ = run_planned(engine, plan_diagnostic, _run_all)
        diagnosis = diagnose(plan, reader.read_diagnostic(engine.directory))
        engine.write(Path("analysis.json"), diagnosis)
        return diagnosis


def _run_all(runs: Runs, plan: DiagnosticPlan, pair: Models) -> None:
    """Every packet and then every arm, up to the first that leaves no record."""
    for position, card in enumerate(runs.engine.held.cards):
        runs.packet(card, _packet(position, plan, pair))
    for arm in Arm:
        samples = plan.samples if arm.graphs else 0
        asked = asked_of_every_arm(plan, pair, arm)
        runs.arm(arm, ArmRequest(**asked, profile_samples=samples, null=plan.null))


def _packet(position: int, plan: DiagnosticPlan, pair: Models) -> PacketRequest:
    return PacketRequest(
        lane=plan.lane,
        rank=position,
        target=str(pair.target),
        draft=str(pair.draft),
        queries=plan.queries,
        planted=Planted.NONE,
    )
