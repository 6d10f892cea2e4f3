# SPDX-License-Identifier: Apache-2.0
"""Rules over the machine's side of a device gate: cards idle before and after, nothing left, the host within limits.

These findings belong to the session and not to a clause: they count whatever its tests say.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_laguna.analysis.findings import Finding
from pytest_laguna.analysis.machine.host import judge_host
from pytest_laguna.analysis.machine.idle import judge_idle
from pytest_laguna.analysis.machine.process import judge_cleanliness
from pytest_laguna.evidence.journal import Event
from pytest_laguna.evidence.machine.card_masks import showing
from pytest_laguna.evidence.machine.host import HostLimits
from pytest_laguna.evidence.machine.idle import IdleRecord, IdleRequirement, seconds_between
from pytest_laguna.evidence.machine.leased_cards import (
    IDLE_AFTER,
    IDLE_BEFORE,
    LEASE,
    SHORTEST_PREFIX,
    LeasedCard,
    LeaseStart,
    LeaseTerms,
)
from pytest_laguna.evidence.machine.placement import misplaced
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.machine.reader import MachineEvidence
from pytest_laguna.evidence.reading import Missing, whole
from pytest_laguna.evidence.schemas import AttemptStart
from pytest_laguna.verdict import Verdict

ALWAYS_PLACED = frozenset({"evidence", "temporary"})
"""Purposes of the places written by every device gate; models made by a campaign are temporary files."""


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """An attempt's lane, its cards as named by ``--cards``, and its times by the journal.

    Attributes:
        opened: opening of the attempt, before the first snapshot; None if the journal is empty.
        tests: start of the first test and end of the last phase; None if no test started.
        ended: end of the session, after the last snapshot; None if it has none.
    """

    lane: str
    cards: Sequence[str]
    opened: str | None
    tests: tuple[str, str] | None
    ended: str | None

    @classmethod
    def of(cls, start: AttemptStart, events: Sequence[Event]) -> Session:
        """Read the session of an attempt from ``attempt.json`` and its journal."""
        tests = [event.time for event in events if event.kind in {"test-started", "phase"}]
        ends = [event.time for event in events if event.kind == "session-finished"]
        within = (tests[0], tests[-1]) if tests else None
        opened = events[0].time if events else None
        return cls(start.lane, start.cards, opened, within, ends[-1] if ends else None)


def judge_machine(
    evidence: MachineEvidence,
    idle: IdleRequirement,
    host: HostLimits,
    session: Session,
    terms: LeaseTerms | None = None,
) -> list[Finding]:
    """Return all findings about an attempt's machine; UnusableEvidenceError for malformed tool output."""
    found = [*_judge_lease(evidence, idle, session)]
    if not isinstance(evidence.lease, Missing) and terms is not None:
        found += [*_judge_terms(evidence.lease, terms)]
    around = (evidence.lease, evidence.before, evidence.after)
    found += _damaged(*around, *evidence.processes.values(), *evidence.audits.values())
    found += _ended(evidence.processes)
    for path, audit in whole(evidence.audits).items():
        found += _unless_passed(path, judge_host(audit, host))
    return found


def judge_processes(processes: Mapping[str, ProcessRecord | Missing]) -> list[Finding]:
    """Return the findings about the processes of a gate, unusable records first."""
    return [*_damaged(*processes.values()), *_ended(processes)]


def _damaged(*pieces: object) -> list[Finding]:
    missing = [piece for piece in pieces if isinstance(piece, Missing)]
    return [(piece.verdict, piece.reason) for piece in missing if piece.verdict is Verdict.VOID]


def _ended(processes: Mapping[str, ProcessRecord | Missing]) -> list[Finding]:
    found = [_unless_passed(path, judge_cleanliness(process)) for path, process in whole(processes).items()]
    return [finding for findings in found for finding in findings]


def judge_records(recorded: Mapping[str, str], digest: Callable[[str], str | None]) -> list[Finding]:
    """Rule ``records-as-written``: every file has its journal's SHA-256; ``digest`` returns None for a missing one."""
    found = {path: digest(path) for path in recorded}
    seen = {path: "missing" if found[path] is None else "replaced" for path in recorded}
    return [
        (Verdict.VOID, f"{path}: records-as-written: seen {seen[path]}; expected the file as recorded")
        for path, written in recorded.items()
        if found[path] != written
    ]


def _unless_passed(path: str, finding: Finding) -> list[Finding]:
    verdict, reason = finding
    return [] if verdict is Verdict.PASS else [(verdict, f"{path}: {reason}")]


def _judge_lease(evidence: MachineEvidence, idle: IdleRequirement, session: Session) -> Iterator[Finding]:
    """Rule ``lease-recorded``: the lease is recorded, with the idle records of its cards before and after it."""
    if isinstance(evidence.lease, Missing):
        yield Verdict.NOT_PROVEN, f"{LEASE}: lease-recorded: seen none; expected a lease"
        return
    yield from _judge_start(evidence.lease, session)
    leased = (evidence.lease.token, [card.identity for card in evidence.lease.cards], evidence.lease.lane)
    for name, phase, record in ((IDLE_BEFORE, "before", evidence.before), (IDLE_AFTER, "after", evidence.after)):
        if isinstance(record, Missing):
            expected = f"expected the state of the cards {phase} the lease"
            yield Verdict.NOT_PROVEN, f"{name}: lease-recorded: seen none; {expected}"
        elif (record.token, record.cards, record.lane) != leased or record.phase != phase:
            seen = (record.token, record.cards, record.lane, record.phase)
            told = f"seen token, cards, lane and phase {seen}; expected {(*leased, phase)}"
            yield Verdict.VOID, f"{name}: lease-recorded: {told}"
        else:
            yield from _unless_passed(name, judge_idle(record, idle))
            yield from _judge_times(name, record, session)


def _judge_start(lease: LeaseStart, session: Session) -> Iterator[Finding]:
    """Rule ``lease-of-this-session``: lane and cards of the lease are those of the session, in order."""
    if lease.lane != session.lane:
        yield Verdict.VOID, f"{LEASE}: lease-of-this-session: seen lane {lease.lane}; expected {session.lane}"
        return
    named = len(lease.cards) == len(session.cards) and all(map(_names, session.cards, lease.cards))
    if named:
        yield from _judge_view(lease)
    else:
        cards = [f"{card.ordinal} ({card.identity})" for card in lease.cards]
        expected = f"expected those of --cards={','.join(session.cards)}"
        yield Verdict.VOID, f"{LEASE}: lease-of-this-session: seen cards {cards}; {expected}"


def _judge_view(lease: LeaseStart) -> Iterator[Finding]:
    """Rule ``shows-its-cards``: the environment shows the lease's cards alone; the cpu lane has their cores."""
    shown = showing(lease.lane, lease.cards)
    if lease.environment != shown:
        expected = f"expected {shown}"
        yield Verdict.VOID, f"{LEASE}: shows-its-cards: seen environment {lease.environment}; {expected}"
    names = (re.match(r"core (\d+)\b", card.name) for card in lease.cards)
    cores = sorted({int(name[1]) for name in names if name is not None}) if lease.lane == "cpu" else []
    if lease.cores != cores:
        yield Verdict.VOID, f"{LEASE}: shows-its-cards: seen cores {lease.cores}; expected {cores}"


def _judge_terms(lease: LeaseStart, terms: LeaseTerms) -> Iterator[Finding]:
    """Rules ``card-named`` and ``storage-internal``: the campaign's kind of card, and its kind of disks."""
    for card in lease.cards:
        if terms.card is not None and card.name != terms.card:
            told = f"seen card {card.identity} named {card.name!r}; expected {terms.card!r}"
            yield Verdict.VOID, f"{LEASE}: card-named: {told}"
    if terms.storage is None:
        return
    missing = sorted(ALWAYS_PLACED - {place.purpose for place in lease.places})
    if missing:
        yield Verdict.NOT_PROVEN, f"{LEASE}: storage-internal: seen no place of {missing[0]}; expected one"
    for place in lease.places:
        reason = misplaced(place, terms.storage)
        if reason is not None:
            yield Verdict.VOID, f"{LEASE}: storage-internal: {reason}"


def _names(entry: str, card: LeasedCard) -> bool:
    """True if an entry of ``--cards`` is a card's ordinal, its identity or a long enough prefix of the identity."""
    named, identity = entry.casefold(), card.identity.casefold()
    prefix = len(named) >= SHORTEST_PREFIX and identity.startswith(named)
    return named in {str(card.ordinal), identity} or prefix


def _judge_times(name: str, record: IdleRecord, session: Session) -> Iterator[Finding]:
    """Rule ``looks-around-the-tests``: snapshots lie between opening and tests, or tests and end, by the journal."""
    times = [snapshot.utc for snapshot in record.snapshots]
    first_test, last_test = session.tests or (None, None)
    earliest, latest = (session.opened, first_test) if record.phase == "before" else (last_test, session.ended)
    for utc in times:
        early = earliest is not None and seconds_between(earliest, utc) < 0
        late = latest is not None and seconds_between(utc, latest) < 0
        if early or late:
            expected = f"expected {record.phase} the tests, between {earliest} and {latest} of the journal"
            yield Verdict.VOID, f"{name}: looks-around-the-tests: seen a snapshot at {utc}; {expected}"
            return
