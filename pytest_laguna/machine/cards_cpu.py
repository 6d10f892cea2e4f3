# SPDX-License-Identifier: Apache-2.0
"""The cpu lane's cards: process slots, each pinned to one core.

A slot's holders are the processes whose environment names it in ``LAGUNA_CPU_CARDS``, and all bearers of the lease's
token, among them processes that wrote a title over their environment. Its memory is theirs. With more slots than cores,
slots share cores, and their names say so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pytest_laguna.evidence.machine.card_masks import MASK
from pytest_laguna.evidence.machine.idle import CardState
from pytest_laguna.evidence.values import Lane
from pytest_laguna.machine import descent, process_table
from pytest_laguna.machine.cards import Card, Observation, find
from pytest_laguna.machine.errors import CardError

MASK_VARIABLE = MASK["cpu"]
MOST_SLOTS = 1024

_KIBIBYTE = 1024
_SHOWN = 3


class CpuCards:
    """Process slots 0 to ``slots`` - 1; slot n runs on the n-th allowed core, counted round."""

    lane: ClassVar[Lane] = "cpu"

    def __init__(self, slots: int) -> None:
        """Accept any number of slots up to more than a host has cards.

        Raises:
            CardError: none, or more than ``MOST_SLOTS``.
        """
        if not 1 <= slots <= MOST_SLOTS:
            found = f"cpu: seen {slots} process slots; expected 1 to {MOST_SLOTS}"
            raise CardError(found, "choose cards by numbers from 0")
        self._slots = slots

    def discover(self) -> tuple[Card, ...]:
        """Return the slots with their cores; each has all of the host's memory."""
        memory = _total_memory()
        allowed = sorted(os.sched_getaffinity(0))
        return tuple(
            Card(self.lane, slot, f"cpu-slot-{slot}", self._name(slot, allowed), memory) for slot in range(self._slots)
        )

    def _name(self, slot: int, allowed: Sequence[int]) -> str:
        others = [other for other in range(self._slots) if other != slot and (other - slot) % len(allowed) == 0]
        core = f"core {allowed[slot % len(allowed)]}"
        if not others:
            return core
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        return f"{core}, shared with slot {', '.join(map(str, others[:_SHOWN]))}{more}"

    def observe(self, cards: Sequence[Card], token: str | None) -> Observation:
        """Find the processes in the slots."""
        own = descent.ancestors(os.getpid())
        of_lease = process_table.bearers(token) - own
        slots = {
            process.pid: process_table.environment(process.pid).get(MASK_VARIABLE, "").split(",")
            for process in descent.live_processes()
            if process.pid not in own
        }
        return Observation(tuple(_state(card, slots, of_lease) for card in cards), None)

    def inherited(self, cards: Sequence[Card], environment: Mapping[str, str]) -> tuple[Card, ...]:
        """Return the slots left by the caller's own slot mask."""
        if MASK_VARIABLE not in environment:
            return tuple(cards)
        entries = [entry for entry in environment[MASK_VARIABLE].split(",") if entry]
        return tuple(find(cards, entry, MASK_VARIABLE) for entry in entries)


def cores(cards: Sequence[Card]) -> frozenset[int]:
    """Cores of a lease of these slots, to be set on the process before its exec."""
    allowed = sorted(os.sched_getaffinity(0))
    return frozenset(allowed[card.ordinal % len(allowed)] for card in cards)


def _state(card: Card, slots: Mapping[int, Sequence[str]], of_lease: frozenset[int]) -> CardState:
    named = {pid for pid, numbers in slots.items() if str(card.ordinal) in numbers}
    holders = [
        process_table.see(pid, MASK_VARIABLE if pid in named else process_table.LEASE_TOKEN, of_lease)
        for pid in sorted(named | of_lease)
    ]
    alive = [process for holder in holders if (process := descent.find(holder.pid)) is not None]
    return CardState(
        identity=card.identity,
        ordinal=card.ordinal,
        memory_used_bytes=descent.memory_bytes(alive),
        utilisation_percent=None,
        # A process that has ended since holds nothing.
        holders=[holder for holder in holders if holder.start_ticks is not None],
    )


def _total_memory() -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise CardError("/proc/meminfo: seen no line MemTotal; expected one", "mount /proc")
    return int(found[1]) * _KIBIBYTE
