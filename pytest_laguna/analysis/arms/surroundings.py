# SPDX-License-Identifier: Apache-2.0
"""Rules over the surroundings of each run: cards idle before and after it, and a host within its limits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_laguna.analysis.arms.case import AnyCase, AnyRule
from pytest_laguna.analysis.diagnostic.case import DiagnosticCase, Rule
from pytest_laguna.analysis.findings import RuleFinding, gravest, not_applicable
from pytest_laguna.analysis.machine.host import HOST_RULES
from pytest_laguna.analysis.machine.idle import judge_idle, judge_moments, looks
from pytest_laguna.evidence.arms.arm_record import ArmRecord
from pytest_laguna.evidence.arms.parity import PacketRecord
from pytest_laguna.evidence.machine.host import HostAudit, HostLimits
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.machine.leased_cards import IDLE_AFTER, IDLE_BEFORE
from pytest_laguna.evidence.reading import Missing, present
from pytest_laguna.verdict import Verdict

LEASE = "LAGUNA_LEASE"
"""Environment variable of a process with the token of its lease."""


def before_first(case: AnyCase) -> RuleFinding:
    """Rule ``before-first``: the leased cards were idle before the first run."""
    return judge_idle_record(case, IDLE_BEFORE, case.evidence.idle_before, "before", case.plan.cards)


def after_packets(case: DiagnosticCase) -> RuleFinding:
    """Rule ``after-packets``: the card of each packet was idle after it."""
    for position, card in enumerate(case.plan.cards):
        packet = case.evidence.packets.get(position)
        if packet is None:
            case.packet(position)  # raises the root cause
        else:
            finding = judge_idle_record(case, f"packets/{position}", packet.idle, "after", [card])
            if finding is not None:
                return finding
    return None


def after_arms(case: AnyCase) -> RuleFinding:
    """Rule ``after-arms``: the leased cards were idle after each arm."""
    for arm, run in case.evidence.arms.items():
        finding = judge_idle_record(case, str(arm), run.idle, "after", case.plan.cards)
        if finding is not None:
            return finding
    return None


def after_last(case: AnyCase) -> RuleFinding:
    """Rule ``after-last``: the leased cards were idle after the last run."""
    return judge_idle_record(case, IDLE_AFTER, case.evidence.idle_after, "after", case.plan.cards)


def one_lease(case: AnyCase) -> RuleFinding:
    """Rule ``one-lease``: every snapshot and every run was under the same lease."""
    tokens = {record.token for record in _idle_records(case)}
    if len(tokens) != 1:
        return (Verdict.VOID if tokens else Verdict.NOT_PROVEN), f"snapshots: seen {len(tokens)} leases; expected one"
    for place, run in case.evidence.runs():
        if isinstance(run.record, ArmRecord | PacketRecord):
            token = run.record.environment.get(LEASE)
            if token not in tokens:
                return Verdict.VOID, f"{place}: seen {LEASE} {token!r}; expected that of the snapshots"
    return None


def looks_in_order(case: AnyCase) -> RuleFinding:
    """Rule ``looks-in-order``: snapshots of cards and states of the host were taken in the order of the runs.

    So none of them copies another, and each is from before or after its run.
    """
    moments = [*_moments(case)]
    if not moments:
        return Verdict.NOT_PROVEN, "surroundings: seen no snapshot of cards and no state of the host; expected both"
    return judge_moments(moments)


def _moments(case: AnyCase) -> Iterator[tuple[str, str]]:
    """Yield every present snapshot and state of the host with its time, in the order of the runs."""
    yield from looks(IDLE_BEFORE, case.evidence.idle_before)
    for place, run in case.evidence.runs():
        if not isinstance(run.host, Missing):
            yield f"{place}/host.json, before", run.host.before.utc
            yield f"{place}/host.json, after", run.host.after.utc
        yield from looks(f"{place}/idle.json", run.idle)
    yield from looks(IDLE_AFTER, case.evidence.idle_after)


def judge_idle_record(
    case: AnyCase, where: str, piece: IdleRecord | Missing, phase: str, cards: Sequence[str]
) -> tuple[Verdict, str] | None:
    """Judge one idle record: its phase, lane and cards as due, and the cards idle."""
    record = present(piece)
    seen, expected = (record.phase, record.lane, record.cards), (phase, case.plan.lane, list(cards))
    if seen != expected:
        return Verdict.VOID, f"{where}: seen phase, lane and cards {seen}; expected {expected}"
    verdict, reason = judge_idle(record, case.plan.idle)
    return None if verdict is Verdict.PASS else (verdict, f"{where}: {reason}")


def _idle_records(case: AnyCase) -> Iterator[IdleRecord]:
    pieces = [case.evidence.idle_before, *(run.idle for _, run in case.evidence.runs()), case.evidence.idle_after]
    return (piece for piece in pieces if not isinstance(piece, Missing))


def _audits(case: AnyCase) -> Iterator[tuple[str, HostAudit]]:
    """Yield the host audit of each packet and each arm."""
    return ((place, present(run.host)) for place, run in case.evidence.runs())


_LIMITS: Mapping[str, Callable[[HostLimits], bool]] = {
    "temperature-within": lambda limits: limits.temperature_celsius is not None,
    "not-throttled": lambda limits: limits.throttle_events is not None,
    "kernel-log-quiet": lambda limits: limits.kernel_patterns is not None,
    "memory-free": lambda limits: limits.memory_available_bytes is not None,
    "load-low": lambda limits: limits.load is not None,
    "no-foreign-holder": lambda limits: not limits.foreign_holders,
}
"""True if the campaign sets the limit of a host rule."""


def judge_host(case: AnyCase, name: str) -> RuleFinding:
    """Judge a rule of the host around each run."""
    if name in _LIMITS and not _LIMITS[name](case.plan.host):
        return not_applicable("the campaign sets no limit")
    found = [
        (finding[0], f"{where}: {finding[1]}")
        for where, audit in _audits(case)
        if (finding := HOST_RULES[name](audit, case.plan.host)) is not None
    ]
    return gravest(found)


CARDS_IDLE: Mapping[str, Rule] = {
    "before-first": before_first,
    "after-packets": after_packets,
    "after-arms": after_arms,
    "after-last": after_last,
    "one-lease": one_lease,
    "looks-in-order": looks_in_order,
}

HOST_WITHIN_LIMITS: Mapping[str, AnyRule] = {name: functools.partial(judge_host, name=name) for name in HOST_RULES}
