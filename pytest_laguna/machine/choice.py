# SPDX-License-Identifier: Apache-2.0
"""Turns ``--cards`` into the cards of a gate session: found, inside the inherited mask, and not in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_laguna.evidence.machine.card_masks import MASK
from pytest_laguna.machine import leases
from pytest_laguna.machine.cards import Card, CardSource, select
from pytest_laguna.machine.sources import card_source


def choose(
    lane: str, requested: Sequence[str], environment: Mapping[str, str], *, directory: Path | None = None
) -> tuple[CardSource, tuple[Card, ...]]:
    """Return a lane's card source and the requested cards, in the order of the request.

    Raises:
        CardError: a card is not found, not allowed or not free.
        LeaseError: the lease directory is not as it should be.
        UnusableEvidenceError: a tool's output has another form.
    """
    source = card_source(lane, [*requested, *environment.get(MASK["cpu"], "").split(",")])  # slots that a mask names
    cards = source.discover()
    inherited = source.inherited(cards, environment)
    chosen = select(cards, requested, inherited, {})
    return source, select(cards, requested, inherited, _busy(source, chosen, directory))


def _busy(source: CardSource, cards: Sequence[Card], directory: Path | None) -> dict[str, str]:
    """Reasons by identity for taken cards; the sweep before the next lease ends the holders on a stale one."""
    states = {state.record.identity: state for state in leases.states(directory)}
    busy = {}
    for card, state in zip(cards, source.observe(cards, None).states, strict=True):
        lease = states.get(card.identity)
        if lease is not None and lease.held:
            busy[card.identity] = f"leased, {lease.record}"
        elif state.holders and not (lease is not None and lease.stale):
            holder = state.holders[0]
            busy[card.identity] = f"held by process {holder.pid}: {holder.command}"
    return busy
