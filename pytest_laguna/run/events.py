# SPDX-License-Identifier: Apache-2.0
"""Carries out the event profile: each arm once, in the frozen order, with its evidence."""

from __future__ import annotations

from pathlib import Path

from pytest_laguna.evidence.arms.arm_record import ArmRequest
from pytest_laguna.evidence.events import reader as event_reader
from pytest_laguna.evidence.events.analysis import (
    CONFIGURATION,
    FITNESS,
    SPARSE,
    TEACHER,
    EventAnalysis,
    EventClosure,
    EventPlan,
)
from pytest_laguna.experiments.events import EXPERIMENT
from pytest_laguna.experiments.experiment import Derived
from pytest_laguna.run.arms import Runs, asked_of_every_arm, carry_out_arms
from pytest_laguna.run.engine_run import EngineRun, Models


def carry_out(engine: EngineRun) -> Derived[EventAnalysis]:
    """Run every arm, bind its files and judge them; arguments and errors as ``carry_out_arms``."""
    return carry_out_arms(engine, EXPERIMENT, _run_all, _close)


def _run_all(runs: Runs, plan: EventPlan, pair: Models) -> None:
    """Run every arm, up to the first without a record."""
    for arm in plan.arms:
        runs.arm(arm, _arm(arm, plan, pair))


def _close(runs: Runs) -> None:
    """Bind every judged file by its digest."""
    directory = runs.engine.directory
    closure = EventClosure(model_generations=len(runs.models_around), files=event_reader.file_digests(directory))
    runs.engine.write(Path(event_reader.CLOSURE), closure)


def _arm(arm: str, plan: EventPlan, pair: Models) -> ArmRequest:
    return ArmRequest(
        **asked_of_every_arm(plan, pair, CONFIGURATION[arm]),
        profile_samples=0,
        event_profile=None if arm == TEACHER else plan.topology.order_sha256,
        event_fitness_rounds=plan.fitness.rounds if arm == FITNESS and plan.fitness else 0,
        event_sparse_replays=plan.sparse_replays if arm == SPARSE else 0,
        isolated=True,
    )
