# SPDX-License-Identifier: Apache-2.0
"""Cards: what one is, what a source of them must do, and how a request is turned into cards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from pytest_laguna.evidence.idle import CardState, Observer
from pytest_laguna.evidence.leased_cards import SHORTEST_PREFIX
from pytest_laguna.evidence.values import Lane
from pytest_laguna.machine.errors import CardError

_LISTED = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """One physical accelerator; on the cpu lane one process slot.

    Attributes:
        lane: ``cpu``, ``cuda`` or ``xpu``.
        ordinal: its number as the management tool counts; for display and requests, never an identity.
        identity: PCI address, UUID or slot; the lease is keyed by it.
        name: what the vendor calls it, and on the cpu lane which core it is pinned to.
        memory_bytes: all of its memory.
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
    """One look at cards: their states in the order asked for, and the tool that looked, where it is a process."""

    states: tuple[CardState, ...]
    observer: Observer | None


class CardSource(Protocol):
    """The cards of one vendor. Nothing here creates a device context in this process."""

    @property
    def lane(self) -> Lane:
        """Where these cards are."""

    def discover(self) -> tuple[Card, ...]:
        """Every card of the host, whatever this process's mask says, by rising ordinal.

        Raises:
            CardError: they cannot be found; the line names the command that mends it.
        """

    def observe(self, cards: Sequence[Card], token: str | None) -> Observation:
        """Look at the holders and the memory of cards; ``token`` is the lease's, to know its processes by.

        Raises:
            CardError: the cards cannot be looked at.
            UnusableEvidenceError: a tool printed what it never should.
        """

    def inherited(self, cards: Sequence[Card], environment: Mapping[str, str]) -> tuple[Card, ...]:
        """The cards that a mask in this process's environment leaves; all of them without one.

        Raises:
            CardError: the mask cannot be mapped to cards without a doubt.
        """


def select(
    cards: Sequence[Card],
    requested: Sequence[str],
    inherited: Sequence[Card],
    busy: Mapping[str, str],
) -> tuple[Card, ...]:
    """Turn a request into cards, never renumbered: an ordinal outside the inherited mask is refused, not shifted.

    Args:
        cards: every card of the host.
        requested: ordinals, identities, or prefixes of identities with at least ``SHORTEST_PREFIX`` characters.
        inherited: what the caller's mask leaves.
        busy: by identity why a card cannot be had.

    Returns:
        The cards in the order of the request.

    Raises:
        CardError: a card is unknown, ambiguous, named twice, outside the mask, or busy, or none is requested.
    """
    there = _listed(cards)
    if not requested:
        raise CardError("--cards: expected at least one card, saw none", f"choose of {_choice(cards)}")
    chosen: list[Card] = []
    for entry in requested:
        card = find(cards, entry, "--cards")
        if card in chosen:
            raise CardError(f"--cards: {entry} names card {card.identity} a second time", f"name each once of {there}")
        if card not in inherited:
            left = _listed(inherited)
            raise CardError(f"--cards: {card} is outside the inherited mask, which leaves {left}", f"there are {there}")
        if card.identity in busy:
            raise CardError(f"--cards: {card} is busy: {busy[card.identity]}", f"wait, or choose of {_choice(cards)}")
        chosen.append(card)
    return tuple(chosen)


def find(cards: Sequence[Card], entry: str, where: str) -> Card:
    """The one card that an ordinal, an identity or a long enough prefix of one names.

    Args:
        cards: every card of the host.
        entry: as written.
        where: the option or variable it stands in; an error begins with it.

    Raises:
        CardError: no card, or more than one, goes by that name.
    """
    folded = entry.casefold()
    matches = [card for card in cards if folded in {str(card.ordinal), card.identity.casefold()}]
    if not matches and len(entry) >= SHORTEST_PREFIX:
        matches = [card for card in cards if card.identity.casefold().startswith(folded)]
    if len(matches) > 1:
        raise CardError(f"{where}: {entry} is ambiguous", f"give more of the identity of {_listed(matches)}")
    if not matches:
        raise CardError(f"{where}: {entry or 'an empty entry'} is unknown", f"choose of {_choice(cards)}")
    return matches[0]


def _choice(cards: Sequence[Card]) -> str:
    """What a request may name: of process slots there are more than are shown, since they share cores."""
    others = ", or of higher numbers, slots that share these cores" if cards and cards[0].lane == "cpu" else ""
    return f"{_listed(cards)}{others}"


def _listed(cards: Sequence[Card]) -> str:
    """Cards for a line; of hundreds of process slots the first ones stand for all."""
    more = [f"and {len(cards) - _LISTED} more"] if len(cards) > _LISTED else []
    return ", ".join([*map(str, cards[:_LISTED]), *more]) or "no cards"
