# SPDX-License-Identifier: Apache-2.0
"""Profiles of an attempt as a trace for Perfetto and Chrome: ranks are processes, segments are slices.

The form is the Chrome trace-event format with complete events, in microseconds from the beginning of each profile.
Ranks have clocks of their own, so their slices are not aligned; a gap between two replays is not drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_laguna.analysis.events.ranges import places
from pytest_laguna.evidence import root
from pytest_laguna.evidence.arms.replay_profile import RankProfile, SegmentKind
from pytest_laguna.evidence.diagnostic import analysis as diagnostic
from pytest_laguna.evidence.diagnostic.reader import read_diagnostic
from pytest_laguna.evidence.events import analysis as event_analysis
from pytest_laguna.evidence.events.analysis import EventPlan
from pytest_laguna.evidence.events.profile import EventProfile
from pytest_laguna.evidence.events.reader import read_events
from pytest_laguna.evidence.reading import ARMS, PLAN, PROFILE, names_in, present
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import JSON, UnusableEvidenceError

_MICROSECOND = 1_000
"""Nanoseconds."""
_GRID = 2_048
"""Parts of a microsecond; a power of two, so that sums and differences are exact."""


def trace(attempt: Path) -> JSON:
    """Every replay profile and event profile of an attempt, in the object form of the trace-event format.

    Args:
        attempt: an attempt's directory, or a copy of it.

    Raises:
        ValueError: the attempt has no profile.
        UnusableEvidenceError: a profile cannot be used.
        NotProvenError: a profile is missing.
    """
    evidence = attempt / root.EVIDENCE
    events = [*_event_profiles(evidence / event_analysis.DIRECTORY), *_replay_profiles(evidence / diagnostic.DIRECTORY)]
    if not events:
        message = f"{attempt}: no replay profile and no event profile; expected an attempt at gate 2 with one"
        raise ValueError(message)
    return {
        "displayTimeUnit": "ns",
        "otherData": {"notice": diagnostic.NOTICE, "device_work_only": "not_validated"},
        "traceEvents": events,
    }


def _event_profiles(directory: Path) -> Iterator[JSON]:
    if not names_in(directory / ARMS / event_analysis.EVENTS / PROFILE):
        return
    arms = read_model(directory / PLAN, EventPlan).arms
    for piece in read_events(directory, arms).profiles.values():
        profile: EventProfile = present(piece)
        yield from _thread(profile.rank, 0, f"{event_analysis.EVENTS}, {profile.clock}")
        yield from _segments(profile.rank, 0, 0, profile.kinds, profile.interval_ns)


def _replay_profiles(directory: Path) -> Iterator[JSON]:
    for thread, (arm, profiles) in enumerate(read_diagnostic(directory).profiles.items()):
        for _, read in sorted(profiles.items(), key=lambda item: (len(item[0]), item[0])):
            yield from _replays(read(), thread, f"{arm}, host clock")


def _replays(profile: RankProfile, thread: int, name: str) -> Iterator[JSON]:
    """Replays of one rank, one after the other."""
    rank, kinds, begin = profile.header.rank, profile.header.kinds, 0
    yield from _thread(rank, thread, name)
    for number, sample in enumerate(profile.samples):
        yield _slice((rank, thread), begin, sample.whole_ns, f"replay {number}", {"sample": number})
        yield from _segments(rank, thread, begin, kinds, sample.segment_ns)
        yield _slice((rank, thread), begin + sample.host_ns, sample.synchronize_ns, "synchronise", {"sample": number})
        begin += sample.whole_ns


def _segments(
    rank: int, thread: int, begin: int, kinds: Sequence[SegmentKind], nanoseconds: Sequence[int]
) -> Iterator[JSON]:
    if len(kinds) != len(nanoseconds):
        message = f"rank {rank}: seen {len(nanoseconds)} times; expected {len(kinds)}, one a segment"
        raise UnusableEvidenceError(message)
    starts = itertools.accumulate(nanoseconds, initial=begin)
    located = places(kinds)
    for index, (kind, start, duration, place) in enumerate(zip(kinds, starts, nanoseconds, located, strict=False)):
        arguments: dict[str, JSON] = {"index": index, "kind": kind, "layer": place.layer, "part": place.part}
        yield _slice((rank, thread), start, duration, place.part, arguments)


def _slice(row: tuple[int, int], begin: int, duration: int, name: str, arguments: dict[str, JSON]) -> JSON:
    return {
        "ph": "X",
        "pid": row[0],
        "tid": row[1],
        "ts": _microseconds(begin),
        "dur": _microseconds(begin + duration) - _microseconds(begin),
        "name": name,
        "cat": str(arguments.get("kind", "replay")),
        "args": arguments | {"duration_ns": duration},
    }


def _microseconds(nanoseconds: int) -> float:
    """Microseconds for the format: the next exact double, less than a nanosecond above.

    Truncation to nanoseconds then gives the right number, and start plus duration is exactly the next slice's start: a
    slice beginning earlier would be drawn inside its neighbour.
    """
    return -(-nanoseconds * _GRID // _MICROSECOND) / _GRID


def _thread(rank: int, thread: int, name: str) -> Iterator[JSON]:
    """Names of a rank and of its run, for a viewer."""
    for kind, called in (("process_name", f"rank {rank}"), ("thread_name", name)):
        yield {"ph": "M", "pid": rank, "tid": thread, "name": kind, "args": {"name": called}}
