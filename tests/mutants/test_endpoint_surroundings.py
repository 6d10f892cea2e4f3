# SPDX-License-Identifier: Apache-2.0
"""Every rule over what surrounds gate 3's legs has a mutant: two legs with good looks, and one fact changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pytest_laguna.analysis.endpoint.surroundings import SURROUNDINGS, Surroundings, judge_surroundings
from pytest_laguna.evidence.endpoint.surroundings import LegSurroundings
from pytest_laguna.evidence.machine.host import HostAudit, HostLimits, HostState, KernelLog, difference
from pytest_laguna.evidence.machine.idle import IdleRequirement
from pytest_laguna.evidence.machine.leased_cards import LeasedCard, LeaseStart
from pytest_laguna.evidence.reading import Missing
from pytest_laguna.verdict import Verdict
from tests.caught_first import caught_first
from tests.sealed import TOKEN, idle_record

LEASE = LeaseStart(
    lane="cpu",
    token=TOKEN,
    cards=[LeasedCard(ordinal=0, identity="cpu-slot-0", name="core 0", memory_bytes=1)],
    inherited_masks={},
    environment={},
    cores=[0],
    cleared=[],
)
REQUIREMENT = IdleRequirement(snapshots=2, seconds=1.0, memory_bytes=0, foreign_workers=False)
LIMITS = HostLimits(memory_available_bytes=100, foreign_holders=False)


def utc(minute: int, second: int) -> str:
    return f"2026-07-26T10:{minute:02d}:{second:02d}.000000+00:00"


def state(moment: str, memory: int = 1000) -> HostState:
    log = KernelLog(state="absent", reason="", last=None, complete=False, lines=[])
    return HostState(
        utc=moment,
        boot_id="b",
        temperatures_celsius={},
        throttle_counts={},
        kernel_log=log,
        memory_available_bytes=memory,
        load=(0.0, 0.0, 0.0),
        cards=[],
    )


def audit(minute: int, memory: int = 1000) -> HostAudit:
    before, after = state(utc(minute, 11)), state(utc(minute, 40), memory)
    return HostAudit(before=before, after=after, difference=difference(before, after))


def leg(name: str, minute: int) -> LegSurroundings:
    """Looks at seconds 1 and 2, the leg from 10 to 59, its server's host at 11 and 40, looks at 50 and 51."""
    return LegSurroundings(
        name=name,
        served=True,
        before=idle_record("before", looks=[utc(minute, 1), utc(minute, 2)]),
        after=idle_record("after", looks=[utc(minute, 50), utc(minute, 51)]),
        host=audit(minute),
        span=(utc(minute, 10), utc(minute, 59)),
    )


GOOD = Surroundings(
    lease=LEASE,
    leased=idle_record("before", looks=[utc(0, 1), utc(0, 2)]),
    idle=REQUIREMENT,
    host=LIMITS,
    legs=[leg("01-A1", 1), leg("02-B1", 2)],
)

ABSENT = Missing(Verdict.NOT_PROVEN, "there is none")
Change = Callable[[Surroundings], Surroundings]


def change(place: int, **changed: Any) -> Change:
    """Other surroundings of one leg."""

    def changed_legs(seen: Surroundings) -> Surroundings:
        legs = list(seen.legs)
        legs[place] = dataclasses.replace(legs[place], **changed)
        return dataclasses.replace(seen, legs=legs)

    return changed_legs


def no_legs(seen: Surroundings) -> Surroundings:
    return dataclasses.replace(seen, legs=[])


def of_another(field: str) -> Change:
    """The second leg has the first one's looks."""
    return lambda seen: change(1, **{field: getattr(seen.legs[0], field)})(seen)


def look(phase: Any, *looks: str, **changed: Any) -> Any:
    return idle_record(phase, looks=looks).model_copy(update=changed)


def late(*looks: str) -> dict[str, Any]:
    return {"after": look("after", *looks)}


V, N = Verdict.VOID, Verdict.NOT_PROVEN
OTHER_TOKEN = "f" * 32
BEFORE, AFTER = (utc(2, 1), utc(2, 2)), (utc(2, 50), utc(2, 51))
MUTANTS: list[tuple[str, str, Change, Verdict, str]] = [
    ("cards-around-legs", "no legs", no_legs, N, "legs: seen none"),
    ("cards-around-legs", "no look before", change(1, before=ABSENT), N, "before 02-B1: seen no snapshot of the cards"),
    ("cards-around-legs", "no look after", change(0, after=ABSENT), N, "after 01-A1: seen no snapshot of the cards"),
    ("cards-around-legs", "too short", change(1, before=look("before", BEFORE[0])), N, "before 02-B1: interval-cov"),
    ("cards-around-legs", "token", change(1, before=look("before", *BEFORE, token=OTHER_TOKEN)), V, "cards of this le"),
    ("cards-around-legs", "cards", change(1, after=look("after", *AFTER, cards=["x"])), V, " ['x'] after a "),
    ("cards-around-legs", "lane", change(1, after=look("after", *AFTER, lane="xpu")), V, "expected the cards of this"),
    ("cards-around-legs", "phase", change(1, before=look("after", *BEFORE)), V, "of this lease before"),
    (
        "looks-around-legs",
        "copied before",
        of_another("before"),
        V,
        "before 02-B1, snapshot 0: seen 2026-07-26T10:01:01.000000+00:00; expected later than 01-A1, its end",
    ),
    ("looks-around-legs", "copied after", of_another("after"), V, "after 02-B1, snapshot 0: seen 2026-07-26T10:01:"),
    ("looks-around-legs", "copied host", of_another("host"), V, "02-B1, the host before: seen 2026-07-26T10:01:"),
    (
        "looks-around-legs",
        "of 2026-07-25",
        change(0, before=idle_record("before")),
        V,
        "expected later than the first ",
    ),
    (
        "looks-around-legs",
        "when it had begun",
        change(1, before=look("before", utc(2, 9), utc(2, 11))),
        V,
        "02-B1, its begin: seen 2026-07-26T10:02:",
    ),
    ("looks-around-legs", "host too late", change(1, **late(utc(2, 39), utc(2, 41))), V, "after 02-B1, snapshot 0"),
    ("looks-around-legs", "ended", change(1, **late(utc(2, 58), utc(3, 0))), V, "02-B1, its end: seen 2026-07-26T10"),
    (
        "looks-around-legs",
        "the leg before had not ended",
        change(0, span=(utc(1, 10), utc(2, 1))),
        V,
        "before 02-B1, snapshot 0: seen 2026-07-26T10:02:01.000000+00:00; expected later than 01-A1, its end",
    ),
    (
        "host-around-legs",
        "none",
        change(1, host=ABSENT),
        N,
        "02-B1: seen no record of the host; expected one around it",
    ),
    (
        "host-around-legs",
        "beyond a limit",
        change(0, host=audit(1, memory=99)),
        V,
        "01-A1: memory-free: memory: seen 99 bytes",
    ),
]


def test_good_surroundings_are_not_spoken_against() -> None:
    assert judge_surroundings(GOOD) is None


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} == SURROUNDINGS.keys()


@caught_first("rule name change_one verdict reason", MUTANTS)
def test_the_mutant_is_caught_by_its_rule(rule: str, change_one: Change, verdict: Verdict, reason: str) -> list[str]:
    seen = change_one(GOOD)
    found = SURROUNDINGS[rule](seen)
    assert found is not None
    assert found[0] is verdict
    assert reason in found[1]
    worst = judge_surroundings(seen)
    assert worst == (verdict, f"{rule}: {found[1]}")
    return [name for name, says in SURROUNDINGS.items() if says(seen) is not None]


def test_a_leg_without_a_record_has_looks_of_its_own_and_a_leg_that_never_served_no_host() -> None:
    refused = dataclasses.replace(leg("02-B1", 2), served=False, host=ABSENT, span=None)
    assert judge_surroundings(dataclasses.replace(GOOD, legs=[GOOD.legs[0], refused])) is None
    ended = change(1, span=None)(GOOD)
    assert judge_surroundings(ended) is None
    found = judge_surroundings(of_another("after")(ended))
    assert found is not None
    assert found[1].startswith("looks-around-legs: after 02-B1, snapshot 0")


def test_where_nobody_looked_at_the_lease_the_legs_still_follow_each_other() -> None:
    assert judge_surroundings(dataclasses.replace(GOOD, leased=ABSENT)) is None
