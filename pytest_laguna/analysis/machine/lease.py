# SPDX-License-Identifier: Apache-2.0
"""What the machine's side of a device gate came to: cards idle before and after, nothing left, the host within limits.

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
"""What every device gate writes; models that a campaign makes itself are temporary files."""


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """What an attempt says of itself, into which its lease must fit; times are the journal's.

    Attributes:
        lane: where it ran.
        cards: the entries of ``--cards``.
        opened: when the attempt was opened, before the first look; None where the journal is empty.
        tests: when the first test started and the last phase of one ended; None when none did.
        ended: when the session came to its end, after the last look; None when it did not.
    """

    lane: str
    cards: Sequence[str]
    opened: str | None
    tests: tuple[str, str] | None
    ended: str | None

    @classmethod
    def of(cls, start: AttemptStart, events: Sequence[Event]) -> Session:
        """The session of an attempt, from ``attempt.json`` and its journal."""
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
    """Everything that speaks against the machine's side of an attempt; empty when nothing does.

    Raises:
        UnusableEvidenceError: the output of a management tool is not exactly of its form.
    """
    found = [*_judge_lease(evidence, idle, session)]
    if not isinstance(evidence.lease, Missing) and terms is not None:
        found += [*_judge_terms(evidence.lease, terms)]
    around = (evidence.lease, evidence.before, evidence.after)
    found += _damaged(*around, *evidence.processes.values(), *evidence.audits.values())
    found += _ended(evidence.processes)
    for path, audit in whole(evidence.audits).items():
        found += _against(path, judge_host(audit, host))
    return found


def judge_processes(processes: Mapping[str, ProcessRecord | Missing]) -> list[Finding]:
    """Findings of the processes that a gate ran: first the records that cannot be used."""
    return [*_damaged(*processes.values()), *_ended(processes)]


def _damaged(*pieces: object) -> list[Finding]:
    missing = [piece for piece in pieces if isinstance(piece, Missing)]
    return [(piece.verdict, piece.reason) for piece in missing if piece.verdict is Verdict.VOID]


def _ended(processes: Mapping[str, ProcessRecord | Missing]) -> list[Finding]:
    found = [_against(path, judge_cleanliness(process)) for path, process in whole(processes).items()]
    return [finding for findings in found for finding in findings]


def judge_records(recorded: Mapping[str, str], digest: Callable[[str], str | None]) -> list[Finding]:
    """Rule ``records-as-written``: what the harness recorded is what lies there.

    Args:
        recorded: SHA-256 by path, from the journal.
        digest: of the file of that path; None where there is none.
    """
    found = {path: digest(path) for path in recorded}
    seen = {path: "missing" if found[path] is None else "replaced" for path in recorded}
    return [
        (Verdict.VOID, f"{path}: records-as-written: {seen[path]}; expected what was recorded there")
        for path, written in recorded.items()
        if found[path] != written
    ]


def _against(path: str, finding: Finding) -> list[Finding]:
    verdict, reason = finding
    return [] if verdict is Verdict.PASS else [(verdict, f"{path}: {reason}")]


def _judge_lease(evidence: MachineEvidence, idle: IdleRequirement, session: Session) -> Iterator[Finding]:
    """Rule ``lease-recorded``: the lease is there, and looks at its cards before and after it."""
    if isinstance(evidence.lease, Missing):
        yield Verdict.NOT_PROVEN, f"{LEASE}: lease-recorded: no lease is recorded"
        return
    yield from _judge_start(evidence.lease, session)
    leased = (evidence.lease.token, [card.identity for card in evidence.lease.cards], evidence.lease.lane)
    for name, phase, record in ((IDLE_BEFORE, "before", evidence.before), (IDLE_AFTER, "after", evidence.after)):
        if isinstance(record, Missing):
            unproven = f"whether the cards were idle {phase} the lease is not proven"
            yield Verdict.NOT_PROVEN, f"{name}: lease-recorded: missing; {unproven}"
        elif (record.token, record.cards, record.lane) != leased or record.phase != phase:
            other = f"of another lease, other cards or another phase than {phase}"
            yield Verdict.VOID, f"{name}: lease-recorded: {other}"
        else:
            yield from _against(name, judge_idle(record, idle))
            yield from _judge_times(name, record, session)


def _judge_start(lease: LeaseStart, session: Session) -> Iterator[Finding]:
    """Rule ``lease-of-this-session``: on its lane, with the cards that ``--cards`` names, in that order."""
    if lease.lane != session.lane:
        yield Verdict.VOID, f"{LEASE}: lease-of-this-session: of lane {lease.lane}; expected {session.lane}"
        return
    named = len(lease.cards) == len(session.cards) and all(map(_names, session.cards, lease.cards))
    if named:
        yield from _judge_view(lease)
    else:
        cards = [f"{card.ordinal} ({card.identity})" for card in lease.cards]
        expected = f"expected those of --cards={','.join(session.cards)}"
        yield Verdict.VOID, f"{LEASE}: lease-of-this-session: of cards {cards}; {expected}"


def _judge_view(lease: LeaseStart) -> Iterator[Finding]:
    """Rule ``shows-its-cards``: what runs under it is shown its cards, and on the cpu lane runs on their cores."""
    shown = showing(lease.lane, lease.cards)
    if lease.environment != shown:
        expected = f"expected {shown}, which shows its cards"
        yield Verdict.VOID, f"{LEASE}: shows-its-cards: environment {lease.environment}; {expected}"
    names = (re.match(r"core (\d+)\b", card.name) for card in lease.cards)
    cores = sorted({int(name[1]) for name in names if name is not None}) if lease.lane == "cpu" else []
    if lease.cores != cores:
        yield Verdict.VOID, f"{LEASE}: shows-its-cards: cores {lease.cores}; expected {cores}, its cards'"


def _judge_terms(lease: LeaseStart, terms: LeaseTerms) -> Iterator[Finding]:
    """Rules ``card-named`` and ``storage-internal``: the campaign's kind of card, and its kind of disks."""
    for card in lease.cards:
        if terms.card is not None and card.name != terms.card:
            yield Verdict.VOID, f"{LEASE}: card-named: card {card.identity} is {card.name!r}; expected {terms.card!r}"
    if terms.storage is None:
        return
    missing = sorted(ALWAYS_PLACED - {place.purpose for place in lease.places})
    if missing:
        yield Verdict.NOT_PROVEN, f"{LEASE}: storage-internal: where {missing[0]} lies is not recorded"
    for place in lease.places:
        reason = misplaced(place, terms.storage)
        if reason is not None:
            yield Verdict.VOID, f"{LEASE}: storage-internal: {reason}"


def _names(entry: str, card: LeasedCard) -> bool:
    """Whether an entry of ``--cards`` names a card: its ordinal, its identity, or the beginning of it."""
    named, identity = entry.casefold(), card.identity.casefold()
    prefix = len(named) >= SHORTEST_PREFIX and identity.startswith(named)
    return named in {str(card.ordinal), identity} or prefix


def _judge_times(name: str, record: IdleRecord, session: Session) -> Iterator[Finding]:
    """Rule ``looks-around-the-tests``: taken between the attempt's opening, its tests and its end, by the journal."""
    looks = [snapshot.utc for snapshot in record.snapshots]
    first_test, last_test = session.tests or (None, None)
    earliest, latest = (session.opened, first_test) if record.phase == "before" else (last_test, session.ended)
    for utc in looks:
        early = earliest is not None and seconds_between(earliest, utc) < 0
        late = latest is not None and seconds_between(utc, latest) < 0
        if early or late:
            expected = f"expected {record.phase} the tests, between {earliest} and {latest} of the journal"
            yield Verdict.VOID, f"{name}: looks-around-the-tests: a look at {utc}; {expected}"
            return
