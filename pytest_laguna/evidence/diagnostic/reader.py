# SPDX-License-Identifier: Apache-2.0
"""Evidence of the exact diagnostic and its reader; an absent or unusable file is a fact and not an error."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_laguna.evidence import reading
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord, ArmRequest
from pytest_laguna.evidence.arms.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.arms.evidence import ArmsEvidence
from pytest_laguna.evidence.arms.parity import PacketRecord, PacketRequest
from pytest_laguna.evidence.arms.profile_file import Profiles, profiles_in
from pytest_laguna.evidence.machine import leased_cards
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.reading import ARMS, DRAFT_CONFIG, PACKETS, TARGET_CONFIG, RunEvidence, names_in, read_piece
from pytest_laguna.evidence.schemas import Schema

_POSITION = re.compile(r"0|[1-9][0-9]{0,3}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosticEvidence(ArmsEvidence):
    """Content of the diagnostic's directory.

    Attributes:
        config_sha256: digest of each model's configuration by file name; none of an unreadable file.
        packets: files of each packet, by the position of its card in the lease.
        profiles: of each arm; empty for an arm without profiles.
    """

    config_sha256: Mapping[str, str]
    packets: Mapping[int, RunEvidence[PacketRequest, PacketRecord]]
    profiles: Mapping[Arm, Profiles]

    def runs(self) -> Iterator[tuple[str, RunEvidence[Schema, Schema]]]:
        """Yield every packet and every arm with its place in the directory, in the order of running."""
        yield from ((f"{PACKETS}/{position}", packet) for position, packet in self.packets.items())
        yield from ArmsEvidence.runs(self)


def read_diagnostic(directory: Path) -> DiagnosticEvidence:
    """Read everything in the diagnostic's directory, whole or not; profiles are read on demand.

    Content never raises: a missing, torn or foreign file is a ``Missing`` in its place.
    """
    packets = [name for name in names_in(directory / PACKETS) if _POSITION.fullmatch(name)]
    return DiagnosticEvidence(
        target_config=reading.read_as(directory, TARGET_CONFIG, reading.read_config),
        draft_config=reading.read_as(directory, DRAFT_CONFIG, reading.read_config),
        config_sha256=reading.digests_in(directory, (TARGET_CONFIG, DRAFT_CONFIG), reading.CONFIG_LIMIT),
        identity=read_piece(directory, reading.IDENTITY, DiagnosticIdentity),
        idle_before=read_piece(directory, leased_cards.IDLE_BEFORE, IdleRecord),
        idle_after=read_piece(directory, leased_cards.IDLE_AFTER, IdleRecord),
        packets={
            int(name): reading.read_run(directory, f"{PACKETS}/{name}", PacketRequest, PacketRecord)
            for name in sorted(packets, key=int)
        },
        arms={arm: reading.read_run(directory, f"{ARMS}/{arm}", ArmRequest, ArmRecord) for arm in Arm},
        profiles={arm: profiles_in(directory / ARMS / arm / reading.PROFILE) for arm in Arm},
        unexpected=_unexpected(directory),
    )


def _unexpected(directory: Path) -> tuple[str, ...]:
    """Unplanned arms and packets; a run's own directory may hold anything."""
    arms = [f"{ARMS}/{name}" for name in names_in(directory / ARMS) if name not in set(Arm)]
    packets = [f"{PACKETS}/{name}" for name in names_in(directory / PACKETS) if not _POSITION.fullmatch(name)]
    return (*arms, *packets)
