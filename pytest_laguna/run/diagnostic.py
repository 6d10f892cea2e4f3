# SPDX-License-Identifier: Apache-2.0
"""Carries out the exact diagnostic: each packet and arm once, in the frozen order, with its evidence."""

from __future__ import annotations

from pytest_laguna.evidence import files, reading
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRequest, Planted
from pytest_laguna.evidence.arms.parity import PacketRequest
from pytest_laguna.evidence.diagnostic.analysis import Diagnosis, DiagnosticPlan
from pytest_laguna.experiments.diagnostic import EXPERIMENT
from pytest_laguna.experiments.experiment import Derived
from pytest_laguna.run.arms import Runs, asked_of_every_arm, carry_out_arms
from pytest_laguna.run.engine_run import EngineRun, Models


def carry_out(engine: EngineRun) -> Derived[Diagnosis]:
    """Run every packet and arm, and judge them; arguments and errors as ``carry_out_arms``."""
    return carry_out_arms(engine, EXPERIMENT, _run_all)


def _run_all(runs: Runs, plan: DiagnosticPlan, pair: Models) -> None:
    """Run every packet, then every arm, up to the first without a record."""
    (runs.engine.directory / reading.PACKETS).mkdir(mode=files.PRIVATE_DIRECTORY)
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
