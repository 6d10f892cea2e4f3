# SPDX-License-Identifier: Apache-2.0
"""Reads the event profile's directory, live or sealed; what is absent or unusable is a fact and not an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import ArmRecord, ArmRequest
from pytest_laguna.evidence.diagnostic_reader import (
    ARMS,
    PROFILE,
    names_in,
    read_configuration,
    read_piece,
    read_run,
)
from pytest_laguna.evidence.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.event_analysis import CONFIGURATION, EVENTS, FITNESS, SPARSE, EventClosure, EventPlan
from pytest_laguna.evidence.event_evidence import EventEvidence
from pytest_laguna.evidence.event_profile import EventFitness, EventProfile
from pytest_laguna.evidence.event_sparse import SparseProfile
from pytest_laguna.evidence.idle import IdleRecord
from pytest_laguna.evidence.rank_stacks import stack_files
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import UnusableEvidenceError

CLOSURE = "closure.json"
PLAN = "plan.json"
_BOUND = (PLAN, "target-config.json", "draft-config.json", "identity.json", "idle-before.json", "idle-after.json")
_BOUND_OF_ARM = ("request.json", "record.json", "process.json", "idle.json", "host.json", "failure.json")
_SIZE_LIMIT = 64 * 1024 * 1024


def read_event_plan(directory: Path) -> EventPlan:
    """Read what was expected before anything ran.

    Raises:
        UnusableEvidenceError: there is no plan, or it is not one; nothing can be judged without it.
    """
    return read_model(directory / PLAN, EventPlan)


def read_events(directory: Path, arms: tuple[str, ...]) -> EventEvidence:
    """Read everything that the campaign left; never raises for what lies there.

    Args:
        directory: the event profile's, whole or not.
        arms: that the plan has.
    """
    profiles, fitness, sparse = (f"{ARMS}/{arm}/{PROFILE}" for arm in (EVENTS, FITNESS, SPARSE))
    return EventEvidence(
        target_config=read_configuration(directory, "target-config.json"),
        draft_config=read_configuration(directory, "draft-config.json"),
        identity=read_piece(directory, "identity.json", DiagnosticIdentity),
        idle_before=read_piece(directory, "idle-before.json", IdleRecord),
        idle_after=read_piece(directory, "idle-after.json", IdleRecord),
        arms={arm: read_run(directory, f"{ARMS}/{arm}", ArmRequest, ArmRecord) for arm in arms},
        profiles={
            name: read_piece(directory, f"{profiles}/{name}", EventProfile) for name in names_in(directory / profiles)
        },
        fitness={
            name: read_piece(directory, f"{fitness}/{name}", EventFitness) for name in names_in(directory / fitness)
        },
        sparse={
            name: read_piece(directory, f"{sparse}/{name}", SparseProfile) for name in names_in(directory / sparse)
        },
        closure=read_piece(directory, CLOSURE, EventClosure),
        digests=file_digests(directory),
        unexpected=tuple(f"{ARMS}/{name}" for name in names_in(directory / ARMS) if name not in arms),
    )


def file_digests(directory: Path) -> dict[str, str]:
    """SHA-256 by path of every file that the closure binds and that is there."""
    return {path: digest for path in _bound(directory) if (digest := _digest(directory / path)) is not None}


def _bound(directory: Path) -> Iterator[str]:
    yield from _BOUND
    for arm in CONFIGURATION:
        yield from (f"{ARMS}/{arm}/{name}" for name in _BOUND_OF_ARM)
        yield from (f"{ARMS}/{arm}/{path.name}" for path in stack_files(directory / ARMS / arm))
        profiles = f"{ARMS}/{arm}/{PROFILE}"
        yield from (f"{profiles}/{name}" for name in names_in(directory / profiles))


def _digest(path: Path) -> str | None:
    """None where no file can be read; a rule then says that the closure binds another set."""
    try:
        return files.sha256_bytes(files.read_bytes(path, limit=_SIZE_LIMIT))
    except UnusableEvidenceError:
        return None
