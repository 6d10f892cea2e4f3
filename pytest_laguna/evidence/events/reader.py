# SPDX-License-Identifier: Apache-2.0
"""Evidence of the event profile campaign and its reader; an absent or unusable file is a fact and not an error."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_laguna.evidence import reading
from pytest_laguna.evidence.arms.arm_record import ArmRecord, ArmRequest
from pytest_laguna.evidence.arms.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.arms.evidence import ArmsEvidence
from pytest_laguna.evidence.arms.rank_stacks import stack_files
from pytest_laguna.evidence.events.analysis import CONFIGURATION, EVENTS, FITNESS, SPARSE, EventClosure
from pytest_laguna.evidence.events.profile import EventFitness, EventProfile
from pytest_laguna.evidence.events.sparse import SparseProfile
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.machine.leased_cards import HOST, IDLE_AFTER, IDLE_BEFORE, PROCESS
from pytest_laguna.evidence.reading import ARMS, PROFILE, Missing, names_in, read_piece, read_pieces

CLOSURE = "closure.json"
_BOUND = (reading.PLAN, reading.TARGET_CONFIG, reading.DRAFT_CONFIG, reading.IDENTITY, IDLE_BEFORE, IDLE_AFTER)
_BOUND_OF_ARM = (reading.REQUEST, reading.RECORD, PROCESS, reading.IDLE, HOST, reading.FAILURE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventEvidence(ArmsEvidence):
    """Content of the event profile's directory.

    Attributes:
        profiles: of the arm with the event profile, by file name.
        fitness: of the arm with the instrument's trial, by file name.
        sparse: of the arm with a few events in many replays, by file name.
        digests: present SHA-256 of the closure's files.
    """

    profiles: Mapping[str, EventProfile | Missing]
    fitness: Mapping[str, EventFitness | Missing]
    sparse: Mapping[str, SparseProfile | Missing]
    closure: EventClosure | Missing
    digests: Mapping[str, str]


def read_events(directory: Path, arms: tuple[str, ...]) -> EventEvidence:
    """Read everything in the event profile's directory, whole or not, for the arms of the plan.

    Content never raises; an arm without files consists of missing pieces.
    """
    return EventEvidence(
        target_config=reading.read_as(directory, reading.TARGET_CONFIG, reading.read_config),
        draft_config=reading.read_as(directory, reading.DRAFT_CONFIG, reading.read_config),
        identity=read_piece(directory, reading.IDENTITY, DiagnosticIdentity),
        idle_before=read_piece(directory, IDLE_BEFORE, IdleRecord),
        idle_after=read_piece(directory, IDLE_AFTER, IdleRecord),
        arms={arm: reading.read_run(directory, f"{ARMS}/{arm}", ArmRequest, ArmRecord) for arm in arms},
        profiles=read_pieces(directory, f"{ARMS}/{EVENTS}/{PROFILE}", EventProfile),
        fitness=read_pieces(directory, f"{ARMS}/{FITNESS}/{PROFILE}", EventFitness),
        sparse=read_pieces(directory, f"{ARMS}/{SPARSE}/{PROFILE}", SparseProfile),
        closure=read_piece(directory, CLOSURE, EventClosure),
        digests=file_digests(directory),
        unexpected=tuple(f"{ARMS}/{name}" for name in names_in(directory / ARMS) if name not in arms),
    )


def file_digests(directory: Path) -> dict[str, str]:
    """SHA-256 by path of every readable file of the closure."""
    return reading.digests_in(directory, _bound(directory))


def _bound(directory: Path) -> Iterator[str]:
    yield from _BOUND
    for arm in CONFIGURATION:
        yield from (f"{ARMS}/{arm}/{name}" for name in _BOUND_OF_ARM)
        yield from (f"{ARMS}/{arm}/{path.name}" for path in stack_files(directory / ARMS / arm))
        profiles = f"{ARMS}/{arm}/{PROFILE}"
        yield from (f"{profiles}/{name}" for name in names_in(directory / profiles))
