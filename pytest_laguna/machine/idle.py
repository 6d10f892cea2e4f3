# SPDX-License-Identifier: Apache-2.0
"""Looks at leased cards before and after a lease and records what is seen; ``analysis.idle`` judges it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from pytest_laguna.evidence.idle import (
    IdleRecord,
    IdleRequirement,
    MemoryPoint,
    Snapshot,
    seconds_between,
    utc_now,
)
from pytest_laguna.machine import process_table
from pytest_laguna.machine.cards import Card, CardSource
from pytest_laguna.machine.errors import CardError
from pytest_laguna.machine.leases import Idle
from pytest_laguna.verdict import NotProvenError

POLL_SECONDS = 0.25

CLOCK_SECONDS = 1.0
"""How much longer than its time a series of looks may take because two clocks differ."""


def take_record(  # noqa: PLR0913 - each is a fact of its own
    source: CardSource,
    cards: Sequence[Card],
    *,
    phase: Literal["before", "after"],
    token: str,
    requirement: IdleRequirement,
    settle_seconds: float,
) -> IdleRecord:
    """Wait for the cards' memory to come back, then take the looks that a campaign requires.

    Args:
        source: of the cards.
        cards: the leased ones.
        phase: before the first arm, or after the last.
        token: the lease's.
        requirement: how many looks over how long, and what memory is the baseline.
        settle_seconds: how long memory may take to come back; the looks are taken in any case.

    Raises:
        NotProvenError: the cards cannot be looked at: without telemetry nothing is proven.
    """
    try:
        settling = settle(source, cards, token, requirement.memory_bytes, settle_seconds)
        snapshots = _looks(source, cards, token, requirement)
    except CardError as error:
        raise NotProvenError(str(error)) from error
    return IdleRecord(
        phase=phase,
        lane=source.lane,
        token=token,
        cards=[card.identity for card in cards],
        settling=settling,
        snapshots=snapshots,
    )


def settle(
    source: CardSource, cards: Sequence[Card], token: str, memory_bytes: int, deadline_seconds: float
) -> list[MemoryPoint]:
    """The curve of the cards' memory until all are at the baseline, one cannot be read, or the time is over.

    Memory comes back seconds after the process that held it is gone.

    Raises:
        CardError: the cards cannot be looked at.
    """
    start = time.monotonic()
    curve: list[MemoryPoint] = []
    while True:
        states = source.observe(cards, token).states
        seconds = time.monotonic() - start
        used = [state.memory_used_bytes for state in states]
        curve.append(MemoryPoint(seconds=seconds, used_bytes=used))
        known = [value for value in used if value is not None]
        if len(known) < len(used) or max(known) <= memory_bytes or seconds >= deadline_seconds:
            return curve
        time.sleep(POLL_SECONDS)


def look(source: CardSource, cards: Sequence[Card], token: str) -> Snapshot:
    """One look at the cards and at the processes of the host.

    Raises:
        CardError: the cards cannot be looked at.
    """
    utc = utc_now()
    seen = source.observe(cards, token)
    workers = process_table.find_workers(token)
    return Snapshot(utc=utc, cards=list(seen.states), observer=seen.observer, workers=workers)


def _looks(source: CardSource, cards: Sequence[Card], token: str, requirement: IdleRequirement) -> list[Snapshot]:
    """Evenly spread; the clock of the evidence decides whether they cover the time, so there may be one more.

    A clock that was set back covers no time for as long as it was set back: the monotonic one ends the looks.
    """
    pause = requirement.seconds / max(requirement.snapshots - 1, 1)
    start = time.monotonic()
    end = start + requirement.seconds + max(pause, CLOCK_SECONDS)
    taken = [look(source, cards, token)]
    while len(taken) < requirement.snapshots or (
        seconds_between(taken[0].utc, taken[-1].utc) < requirement.seconds and time.monotonic() < end
    ):
        time.sleep(max(0.001, start + pause * len(taken) - time.monotonic()))
        taken.append(look(source, cards, token))
    return taken


def check(source: CardSource, memory_bytes: int) -> Idle:
    """One quick look, for a card whose last lease was not released.

    Args:
        source: of the card.
        memory_bytes: the most that an idle card shows.

    Returns:
        A function from a card to why it is not idle, or to None when it is.
    """

    def why_not(card: Card) -> str | None:
        try:
            state = source.observe([card], None).states[0]
        except CardError as error:
            return str(error)
        if state.holders:
            holder = state.holders[0]
            return f"process {holder.pid}, started at tick {holder.start_ticks}, holds it: {holder.command}"
        if state.memory_used_bytes is None:
            return "it shows no memory"
        if state.memory_used_bytes > memory_bytes:
            return f"it uses {state.memory_used_bytes} bytes, idle at most {memory_bytes}"
        return None

    return why_not
