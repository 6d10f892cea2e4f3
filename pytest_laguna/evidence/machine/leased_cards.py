# SPDX-License-Identifier: Apache-2.0
"""The lease of an attempt: which cards, how they were chosen, and where the looks at them lie."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence.machine.idle import Token
from pytest_laguna.evidence.machine.placement import Place, StorageRule
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.evidence.values import Lane

DIRECTORY = "cards"
"""Below the attempt's ``evidence``, with ``lease.json``, ``idle-before.json`` and ``idle-after.json``."""
LEASE = "lease.json"
IDLE_BEFORE = "idle-before.json"
IDLE_AFTER = "idle-after.json"

PROCESS = "process.json"
"""In the directory of everything that was run under supervision: how it ended."""
PROCESSES = "processes"
"""Below the attempt's ``evidence``: a directory for each run whose own directory lies elsewhere."""
HOST = "host.json"
"""Beside it: the host before and after."""

SHORTEST_PREFIX = 8
"""Fewer characters of an identity are a mistake rather than a short form."""


class LeasedCard(Schema):
    """A card of the lease.

    Attributes:
        ordinal: its number as the management tool counts.
        identity: PCI address, UUID or slot.
        name: what the vendor calls it; on the cpu lane its core, and the slots that share it.
        memory_bytes: all of its memory.
    """

    ordinal: pydantic.NonNegativeInt
    identity: str
    name: str
    memory_bytes: pydantic.NonNegativeInt


class LeaseTerms(Schema):
    """What a campaign asks of the cards and of the disks of its lane.

    Attributes:
        card: what every leased card is called; None for any.
        storage: what may hold models, evidence and temporary files; None for anything.
    """

    card: str | None = None
    storage: StorageRule | None = None


class LeaseStart(Schema):
    """``lease.json``: written before the first look.

    Attributes:
        token: what everything bears that runs under the lease.
        cards: in the order in which ``--cards`` names them: the order of the ranks.
        inherited_masks: the caller's own choice of cards, by variable; the request was intersected with it.
        environment: the variables that show a process these cards and no others.
        cores: the processor cores that everything runs on; empty for all.
        cleared: tokens of stale leases whose cards were swept and found idle before this one.
        places: where evidence, temporary files and models lie; empty where the campaign asks for nothing.
    """

    file_schema: Annotated[Literal["pytest-laguna-leased-cards-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-leased-cards-v1"
    )
    lane: Lane
    token: Token
    cards: Annotated[list[LeasedCard], pydantic.Field(min_length=1)]
    inherited_masks: dict[str, str]
    environment: dict[str, str]
    cores: list[pydantic.NonNegativeInt]
    cleared: list[Token]
    places: list[Place] = pydantic.Field(default_factory=list)
