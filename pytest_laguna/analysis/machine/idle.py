# SPDX-License-Identifier: Apache-2.0
"""Rules over an idle record: no process holds the cards, their memory is back, and no worker is left.

Before a lease a finding is somebody else's doing and proves nothing (NOT_PROVEN). After it, processes with the lease's
token and memory still in use are the lease's own (FAIL); a stranger's process makes the evidence unusable (VOID).
Utilisation is recorded and never judged.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from pytest_laguna.analysis.findings import Finding, decide
from pytest_laguna.evidence.machine.idle import IdleRecord, IdleRequirement, SeenProcess, Snapshot, seconds_between
from pytest_laguna.evidence.machine.xpu_smi import PROGRAM
from pytest_laguna.evidence.reading import Missing
from pytest_laguna.verdict import Verdict

Rule: TypeAlias = Callable[[IdleRecord, IdleRequirement], Finding | None]


def cards_observed(record: IdleRecord, _: IdleRequirement) -> Finding | None:
    """Rule ``cards-observed``: every snapshot shows all leased cards, each once, and no others."""
    if len(set(record.cards)) != len(record.cards):
        return Verdict.VOID, f"lease: seen cards {record.cards}; expected each once"
    for number, snapshot in enumerate(record.snapshots):
        seen = [card.identity for card in snapshot.cards]
        if seen != record.cards:
            return Verdict.VOID, f"snapshot {number}: seen cards {seen}; expected the leased {record.cards}"
    return None


def telemetry_present(record: IdleRecord, _: IdleRequirement) -> Finding | None:
    """Rule ``telemetry-present``: every card shows its memory; otherwise it is not known to be idle."""
    for number, snapshot in enumerate(record.snapshots):
        for card in snapshot.cards:
            if card.memory_used_bytes is None:
                return Verdict.NOT_PROVEN, f"snapshot {number}: seen no memory of card {card.identity}; expected it"
    return None


def clock_rises(record: IdleRecord, _: IdleRequirement) -> Finding | None:
    """Rule ``clock-rises``: each snapshot is later than the one before it."""
    for earlier, later in itertools.pairwise(snapshot.utc for snapshot in record.snapshots):
        if seconds_between(earlier, later) <= 0:
            return Verdict.VOID, f"snapshots: seen {later} after {earlier}; expected strictly rising times"
    return None


def interval_covered(record: IdleRecord, requirement: IdleRequirement) -> Finding | None:
    """Rule ``interval-covered``: enough snapshots cover enough time."""
    times = [snapshot.utc for snapshot in record.snapshots]
    seconds = seconds_between(times[0], times[-1]) if times else 0.0
    if len(times) < requirement.snapshots or seconds < requirement.seconds:
        wanted = f"{requirement.snapshots} over {requirement.seconds} s"
        return Verdict.NOT_PROVEN, f"snapshots: seen {len(times)} over {seconds} s; expected at least {wanted}"
    return None


def observer_accounted(record: IdleRecord, _: IdleRequirement) -> Finding | None:
    """Rule ``observer-accounted``: one management tool, by its digest, shows itself on no device or on each once.

    Both are forms of an idle host. Every other row of its output must be among the recorded holders.
    """
    if record.lane != "xpu":
        return None
    for number, snapshot in enumerate(record.snapshots):
        reason = _unaccounted(snapshot)
        if reason:
            return Verdict.VOID, f"snapshot {number}: {reason}"
    observers = [snapshot.observer for snapshot in record.snapshots if snapshot.observer]
    files = {(observer.executable, observer.executable_sha256) for observer in observers}
    if len(files) > 1:
        return Verdict.VOID, f"observers: seen {len(files)} files of {PROGRAM}; expected one, with one digest"
    return None


def _unaccounted(snapshot: Snapshot) -> str | None:
    observer = snapshot.observer
    if observer is None:
        return f"seen no observer; expected {PROGRAM} and its output"
    rows = observer.rows()
    own = [row for row in rows if row.process_id == observer.pid]
    devices = sorted(row.device_id for row in own)
    if own and devices != sorted(observer.devices):
        return f"seen the observer on devices {devices}; expected none, or each of {observer.devices} once"
    misnamed = [row.process_name for row in own if row.process_name != PROGRAM]
    if misnamed:
        return f"seen the observer's row named {misnamed[0]!r}; expected {PROGRAM!r}"
    shown = Counter((row.device_id, row.process_id) for row in rows if row.process_id != observer.pid)
    recorded = {(card.ordinal, holder.pid) for card in snapshot.cards for holder in card.holders}
    leased = {card.ordinal for card in snapshot.cards}
    missing = sorted(pair for pair in shown if pair[0] in leased and pair not in recorded)
    if missing:
        return f"seen process {missing[0][1]} on device {missing[0][0]} by {PROGRAM}; expected it among the holders"
    return None


def no_holder(record: IdleRecord, _: IdleRequirement) -> Finding | None:
    """Rule ``no-holder``: no process holds a leased card in any snapshot, whatever the utilisation."""
    found = [
        (holder, f"seen holding card {card.identity}; expected no holder")
        for snapshot in record.snapshots
        for card in snapshot.cards
        for holder in card.holders
    ]
    return _blame(record, found)


def no_worker(record: IdleRecord, requirement: IdleRequirement) -> Finding | None:
    """Rule ``no-worker``: no worker carries the lease's token, and no foreign inference worker disturbs the host."""
    found = [
        (worker, f"seen running ({worker.seen_by}); expected no worker")
        for snapshot in record.snapshots
        for worker in snapshot.workers
        if not requirement.foreign_workers or worker.carries_token is not False
    ]
    return _blame(record, found)


def _blame(record: IdleRecord, found: list[tuple[SeenProcess, str]]) -> Finding | None:
    """Return the first finding, or after a lease the first survivor of its own."""
    findings = [
        (_verdict(record, seen), f"process {seen.pid} ({seen.command}), started at tick {seen.start_ticks}: {doing}")
        for seen, doing in found
    ]
    own = (finding for finding in findings if finding[0] is Verdict.FAIL)
    return next(own, findings[0] if findings else None)


def _verdict(record: IdleRecord, seen: SeenProcess) -> Verdict:
    if record.phase == "before":
        return Verdict.NOT_PROVEN
    return Verdict.FAIL if seen.carries_token else Verdict.VOID


def memory_returned(record: IdleRecord, requirement: IdleRequirement) -> Finding | None:
    """Rule ``memory-returned``: memory returned to the baseline in time, by the last point of the settling curve."""
    last = record.settling[-1]
    if len(last.used_bytes) != len(record.cards):
        return Verdict.VOID, f"settling curve: seen {len(last.used_bytes)} values at its end; expected one a card"
    for identity, used in zip(record.cards, last.used_bytes, strict=True):
        if used is None:
            return Verdict.NOT_PROVEN, f"card {identity}: seen no memory; expected it"
        if used > requirement.memory_bytes:
            return _above(record, identity, used, requirement, f"after {last.seconds} s")
    return None


def memory_at_baseline(record: IdleRecord, requirement: IdleRequirement) -> Finding | None:
    """Rule ``memory-at-baseline``: memory stays at the baseline in every snapshot."""
    for number, snapshot in enumerate(record.snapshots):
        for card in snapshot.cards:
            if card.memory_used_bytes is not None and card.memory_used_bytes > requirement.memory_bytes:
                return _above(record, card.identity, card.memory_used_bytes, requirement, f"in snapshot {number}")
    return None


def _above(record: IdleRecord, identity: str, used: int, requirement: IdleRequirement, when: str) -> Finding:
    verdict = Verdict.NOT_PROVEN if record.phase == "before" else Verdict.FAIL
    return verdict, f"card {identity}: seen {used} bytes used {when}; expected at most {requirement.memory_bytes}"


IDLE_RULES: Mapping[str, Rule] = {
    "cards-observed": cards_observed,
    "telemetry-present": telemetry_present,
    "clock-rises": clock_rises,
    "interval-covered": interval_covered,
    "observer-accounted": observer_accounted,
    "no-holder": no_holder,
    "no-worker": no_worker,
    "memory-returned": memory_returned,
    "memory-at-baseline": memory_at_baseline,
}


def judge_idle(record: IdleRecord, requirement: IdleRequirement) -> Finding:
    """Return the worst verdict of all rules and the first reason for it, which begins with the rule's id.

    Raises:
        UnusableEvidenceError: the management tool's output is not exactly of its form.
    """
    found = {name: rule(record, requirement) for name, rule in IDLE_RULES.items()}
    seen = f"{len(record.snapshots)} snapshots"
    return decide(found, f"{len(record.cards)} cards idle {record.phase} the lease in {seen}")


def looks(where: str, piece: IdleRecord | Missing) -> Iterator[tuple[str, str]]:
    """Yield name and time of each snapshot of a record; ``where`` names the record."""
    if not isinstance(piece, Missing):
        yield from ((f"{where}, snapshot {number}", seen.utc) for number, seen in enumerate(piece.snapshots))


def judge_moments(moments: Sequence[tuple[str, str]]) -> Finding | None:
    """Find the first of several named times not later than the one before it."""
    for (earlier, before), (later, after) in itertools.pairwise(moments):
        if seconds_between(before, after) <= 0:
            return Verdict.VOID, f"{later}: seen {after}; expected later than {earlier} at {before}"
    return None
