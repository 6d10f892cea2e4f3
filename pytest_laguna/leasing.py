# SPDX-License-Identifier: Apache-2.0
"""The cards of a device gate: chosen and leased before its attempt opens, given back when its session ends."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_laguna.campaign import Idle
from pytest_laguna.evidence import root
from pytest_laguna.machine import idle, leases
from pytest_laguna.machine.cards import Card, CardSource
from pytest_laguna.machine.cards_cpu import cores
from pytest_laguna.machine.choice import choose
from pytest_laguna.machine.environment import EnvironmentRefusedError, refuse_inherited
from pytest_laguna.machine.errors import CardError, LeaseError
from pytest_laguna.machine.sweep import sweep
from pytest_laguna.precondition import Gate
from pytest_laguna.verdict import UnusableEvidenceError

SWEEP_SECONDS = 30.0
"""How long what a lease left running may take to end after SIGKILL."""


@dataclasses.dataclass(frozen=True, slots=True)
class LeasedCards:
    """The cards of a session, for as long as it runs.

    Attributes:
        source: where they come from; knows how to look at them and how to show them to a process.
        lease: the hold on them, with the token that everything under it bears.
        idle: when the campaign counts them as idle.
    """

    source: CardSource
    lease: leases.Lease
    idle: Idle

    @property
    def cards(self) -> tuple[Card, ...]:
        """In the order in which ``--cards`` names them."""
        return self.lease.cards

    def environment(self) -> Mapping[str, str]:
        """The variables that show a process these cards and no others."""
        return self.source.environment(self.cards)

    def cores(self, cards: Sequence[Card]) -> frozenset[int]:
        """The processor cores of cards on the cpu lane; empty, which is no restriction, on the others."""
        return cores(cards) if self.source.lane == "cpu" else frozenset()

    def give_back(self) -> str | None:
        """End the lease; returns what was left on the cards, in words, in which case they are quarantined."""
        found = sweep(self.lease.token, seconds=SWEEP_SECONDS).found
        left = f"left running: {found[0]}" if found else None
        if left is None:
            look = idle.check(self.source, self.idle.memory_bytes)
            left = next((f"card {card}: {why}" for card in self.cards if (why := look(card)) is not None), None)
        if left is None:
            self.lease.release()
        else:
            self.lease.quarantine(left)
        return left


def take_cards(gate: Gate, attempt: int) -> LeasedCards:
    """Choose and lease the cards that ``--cards`` names.

    Args:
        gate: a device gate.
        attempt: the number of the attempt that they are for.

    Raises:
        pytest.UsageError: the environment holds runtime variables, or a card cannot be had; one line.
    """
    settings = gate.campaign.lanes[gate.lane]
    directory = root.attempt_directory(gate.lane_directory / f"gate{gate.options.gate}", attempt)
    try:
        refuse_inherited(os.environ, ["pytest", f"--gate={gate.options.gate}", "..."])
        source, cards = choose(gate.lane, gate.options.cards, os.environ)
        lease = leases.acquire(
            cards,
            Path(directory),
            sweep=functools.partial(sweep, seconds=SWEEP_SECONDS),
            idle=idle.check(source, settings.idle.memory_bytes),
        )
    except (EnvironmentRefusedError, CardError, LeaseError, UnusableEvidenceError) as error:
        raise pytest.UsageError(str(error)) from error
    return LeasedCards(source, lease, settings.idle)
