# SPDX-License-Identifier: Apache-2.0
"""From an idle record to a verdict: nobody holds the cards, their memory is back, and no worker is left.

Before a lease what is wrong is somebody else's and proves nothing (NOT_PROVEN). After it, what carries the lease's
token and memory that did not come back are the lease's own (FAIL), and what a stranger did makes the evidence unusable
(VOID).
Utilisation has no rule: it is recorded and never judged.
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
    """Rule ``cards-observed``: every look is at the leased cards, at all of them, each once."""
    if len(set(record.cards)) != len(record.cards):
        return Verdict.VOID, f"the lease names {record.cards}; expected each card once"
    for number, snapshot in enumerate(record.snapshots):
        seen = [card.identity for card in snapshot.cards]
        if seen != record.cards:
            return Verdict.VOID, f"look {number} saw {seen}; expected the leased cards {record.cards}"
    return None


def telemetry_present(record: IdleRecord, _: IdleRequirement) -> Finding | None:
    """Rule ``telemetry-present``: a card whose memory cannot be read is not known to be idle."""
    for number, snapshot in enumerate(record.snapshots):
        for card in snapshot.cards:
            if card.memory_used_bytes is None:
                return Verdict.NOT_PROVEN, f"look {number}: card {card.identity} shows no memory; expected telemetry"
    return None


def clock_rises(record: IdleRecord, _: IdleRequirement) -> Finding | None:
    """Rule ``clock-rises``: each look is later than the one before it."""
    for earlier, later in itertools.pairwise(snapshot.utc for snapshot in record.snapshots):
        if seconds_between(earlier, later) <= 0:
            return Verdict.VOID, f"a look at {later} follows one at {earlier}; expected strictly rising times"
    return None


def interval_covered(record: IdleRecord, requirement: IdleRequirement) -> Finding | None:
    """Rule ``interval-covered``: there are enough looks over enough time."""
    looks = [snapshot.utc for snapshot in record.snapshots]
    seconds = seconds_between(looks[0], looks[-1]) if looks else 0.0
    if len(looks) < requirement.snapshots or seconds < requirement.seconds:
        wanted = f"{requirement.snapshots} over {requirement.seconds} s"
        return Verdict.NOT_PROVEN, f"{len(looks)} looks over {seconds} s; expected at least {wanted}"
    return None


def observer_accounted(record: IdleRecord, _: IdleRequirement) -> Finding | None:
    """Rule ``observer-accounted``: one management tool, by its digest, shows itself on no device or on each once.

    Both are forms of an idle host. Every other row of its output must be among the holders that were recorded.
    """
    if record.lane != "xpu":
        return None
    for number, snapshot in enumerate(record.snapshots):
        reason = _unaccounted(snapshot)
        if reason:
            return Verdict.VOID, f"look {number}: {reason}"
    files = {(look.observer.executable, look.observer.executable_sha256) for look in record.snapshots if look.observer}
    if len(files) > 1:
        return Verdict.VOID, f"{len(files)} files of {PROGRAM} looked; expected one, with one digest"
    return None


def _unaccounted(snapshot: Snapshot) -> str | None:
    observer = snapshot.observer
    if observer is None:
        return f"without an observer; expected {PROGRAM} and its output"
    rows = observer.rows()
    own = [row for row in rows if row.process_id == observer.pid]
    devices = sorted(row.device_id for row in own)
    if own and devices != sorted(observer.devices):
        return f"the observer shows itself on devices {devices}; expected none, or each of {observer.devices} once"
    misnamed = [row.process_name for row in own if row.process_name != PROGRAM]
    if misnamed:
        return f"the observer's row is named {misnamed[0]!r}; expected {PROGRAM!r}"
    shown = Counter((row.device_id, row.process_id) for row in rows if row.process_id != observer.pid)
    recorded = {(card.ordinal, holder.pid) for card in snapshot.cards for holder in card.holders}
    leased = {card.ordinal for card in snapshot.cards}
    missing = sorted(pair for pair in shown if pair[0] in leased and pair not in recorded)
    if missing:
        return f"{PROGRAM} shows process {missing[0][1]} on device {missing[0][0]}; expected it among the holders"
    return None


def no_holder(record: IdleRecord, _: IdleRequirement) -> Finding | None:
    """Rule ``no-holder``: no process holds a leased card, in any look; utilisation says nothing about that."""
    found = [
        (holder, f"holds card {card.identity}")
        for snapshot in record.snapshots
        for card in snapshot.cards
        for holder in card.holders
    ]
    return _blame(record, found)


def no_worker(record: IdleRecord, requirement: IdleRequirement) -> Finding | None:
    """Rule ``no-worker``: nothing carries the lease's token, and no inference worker of others disturbs the host."""
    found = [
        (worker, f"runs ({worker.seen_by})")
        for worker in _workers(record)
        if not requirement.foreign_workers or worker.carries_token is not False
    ]
    return _blame(record, found)


def _workers(record: IdleRecord) -> Iterator[SeenProcess]:
    return (worker for snapshot in record.snapshots for worker in snapshot.workers)


def _blame(record: IdleRecord, found: list[tuple[SeenProcess, str]]) -> Finding | None:
    """The worst of what was found: after a lease its own survivors before strangers."""
    findings = [
        (_verdict(record, seen), f"process {seen.pid}, started at tick {seen.start_ticks}, {what}: {seen.command}")
        for seen, what in found
    ]
    own = (finding for finding in findings if finding[0] is Verdict.FAIL)
    return next(own, findings[0] if findings else None)


def _verdict(record: IdleRecord, seen: SeenProcess) -> Verdict:
    if record.phase == "before":
        return Verdict.NOT_PROVEN
    return Verdict.FAIL if seen.carries_token else Verdict.VOID


def memory_returned(record: IdleRecord, requirement: IdleRequirement) -> Finding | None:
    """Rule ``memory-returned``: memory came back to the baseline in the time for that; the curve ends there."""
    last = record.settling[-1]
    if len(last.used_bytes) != len(record.cards):
        return Verdict.VOID, f"the curve ends with {len(last.used_bytes)} values; expected one a leased card"
    for identity, used in zip(record.cards, last.used_bytes, strict=True):
        if used is None:
            return Verdict.NOT_PROVEN, f"card {identity} shows no memory; expected telemetry"
        if used > requirement.memory_bytes:
            return _above(record, identity, used, requirement, f"after {last.seconds} s")
    return None


def memory_at_baseline(record: IdleRecord, requirement: IdleRequirement) -> Finding | None:
    """Rule ``memory-at-baseline``: memory stays at the baseline in every look."""
    for number, snapshot in enumerate(record.snapshots):
        for card in snapshot.cards:
            if card.memory_used_bytes is not None and card.memory_used_bytes > requirement.memory_bytes:
                return _above(record, card.identity, card.memory_used_bytes, requirement, f"in look {number}")
    return None


def _above(record: IdleRecord, identity: str, used: int, requirement: IdleRequirement, when: str) -> Finding:
    verdict = Verdict.NOT_PROVEN if record.phase == "before" else Verdict.FAIL
    return verdict, f"card {identity} uses {used} bytes {when}; expected at most {requirement.memory_bytes}"


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
    """Whether the cards were idle.

    Args:
        record: what was seen.
        requirement: what the campaign freezes.

    Returns:
        The worst verdict of all rules with the reason of the first that found it; a reason begins with the rule's id.

    Raises:
        UnusableEvidenceError: the management tool's output is not exactly of its form.
    """
    found = {name: rule(record, requirement) for name, rule in IDLE_RULES.items()}
    return decide(found, f"{len(record.cards)} cards idle {record.phase} the lease in {len(record.snapshots)} looks")


def looks(where: str, piece: IdleRecord | Missing) -> Iterator[tuple[str, str]]:
    """Yield name and time of each look of a record; ``where`` names the record."""
    if not isinstance(piece, Missing):
        yield from ((f"{where}, look {number}", look.utc) for number, look in enumerate(piece.snapshots))


def judge_moments(moments: Sequence[tuple[str, str]]) -> Finding | None:
    """Find the first of several named times that is not after the one before it."""
    for (earlier, before), (later, after) in itertools.pairwise(moments):
        if seconds_between(before, after) <= 0:
            return Verdict.VOID, f"{later} is of {after}; expected it after {earlier}, which is of {before}"
    return None
