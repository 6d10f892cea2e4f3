# SPDX-License-Identifier: Apache-2.0
"""Evidence of any campaign with arms, in memory; an absent piece holds its reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from pytest_laguna.evidence.arms.arm_record import ArmRecord, ArmRequest
from pytest_laguna.evidence.arms.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.reading import ARMS, Missing, RunEvidence
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.verdict import JSON


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArmsEvidence:
    """Content of the campaign's directory.

    Attributes:
        idle_before: before the first process.
        idle_after: after the last one.
        arms: files of each arm by name, in their order.
        unexpected: files and directories foreign to the campaign.
    """

    target_config: dict[str, JSON] | Missing
    draft_config: dict[str, JSON] | Missing
    identity: DiagnosticIdentity | Missing
    idle_before: IdleRecord | Missing
    idle_after: IdleRecord | Missing
    arms: Mapping[str, RunEvidence[ArmRequest, ArmRecord]]
    unexpected: tuple[str, ...]

    def runs(self) -> Iterator[tuple[str, RunEvidence[Schema, Schema]]]:
        """Yield every run with its place in the directory, in the order of running."""
        yield from ((f"{ARMS}/{arm}", run) for arm, run in self.arms.items())
