# SPDX-License-Identifier: Apache-2.0
"""The lease of an attempt: its cards, their choice, and the places of their snapshots."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence.machine.idle import Token
from pytest_laguna.evidence.machine.placement import Place, StorageRule
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.evidence.values import Lane, SchemaName

DIRECTORY = "cards"
"""Below the attempt's ``evidence``, with ``lease.json``, ``idle-before.json`` and ``idle-after.json``."""
LEASE = "lease.json"
IDLE_BEFORE = "idle-before.json"
IDLE_AFTER = "idle-after.json"

PROCESS = "process.json"
"""The end of a supervised run, in the run's own directory."""
PROCESSES = "processes"
"""Place below the attempt's ``evidence``: a directory for each run with its own directory elsewhere."""
HOST = "host.json"
"""Beside it: the host before and after."""

SHORTEST_PREFIX = 8
"""Minimum length of an abbreviated identity; a shorter one is a mistake."""


class LeasedCard(Schema):
    """A card of the lease.

    Attributes:
        ordinal: its number as the management tool counts.
        identity: PCI address, UUID or slot.
        name: the vendor's; on the cpu lane its core, and the slots on it.
    """

    ordinal: pydantic.NonNegativeInt
    identity: str
    name: str
    memory_bytes: pydantic.NonNegativeInt


class LeaseTerms(Schema):
    """The campaign's requirements of the cards and of the disks of its lane."""

    card: str | None = None
    storage: StorageRule | None = None


class LeaseStart(Schema):
    """``lease.json``: written before the first snapshot.

    Attributes:
        token: carried by every process under the lease.
        cards: in the order of ``--cards``, the order of the ranks.
        inherited_masks: the caller's own choice of cards, by variable; the request was intersected with it.
        cores: the processor cores of every process; empty for all.
        cleared: tokens of stale leases, with cards swept and found idle before this lease.
        places: of evidence, temporary files and models; empty without a rule.
    """

    file_schema: SchemaName[Literal["pytest-laguna-leased-cards-v1"]] = "pytest-laguna-leased-cards-v1"
    lane: Lane
    token: Token
    cards: Annotated[list[LeasedCard], pydantic.Field(min_length=1)]
    inherited_masks: dict[str, str]
    environment: dict[str, str]
    cores: list[pydantic.NonNegativeInt]
    cleared: list[Token]
    places: list[Place] = pydantic.Field(default_factory=list)
