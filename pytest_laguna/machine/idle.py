# SPDX-License-Identifier: Apache-2.0
"""Takes snapshots of leased cards before and after a lease; ``analysis.idle`` judges them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from pytest_laguna.evidence.machine.idle import (
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
"""Extra time for a series of snapshots, because two clocks differ."""


def take_record(  # noqa: PLR0913 - each is a fact of its own
    source: CardSource,
    cards: Sequence[Card],
    *,
    phase: Literal["before", "after"],
    token: str,
    requirement: IdleRequirement,
    settle_seconds: float,
) -> IdleRecord:
    """Wait for the cards' memory to return, then take the snapshots of a campaign's idle requirement.

    They are taken even if memory has not returned after ``settle_seconds``. ``token`` is the lease's.

    Raises:
        NotProvenError: the cards cannot be observed: without telemetry nothing is proven.
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
    """Record the cards' memory until all are at the baseline, one cannot be read, or the time is over.

    Memory returns seconds after its process has ended.

    Raises:
        CardError: the cards cannot be observed.
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
    """Take one snapshot of the cards and of the host's processes.

    Raises:
        CardError: the cards cannot be observed.
    """
    utc = utc_now()
    seen = source.observe(cards, token)
    workers = process_table.find_workers(token)
    return Snapshot(utc=utc, cards=list(seen.states), observer=seen.observer, workers=workers)


def _looks(source: CardSource, cards: Sequence[Card], token: str, requirement: IdleRequirement) -> list[Snapshot]:
    """Take evenly spread snapshots; there may be one more, because the evidence's clock decides if they cover the time.

    A clock set back would cover no time for that long: the monotonic clock ends the series.
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
    """Return a quick check, against a memory limit, for a card whose last lease was not released."""

    def why_not(card: Card) -> str | None:
        try:
            state = source.observe([card], None).states[0]
        except CardError as error:
            return str(error)
        if state.holders:
            holder = state.holders[0]
            process = f"process {holder.pid}, started at tick {holder.start_ticks}: {holder.command}"
            return f"seen a holder, {process}; expected none"
        if state.memory_used_bytes is None:
            return "seen no memory figure; expected one"
        if state.memory_used_bytes > memory_bytes:
            return f"seen {state.memory_used_bytes} bytes in use; expected at most {memory_bytes}"
        return None

    return why_not
