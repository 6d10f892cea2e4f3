# SPDX-License-Identifier: Apache-2.0
"""Carries out the event profile campaign: its arms in the frozen order, each once, with the evidence of all of it.

Nothing is run again and nothing is chosen by a result: the first arm that leaves no record ends it, and the analysis
says what that leaves unproven.
"""

from __future__ import annotations

from pathlib import Path

from pytest_laguna.analysis.event_diagnosis import analyse_events
from pytest_laguna.arm_runs import Runs, asked_of_every_arm, run_planned
from pytest_laguna.engine_run import EngineRun, Models
from pytest_laguna.evidence import diagnostic_reader as reader
from pytest_laguna.evidence import event_reader, files
from pytest_laguna.evidence.arm_record import ArmRequest
from pytest_laguna.evidence.event_analysis import (
    CONFIGURATION,
    FITNESS,
    SPARSE,
    TEACHER,
    EventAnalysis,
    EventClosure,
    EventPlan,
)
from pytest_laguna.planning import plan_events


def carry_out(engine: EngineRun) -> EventAnalysis:
    """Run everything and judge it.

    Args:
        engine: what the session holds; its directory does not exist yet.

    Raises:
        FileExistsError: it has been carried out before.
        NotProvenError: it could not begin: the models or the engine are not there, or the cards cannot be seen.
        UnusableEvidenceError: the engine is not the frozen one, or what the models say of themselves cannot be used.
    """
    engine.directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    (engine.directory / reader.ARMS).mkdir(mode=files.PRIVATE_DIRECTORY)
    with engine.explained():
        plan, runs = run_planned(engine, plan_events, _run_all)
        started, bound = len(runs.models_around), event_reader.file_digests(engine.directory)
        engine.write(Path(event_reader.CLOSURE), EventClosure(model_generations=started, files=bound))
        analysis = analyse_events(plan, event_reader.read_events(engine.directory, plan.arms))
        engine.write(Path("analysis.json"), analysis)
        return analysis


def _run_all(runs: Runs, plan: EventPlan, pair: Models) -> None:
    """Every arm, up to the first that leaves no record."""
    for arm in plan.arms:
        runs.arm(arm, _arm(arm, plan, pair))


def _arm(arm: str, plan: EventPlan, pair: Models) -> ArmRequest:
    return ArmRequest(
        **asked_of_every_arm(plan, pair, CONFIGURATION[arm]),
        profile_samples=0,
        event_profile=None if arm == TEACHER else plan.topology.order_sha256,
        event_fitness_rounds=plan.fitness.rounds if arm == FITNESS and plan.fitness else 0,
        event_sparse_replays=plan.sparse_replays if arm == SPARSE else 0,
        isolated=True,
    )
