# SPDX-License-Identifier: Apache-2.0
"""Evidence of the exact diagnostic, in memory; a piece that is absent says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from pytest_laguna.evidence.arm_record import Arm
from pytest_laguna.evidence.arms_evidence import ArmsEvidence
from pytest_laguna.evidence.parity import PacketRecord, PacketRequest
from pytest_laguna.evidence.profile_file import Profiles
from pytest_laguna.evidence.reading import PACKETS, RunEvidence
from pytest_laguna.evidence.schemas import Schema


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosticEvidence(ArmsEvidence):
    """Content of the diagnostic's directory.

    Attributes:
        config_sha256: digest of each model's configuration by file name; a file that cannot be read has none.
        packets: files of each packet, by the position of its card in the lease.
        profiles: of each arm; empty for an arm without profiles.
    """

    config_sha256: Mapping[str, str]
    packets: Mapping[int, RunEvidence[PacketRequest, PacketRecord]]
    profiles: Mapping[Arm, Profiles]

    def runs(self) -> Iterator[tuple[str, RunEvidence[Schema, Schema]]]:
        """Yield every packet and every arm with its place in the directory, in the order in which they ran."""
        yield from ((f"{PACKETS}/{position}", packet) for position, packet in self.packets.items())
        yield from ArmsEvidence.runs(self)
