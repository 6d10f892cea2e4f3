# SPDX-License-Identifier: Apache-2.0
"""From ``--cards`` to the cards of a gate session: found, inside the inherited mask, and not in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_laguna.evidence.card_masks import MASK
from pytest_laguna.machine import leases
from pytest_laguna.machine.cards import Card, CardSource, select
from pytest_laguna.machine.sources import card_source


def choose(
    lane: str, requested: Sequence[str], environment: Mapping[str, str], *, directory: Path | None = None
) -> tuple[CardSource, tuple[Card, ...]]:
    """The source of a lane and the cards that were asked for, in that order.

    Args:
        lane: ``cpu``, ``cuda`` or ``xpu``.
        requested: the entries of ``--cards``.
        environment: this process's, for the mask in it.
        directory: where leases live; the default is the machine's place.

    Raises:
        CardError: they cannot be found or are not all to be had.
        LeaseError: the lease directory is not as it should be.
        UnusableEvidenceError: a tool printed what it never should.
    """
    source = card_source(lane, [*requested, *environment.get(MASK["cpu"], "").split(",")])  # slots that a mask names
    cards = source.discover()
    inherited = source.inherited(cards, environment)
    chosen = select(cards, requested, inherited, {})
    return source, select(cards, requested, inherited, _busy(source, chosen, directory))


def _busy(source: CardSource, cards: Sequence[Card], directory: Path | None) -> dict[str, str]:
    """Why cards cannot be had. What is on a card with a stale lease is left to the sweep before the next lease."""
    states = {state.record.identity: state for state in leases.states(directory)}
    busy = {}
    for card, state in zip(cards, source.observe(cards, None).states, strict=True):
        lease = states.get(card.identity)
        if lease is not None and lease.held:
            busy[card.identity] = f"leased, {lease.record}"
        elif state.holders and not (lease is not None and lease.stale):
            holder = state.holders[0]
            busy[card.identity] = f"process {holder.pid} holds it: {holder.command}"
    return busy
