# SPDX-License-Identifier: Apache-2.0
"""Rules over the legs' surroundings: idle cards before and after each, and a host within its limits.

They apply to every leg, also to one without a record. The exact diagnostic has the same rules around its arms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_laguna.analysis.findings import Finding, decisive
from pytest_laguna.analysis.machine.host import judge_host
from pytest_laguna.analysis.machine.idle import judge_idle, judge_moments, looks
from pytest_laguna.evidence.endpoint.surroundings import LegSurroundings
from pytest_laguna.evidence.machine.host import HostLimits
from pytest_laguna.evidence.machine.idle import IdleRecord, IdleRequirement
from pytest_laguna.evidence.machine.leased_cards import LeaseStart
from pytest_laguna.evidence.reading import Missing
from pytest_laguna.verdict import Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """Evidence and limits of the surroundings of the legs, in the order of their numbers.

    ``leased`` holds the lease's snapshots before anything ran.
    """

    lease: LeaseStart
    leased: IdleRecord | Missing
    idle: IdleRequirement
    host: HostLimits
    legs: Sequence[LegSurroundings]


def cards_around_legs(seen: Surroundings) -> Finding | None:
    """Rule ``cards-around-legs``: before and after every leg the leased cards were idle, by snapshots of this lease."""
    if not seen.legs:
        return Verdict.NOT_PROVEN, "legs: seen none; expected the campaign's"
    expected = (seen.lease.lane, seen.lease.token, [card.identity for card in seen.lease.cards])
    found: list[Finding] = []
    for leg in seen.legs:
        for phase, record in (("before", leg.before), ("after", leg.after)):
            finding = _judge_record(record, phase, expected, seen.idle)
            if finding is not None:
                found.append((finding[0], f"{phase} {leg.name}: {finding[1]}"))
    return decisive(found)


def _judge_record(
    record: IdleRecord | Missing, phase: str, expected: tuple[str, str, list[str]], requirement: IdleRequirement
) -> Finding | None:
    if isinstance(record, Missing):
        return Verdict.NOT_PROVEN, "seen no snapshot of the cards; expected the campaign's"
    if record.phase != phase or (record.lane, record.token, record.cards) != expected:
        return Verdict.VOID, f"seen {record.cards} {record.phase} a run; expected the cards of this lease {phase} it"
    finding = judge_idle(record, requirement)
    return None if finding[0] is Verdict.PASS else finding


def looks_around_legs(seen: Surroundings) -> Finding | None:
    """Rule ``looks-around-legs``: snapshots and states of the host are in the order of the legs, each at its own.

    So none is a copy of another or from another leg.
    """
    return judge_moments([*_moments(seen)])


def _moments(seen: Surroundings) -> Iterator[tuple[str, str]]:
    """Moments in their required order, by name and time."""
    yield from looks("the first snapshots of the lease", seen.leased)
    for leg in seen.legs:
        yield from looks(f"before {leg.name}", leg.before)
        if leg.span is not None:
            yield f"{leg.name}, its begin", leg.span[0]
        if not isinstance(leg.host, Missing):
            yield f"{leg.name}, the host before", leg.host.before.utc
            yield f"{leg.name}, the host after", leg.host.after.utc
        yield from looks(f"after {leg.name}", leg.after)
        if leg.span is not None:
            yield f"{leg.name}, its end", leg.span[1]


def host_around_legs(seen: Surroundings) -> Finding | None:
    """Rule ``host-around-legs``: the host was within the campaign's limits around every server."""
    found: list[Finding] = []
    for leg in seen.legs:
        if not isinstance(leg.host, Missing):
            verdict, reason = judge_host(leg.host, seen.host)
            found += [] if verdict is Verdict.PASS else [(verdict, f"{leg.name}: {reason}")]
        elif leg.served:
            found.append((Verdict.NOT_PROVEN, f"{leg.name}: seen no record of the host; expected one around it"))
    return decisive(found)


SURROUNDINGS: Mapping[str, Callable[[Surroundings], Finding | None]] = {
    "cards-around-legs": cards_around_legs,
    "looks-around-legs": looks_around_legs,
    "host-around-legs": host_around_legs,
}
"""Rules of gate 3's clause ``cards-idle``."""


def judge_surroundings(seen: Surroundings) -> Finding | None:
    """Decisive finding over the legs' surroundings, or None."""
    found = {rule: check(seen) for rule, check in SURROUNDINGS.items()}
    return decisive([(finding[0], f"{rule}: {finding[1]}") for rule, finding in found.items() if finding is not None])
