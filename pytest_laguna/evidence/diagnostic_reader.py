# SPDX-License-Identifier: Apache-2.0
"""Reads the exact diagnostic's directory, live or sealed; an absent or unusable file is a fact and not an error."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_laguna.evidence import leased_cards
from pytest_laguna.evidence.arm_record import Arm, ArmRecord, ArmRequest
from pytest_laguna.evidence.diagnostic import DiagnosticPlan
from pytest_laguna.evidence.diagnostic_evidence import DiagnosticEvidence
from pytest_laguna.evidence.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.idle import IdleRecord
from pytest_laguna.evidence.parity import PacketRecord, PacketRequest
from pytest_laguna.evidence.profile_file import profiles_in
from pytest_laguna.evidence.reading import (
    ARMS,
    CONFIG_LIMIT,
    DRAFT_CONFIG,
    IDENTITY,
    PACKETS,
    PLAN,
    PROFILE,
    TARGET_CONFIG,
    digests_in,
    names_in,
    read_as,
    read_config,
    read_piece,
    read_run,
)
from pytest_laguna.evidence.schemas import read_model

_POSITION = re.compile(r"0|[1-9][0-9]{0,3}")


def read_plan(directory: Path) -> DiagnosticPlan:
    """Read the plan, without which nothing can be judged.

    Raises:
        UnusableEvidenceError: there is no plan, or it is not one.
    """
    return read_model(directory / PLAN, DiagnosticPlan)


def read_diagnostic(directory: Path) -> DiagnosticEvidence:
    """Read everything that the diagnostic left.

    Args:
        directory: the diagnostic's, whole or not.

    Returns:
        The evidence. Content never raises: a file that is missing, torn or of another form is a ``Missing`` in its
        place, and profiles are read on demand.
    """
    packets = [name for name in names_in(directory / PACKETS) if _POSITION.fullmatch(name)]
    return DiagnosticEvidence(
        target_config=read_as(directory, TARGET_CONFIG, read_config),
        draft_config=read_as(directory, DRAFT_CONFIG, read_config),
        config_sha256=digests_in(directory, (TARGET_CONFIG, DRAFT_CONFIG), CONFIG_LIMIT),
        identity=read_piece(directory, IDENTITY, DiagnosticIdentity),
        idle_before=read_piece(directory, leased_cards.IDLE_BEFORE, IdleRecord),
        idle_after=read_piece(directory, leased_cards.IDLE_AFTER, IdleRecord),
        packets={
            int(name): read_run(directory, f"{PACKETS}/{name}", PacketRequest, PacketRecord)
            for name in sorted(packets, key=int)
        },
        arms={arm: read_run(directory, f"{ARMS}/{arm}", ArmRequest, ArmRecord) for arm in Arm},
        profiles={arm: profiles_in(directory / ARMS / arm / PROFILE) for arm in Arm},
        unexpected=_unexpected(directory),
    )


def _unexpected(directory: Path) -> tuple[str, ...]:
    """Arms and packets that nobody planned; a run's own directory may hold anything."""
    arms = [f"{ARMS}/{name}" for name in names_in(directory / ARMS) if name not in set(Arm)]
    packets = [f"{PACKETS}/{name}" for name in names_in(directory / PACKETS) if not _POSITION.fullmatch(name)]
    return (*arms, *packets)
