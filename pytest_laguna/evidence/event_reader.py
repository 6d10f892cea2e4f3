# SPDX-License-Identifier: Apache-2.0
"""Reads the event profile's directory, live or sealed; an absent or unusable file is a fact and not an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_laguna.evidence.arm_record import ArmRecord, ArmRequest
from pytest_laguna.evidence.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.event_analysis import CONFIGURATION, EVENTS, FITNESS, SPARSE, EventClosure, EventPlan
from pytest_laguna.evidence.event_evidence import EventEvidence
from pytest_laguna.evidence.event_profile import EventFitness, EventProfile
from pytest_laguna.evidence.event_sparse import SparseProfile
from pytest_laguna.evidence.idle import IdleRecord
from pytest_laguna.evidence.leased_cards import HOST, IDLE_AFTER, IDLE_BEFORE, PROCESS
from pytest_laguna.evidence.rank_stacks import stack_files
from pytest_laguna.evidence.reading import (
    ARMS,
    DRAFT_CONFIG,
    FAILURE,
    IDENTITY,
    IDLE,
    PLAN,
    PROFILE,
    RECORD,
    REQUEST,
    TARGET_CONFIG,
    digests_in,
    names_in,
    read_as,
    read_config,
    read_piece,
    read_pieces,
    read_run,
)
from pytest_laguna.evidence.schemas import read_model

CLOSURE = "closure.json"
_BOUND = (PLAN, TARGET_CONFIG, DRAFT_CONFIG, IDENTITY, IDLE_BEFORE, IDLE_AFTER)
_BOUND_OF_ARM = (REQUEST, RECORD, PROCESS, IDLE, HOST, FAILURE)


def read_event_plan(directory: Path) -> EventPlan:
    """Read the plan, without which nothing can be judged.

    Raises:
        UnusableEvidenceError: there is no plan, or it is not one.
    """
    return read_model(directory / PLAN, EventPlan)


def read_events(directory: Path, arms: tuple[str, ...]) -> EventEvidence:
    """Read everything that the campaign left; never raises for what lies there.

    Args:
        directory: the event profile's, whole or not.
        arms: of the plan; an arm that left nothing consists of missing pieces.
    """
    return EventEvidence(
        target_config=read_as(directory, TARGET_CONFIG, read_config),
        draft_config=read_as(directory, DRAFT_CONFIG, read_config),
        identity=read_piece(directory, IDENTITY, DiagnosticIdentity),
        idle_before=read_piece(directory, IDLE_BEFORE, IdleRecord),
        idle_after=read_piece(directory, IDLE_AFTER, IdleRecord),
        arms={arm: read_run(directory, f"{ARMS}/{arm}", ArmRequest, ArmRecord) for arm in arms},
        profiles=read_pieces(directory, f"{ARMS}/{EVENTS}/{PROFILE}", EventProfile),
        fitness=read_pieces(directory, f"{ARMS}/{FITNESS}/{PROFILE}", EventFitness),
        sparse=read_pieces(directory, f"{ARMS}/{SPARSE}/{PROFILE}", SparseProfile),
        closure=read_piece(directory, CLOSURE, EventClosure),
        digests=file_digests(directory),
        unexpected=tuple(f"{ARMS}/{name}" for name in names_in(directory / ARMS) if name not in arms),
    )


def file_digests(directory: Path) -> dict[str, str]:
    """SHA-256 by path of every file that the closure binds and that can be read."""
    return digests_in(directory, _bound(directory))


def _bound(directory: Path) -> Iterator[str]:
    yield from _BOUND
    for arm in CONFIGURATION:
        yield from (f"{ARMS}/{arm}/{name}" for name in _BOUND_OF_ARM)
        yield from (f"{ARMS}/{arm}/{path.name}" for path in stack_files(directory / ARMS / arm))
        profiles = f"{ARMS}/{arm}/{PROFILE}"
        yield from (f"{profiles}/{name}" for name in names_in(directory / profiles))
