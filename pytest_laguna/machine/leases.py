# SPDX-License-Identifier: Apache-2.0
"""Exclusive leases of cards, held by the controller as kernel file locks: they end with it, however it ends.

A free lock on a record without a release is stale: its owner died, or gave the card up with something left on it. The
card is then quarantined until no process bears the old lease's token and the card is idle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

from pytest_laguna.evidence import files
from pytest_laguna.evidence.machine.idle import utc_now
from pytest_laguna.machine import descent, visibility
from pytest_laguna.machine.cards import Card
from pytest_laguna.machine.errors import LeaseError
from pytest_laguna.machine.lease_directory import REASON_LETTERS, LeaseDirectory, LeaseRecord, write
from pytest_laguna.machine.sweep import Sweep

Sweeper: TypeAlias = Callable[[str], Sweep]
"""Ends every bearer of a token; the lease is given only when nothing survives."""

Idle: TypeAlias = Callable[[Card], str | None]
"""Returns the reason why a card is not idle, or None."""


class Lease:
    """A hold on cards: ``release`` ends it after the proof that nothing is left; any other end quarantines.

    Attributes:
        cards: in the order asked for.
        token: 32 random hexadecimal digits, in the environment of everything under the lease.
        cleared: the stale records swept to give this lease.
    """

    def __init__(
        self,
        directory: LeaseDirectory,
        cards: Sequence[Card],
        locks: Sequence[int],
        records: Sequence[LeaseRecord],
        cleared: Sequence[LeaseRecord],
    ) -> None:
        self.cards: tuple[Card, ...] = tuple(cards)
        self.token: str = records[0].token
        self.cleared: tuple[LeaseRecord, ...] = tuple(cleared)
        self._directory = directory
        self._locks = list(locks)
        self._records = tuple(records)

    def release(self) -> None:
        """Release the cards: the next owner needs neither sweep nor proof.

        Raises:
            LeaseError: the lease has ended or was lost; cards still held are released all the same.
        """
        self._end("released", "")

    def quarantine(self, reason: str) -> None:
        """Give the cards up with something left on them; ``reason`` is one line, cut to ``REASON_LETTERS``.

        Raises:
            LeaseError: the lease has ended or was lost; cards still held are quarantined all the same.
        """
        self._end("quarantined", files.printable(reason)[:REASON_LETTERS])

    def check(self) -> None:
        """Confirm that nobody else can hold these cards: a lock protects nothing once its file is renamed or deleted.

        Raises:
            LeaseError: a lease file was deleted, replaced or rewritten; the line names the card.
        """
        for descriptor, record in zip(self._locks, self._records, strict=True):
            self._check(descriptor, record)

    def _check(self, descriptor: int, record: LeaseRecord) -> None:
        identity, path = record.identity, self._directory.path
        if not self._directory.keeps(identity, descriptor) or self._directory.read(identity) != record:
            found = f"card {identity}: seen its lease in {path} deleted or replaced; expected this session's"
            remedy = "leave the files there alone while a gate runs, and run it again: another session may have used it"
            raise LeaseError(found, remedy)

    def _end(self, state: Literal["released", "quarantined"], reason: str) -> None:
        if not self._locks:
            subject = f"lease of {[card.identity for card in self.cards]}"
            raise LeaseError(f"{subject}: seen a second end; expected one", "end it once")
        lost: LeaseError | None = None
        try:
            for descriptor, record in zip(self._locks, self._records, strict=True):
                try:
                    self._check(descriptor, record)
                    write(descriptor, record.model_copy(update={"state": state, "reason": reason, "ended": utc_now()}))
                except LeaseError as error:  # the other cards are still ours
                    lost = lost or error
        finally:
            while self._locks:
                os.close(self._locks.pop())
            self._directory.close()
        if lost is not None:
            raise lost

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._locks:
            self.quarantine("left without a release" if error is None else f"left by {type(error).__name__}: {error}")


def acquire(
    cards: Sequence[Card], attempt: Path, *, sweep: Sweeper, idle: Idle, directory: Path | None = None
) -> Lease:
    """Lease all of these cards or none, in the order of their identities, so that no two sessions wait for each other.

    Raises:
        LeaseError: a card is leased, or stale and not clean, or other users' processes are hidden; the line names the
            owner and a remedy.
    """
    _check_sight()
    if not cards or len(set(cards)) != len(cards):
        seen = [card.identity for card in cards]
        raise LeaseError(f"cards: seen {seen}; expected one or more, each once", "name each card once")
    place = LeaseDirectory(directory)
    with contextlib.ExitStack() as undo:
        undo.callback(place.close)
        ordered = sorted(cards, key=lambda card: card.identity)
        locks = []
        for card in ordered:
            locks.append(_lock(place, card))
            undo.callback(os.close, locks[-1])
        stale = _clear(place, ordered, sweep, idle)
        records = _records(ordered, attempt)
        for descriptor, record in zip(locks, records, strict=True):
            write(descriptor, record)
            undo.callback(write, descriptor, record.model_copy(update={"state": "released", "ended": record.taken}))
        undo.pop_all()
    return Lease(place, cards, locks, records, stale)


def _check_sight() -> None:
    """Refuse a hidden process table: processes left by a stale lease could be neither seen nor ended."""
    option = visibility.hidden_by()
    if option is not None:
        found = f"/proc: seen the mount option {option}, which hides other users' processes; expected all visible"
        raise LeaseError(found, "mount -o remount,hidepid=0 /proc, or run as root")


def _lock(place: LeaseDirectory, card: Card) -> int:
    descriptor = place.lock(card.identity)
    if descriptor is None:
        record = place.read(card.identity)
        owner = str(record) if record is not None and _owner_lives(record) else "by a session that is taking it now"
        found = f"card {card}: seen leased, {owner}; expected free"
        raise LeaseError(found, "wait for that session, or choose other --cards")
    return descriptor


def _owner_lives(record: LeaseRecord) -> bool:
    """True if the recorded holder is alive; beside a taken lock the record may be the previous lease's."""
    owner = descent.find(record.owner_pid)
    there = owner is not None and owner.start_ticks == record.owner_start_ticks
    return record.state == "held" and there and record.boot == visibility.boot_id()


def _clear(place: LeaseDirectory, cards: Sequence[Card], sweep: Sweeper, idle: Idle) -> list[LeaseRecord]:
    """Sweep stale leases and return those of ``cards``; their records stay until the new lease's replace them.

    All cards' stale leases are swept: a process left on any card disturbs a measurement.
    """
    found = [(card, place.read(card.identity)) for card in cards]
    stale = [(card, record) for card, record in found if record is not None and record.state != "released"]
    with contextlib.ExitStack() as shared:
        others, live = _others(place, {card.identity for card in cards}, shared)
        all_stale = [record for _, record in stale] + others
        _check_owners(place, all_stale)
        _sweep_all(_of_this_start(place, all_stale), live, sweep)
    for card, record in stale:
        reason = idle(card)
        if reason is not None:
            raise LeaseError(f"card {card} is quarantined, last {record}: {reason}", "end what is left on it")
    return [record for _, record in stale]


def _check_owners(place: LeaseDirectory, stale: Sequence[LeaseRecord]) -> None:
    """Refuse a record whose owner lives: an editor's new file has a free lock beside a live lease."""
    for record in stale:
        if _owner_lives(record):
            owner = record.owner_pid
            subject = f"card {record.identity}: seen its lease in {place.path} replaced while process {owner} holds it"
            found = f"{subject}; expected the file in place"
            raise LeaseError(found, "leave the files there alone; wait until that process has ended")


def _of_this_start(place: LeaseDirectory, stale: Sequence[LeaseRecord]) -> list[LeaseRecord]:
    """Stale records since the host's last start: no process outlives it.

    Raises:
        LeaseError: a record is from another pid namespace, whose processes are invisible here.
    """
    started, here = visibility.boot_id(), visibility.pid_namespace()
    recent = [record for record in stale if record.boot == started]
    for record in recent:
        if here not in {record.pid_namespace, visibility.INITIAL_NAMESPACE}:
            there = record.pid_namespace or "an unknown one"
            subject = f"card {record.identity} is quarantined: seen its last lease in {there}"
            found = f"{subject}; expected one whose processes {here} shows"
            mend = f"start a gate there or on the host, or see that nothing is left and delete its file in {place.path}"
            raise LeaseError(found, mend)
    return recent


def _others(
    place: LeaseDirectory, own: Collection[str], shared: contextlib.ExitStack
) -> tuple[list[LeaseRecord], set[str]]:
    """Stale records of other cards, locked until ``shared`` ends, and the tokens of live leases."""
    stale: list[LeaseRecord] = []
    live: set[str] = set()
    for identity in place.identities():
        if identity in own:
            continue
        # A damaged file keeps its own card from being leased; the doctor names it.
        with contextlib.suppress(LeaseError), contextlib.ExitStack() as looking:
            descriptor = place.share(identity)
            if descriptor is not None:
                looking.callback(os.close, descriptor)
            record = place.read(identity, patient=descriptor is None)
            if record is None:
                continue
            if descriptor is None and _owner_lives(record):
                live.add(record.token)
            if descriptor is not None and record.state != "released":
                stale.append(record)
                shared.push(looking.pop_all())
    return stale, live


def _sweep_all(stale: Sequence[LeaseRecord], live: Collection[str], sweep: Sweeper) -> None:
    """End the bearers of stale records' tokens, and never a live lease's."""
    for token in sorted({record.token for record in stale}):
        quarantined = [record.identity for record in stale if record.token == token]
        if token in live:
            what = f"cards {quarantined}: seen the token of a held lease in their last record; expected another"
            raise LeaseError(what, "see that no process is left on them, then delete their files there")
        survivors = sweep(token).survivors
        if survivors:
            left = survivors[0]
            subject = f"cards {quarantined} are quarantined"
            what = f"{subject}: seen process {left.pid} of their last lease alive ({left.command}); expected it ended"
            raise LeaseError(what, f"see /proc/{left.pid}; a process stuck in the kernel ends with the host")


def _records(cards: Sequence[Card], attempt: Path) -> list[LeaseRecord]:
    own = descent.find(os.getpid())
    if own is None:
        raise LeaseError(f"/proc/{os.getpid()}/stat: seen nothing; expected this process", "mount /proc")
    token = secrets.token_hex(descent.TOKEN_DIGITS // 2)
    boot_id = f"{visibility.boot_id()} {visibility.pid_namespace()}"
    return [
        LeaseRecord(
            identity=card.identity,
            state="held",
            reason="",
            token=token,
            attempt=str(attempt),
            owner_pid=own.pid,
            owner_start_ticks=own.start_ticks,
            boot_id=boot_id,
            taken=utc_now(),
            ended=None,
        )
        for card in cards
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseState:
    """A lease from outside its session: the last record, and ``held`` while its lock is taken."""

    record: LeaseRecord
    held: bool

    @property
    def stale(self) -> bool:
        """True if the card is quarantined until a sweep and an idle proof."""
        return not self.held and self.record.state != "released"


def states(directory: Path | None = None) -> list[LeaseState]:
    """Leases of every card ever leased here with a readable record, by identity.

    Raises:
        LeaseError: the directory is not as it should be.
    """
    with contextlib.closing(LeaseDirectory(directory)) as place:
        found = []
        for identity in place.identities():
            with contextlib.suppress(LeaseError):
                held = place.is_held(identity)
                found.append((place.read(identity), held))
    return [LeaseState(record, held) for record, held in found if record is not None]


def defects(directory: Path | None = None) -> list[LeaseError]:
    """Reasons why cards cannot be leased until somebody deletes a damaged lease file, by identity.

    Raises:
        LeaseError: the directory is not as it should be.
    """
    with contextlib.closing(LeaseDirectory(directory)) as place:
        found = []
        for identity in place.identities():
            try:
                place.is_held(identity)
                place.read(identity)
            except LeaseError as error:
                found.append(error)
    return found


def strays(directory: Path | None = None) -> list[Path]:
    """Files among the leases named like one that can belong to no card.

    Raises:
        LeaseError: the directory is not as it should be.
    """
    with contextlib.closing(LeaseDirectory(directory)) as place:
        return place.strays()
