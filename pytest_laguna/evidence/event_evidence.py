# SPDX-License-Identifier: Apache-2.0
"""All that the event profile campaign left, in memory; what is not there says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from pytest_laguna.evidence.arm_record import ArmRecord, ArmRequest
from pytest_laguna.evidence.diagnostic_evidence import Missing, RunEvidence
from pytest_laguna.evidence.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.event_analysis import EventClosure
from pytest_laguna.evidence.event_profile import EventFitness, EventProfile
from pytest_laguna.evidence.event_sparse import SparseProfile
from pytest_laguna.evidence.idle import IdleRecord
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.verdict import JSON


@dataclasses.dataclass(frozen=True, slots=True)
class EventEvidence:
    """What lies in the directory.

    Attributes:
        target_config: the target's ``config.json``.
        draft_config: the draft's.
        identity: of engine, binaries and models.
        idle_before: the leased cards before the first process.
        idle_after: and after the last one.
        arms: by name, in their order; of those that left nothing each piece is missing.
        profiles: of the arm with the event profile, by file name.
        fitness: of the arm that tries the instrument, by file name.
        sparse: of the arm with a few events in many replays, by file name.
        closure: what binds the files.
        digests: of the files that it must bind, as they are now.
        unexpected: arms that the campaign does not have.
    """

    target_config: dict[str, JSON] | Missing
    draft_config: dict[str, JSON] | Missing
    identity: DiagnosticIdentity | Missing
    idle_before: IdleRecord | Missing
    idle_after: IdleRecord | Missing
    arms: Mapping[str, RunEvidence[ArmRequest, ArmRecord]]
    profiles: Mapping[str, EventProfile | Missing]
    fitness: Mapping[str, EventFitness | Missing]
    sparse: Mapping[str, SparseProfile | Missing]
    closure: EventClosure | Missing
    digests: Mapping[str, str]
    unexpected: tuple[str, ...]

    def runs(self) -> Iterator[tuple[str, RunEvidence[Schema, Schema]]]:
        """Every arm, in the order in which they ran, by its place in the directory."""
        yield from ((f"arms/{arm}", run) for arm, run in self.arms.items())
