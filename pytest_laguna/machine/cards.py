# SPDX-License-Identifier: Apache-2.0
"""Cards, the interface of their sources, and the selection of requested cards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from pytest_laguna.evidence.machine.idle import CardState, Observer
from pytest_laguna.evidence.machine.leased_cards import SHORTEST_PREFIX
from pytest_laguna.evidence.values import Lane
from pytest_laguna.machine.errors import CardError

_LISTED = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """One physical accelerator; on the cpu lane one process slot.

    Attributes:
        lane: ``cpu``, ``cuda`` or ``xpu``.
        ordinal: the management tool's number; for display and requests, never an identity.
        identity: PCI address, UUID or slot; the key of the lease.
        name: the vendor's; on the cpu lane the core of the slot.
        memory_bytes: total.
    """

    lane: Lane
    ordinal: int
    identity: str
    name: str
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.ordinal} = {self.identity} ({self.name})"


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """States of cards in the order asked for, and the observing tool if it is a process."""

    states: tuple[CardState, ...]
    observer: Observer | None


class CardSource(Protocol):
    """The cards of one vendor; no method creates a device context in this process."""

    @property
    def lane(self) -> Lane:
        """The lane of these cards."""

    def discover(self) -> tuple[Card, ...]:
        """Every card of the host by rising ordinal, whatever this process's mask says.

        Raises:
            CardError: they cannot be found; the line names a command to fix it.
        """

    def observe(self, cards: Sequence[Card], token: str | None) -> Observation:
        """Read the holders and the memory of cards; ``token`` marks the lease's own processes.

        Raises:
            CardError: the cards cannot be observed.
            UnusableEvidenceError: a tool's output has another form.
        """

    def inherited(self, cards: Sequence[Card], environment: Mapping[str, str]) -> tuple[Card, ...]:
        """The cards left by a mask in this process's environment; all of them without one.

        Raises:
            CardError: the mask cannot be mapped to cards without a doubt.
        """


def select(
    cards: Sequence[Card], requested: Sequence[str], inherited: Sequence[Card], busy: Mapping[str, str]
) -> tuple[Card, ...]:
    """Return the requested cards in their order: an ordinal outside the inherited mask is refused, not shifted.

    A request is an ordinal, an identity, or a prefix of one with at least ``SHORTEST_PREFIX`` characters; ``inherited``
    are the cards that the caller's mask leaves, and ``busy`` has the reasons for taken ones by identity.

    Raises:
        CardError: a card is unknown, ambiguous, named twice, outside the mask, or busy, or none is requested.
    """
    there = _listed(cards)
    if not requested:
        raise CardError("--cards: seen none; expected at least one card", f"choose from {_choice(cards)}")
    chosen: list[Card] = []
    for entry in requested:
        card = find(cards, entry, "--cards")
        if card in chosen:
            found = f"--cards: seen card {card.identity} a second time, as {entry}; expected each once"
            raise CardError(found, f"choose from {there}")
        if card not in inherited:
            found = f"--cards: seen {card} outside the inherited mask; expected one of {_listed(inherited)}"
            raise CardError(found, f"choose from these, or change the mask: the host has {there}")
        if card.identity in busy:
            found = f"--cards: seen {card} busy ({busy[card.identity]}); expected a free card"
            raise CardError(found, f"wait, or choose from {_choice(cards)}")
        chosen.append(card)
    return tuple(chosen)


def find(cards: Sequence[Card], entry: str, where: str) -> Card:
    """Return the one card named by an ordinal, an identity or a long enough prefix; ``where`` is an error's subject.

    Raises:
        CardError: no card, or more than one, goes by that name.
    """
    folded = entry.casefold()
    matches = [card for card in cards if folded in {str(card.ordinal), card.identity.casefold()}]
    if not matches and len(entry) >= SHORTEST_PREFIX:
        matches = [card for card in cards if card.identity.casefold().startswith(folded)]
    if len(matches) > 1:
        found = f"{where}: seen {entry}, which fits {_listed(matches)}; expected one card"
        raise CardError(found, "give more of its identity")
    if not matches:
        raise CardError(f"{where}: seen {entry or 'an empty entry'}; expected a card", f"choose from {_choice(cards)}")
    return matches[0]


def _choice(cards: Sequence[Card]) -> str:
    """Cards that a request may name: more process slots than are shown, since slots share cores."""
    others = ", or a higher number, a slot that shares these cores" if cards and cards[0].lane == "cpu" else ""
    return f"{_listed(cards)}{others}"


def _listed(cards: Sequence[Card]) -> str:
    """Cards for one line; the first of hundreds of process slots stand for all."""
    more = [f"and {len(cards) - _LISTED} more"] if len(cards) > _LISTED else []
    return ", ".join([*map(str, cards[:_LISTED]), *more]) or "no cards"
