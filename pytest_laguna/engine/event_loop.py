# SPDX-License-Identifier: Apache-2.0
"""One run over a replay's segments, with an event before the first and after each, and the times between them."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

from .profile_directory import ProfileError
from .timeline import Stream, TimedEvent, Timeline

Replay = Callable[[], object]


class ProfiledBatch(Protocol):
    """A captured batch, such as ``compat.replay.CapturedBatch``."""

    descriptor: str
    segments: list[Replay]

    def around(self, whole: Callable[[Replay], object]) -> contextlib.AbstractContextManager[None]:
        """Run each replay by ``whole`` inside the block."""

    def inside(
        self, loop: Callable[[], None], offloader: Callable[[Replay], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Run the parts of each replay by these inside the block."""


def unchanged(wait: Replay) -> None:
    """Wait for offloaded weights as usual."""
    wait()


def frozen_stream(timeline: Timeline, where: str) -> Hashable:
    """The current stream, to be measured from now on; raises ProfileError, about ``where``, if there is none."""
    try:
        return timeline.current()
    except (RuntimeError, ValueError, AttributeError) as error:
        message = f"{where}: seen no stream to measure ({' '.join(str(error).split())}); expected a current one"
        raise ProfileError(message) from error


def require_complete(events: Sequence[TimedEvent], where: str) -> None:
    """Require every event to be complete after the synchronise; raises ProfileError, which ``where`` begins."""
    for index, event in enumerate(events):
        if not event.is_complete():
            raise ProfileError(f"{where}: seen event {index} incomplete after the synchronise; expected it complete")


def nanoseconds(earlier: TimedEvent, later: TimedEvent, what: str) -> int:
    """Nanoseconds from one complete event to a later one; raises ProfileError, about ``what``, unless finite from 0."""
    milliseconds = earlier.milliseconds_until(later)
    if not math.isfinite(milliseconds) or milliseconds < 0:
        raise ProfileError(f"{what}: seen {milliseconds} ms; expected a finite duration from 0")
    return round(milliseconds * 1_000_000)


class Intervals(NamedTuple):
    """Times of one run, in integer nanoseconds.

    Attributes:
        interval_ns: from each event to the next.
        span_ns: from the first event to the last, measured by the clock itself.
        boundary_ns: host clock just before each event was recorded, since the first.
        synchronised_ns: host clock after the synchronise, since the same moment.
    """

    interval_ns: list[int]
    span_ns: int
    boundary_ns: list[int]
    synchronised_ns: int


class EventLoop:
    """Runs once.

    Between the events lie only the segment, the comparison of the stream's identity and a reading of the host's clock:
    no synchronise, no wait, no copy, no hash. One synchronise follows the last event.
    """

    def __init__(self, segments: Sequence[Replay], timeline: Timeline, where: str) -> None:
        """Freeze the current stream, and create its events; raises ProfileError, about ``where``, without a stream."""
        self._segments = list(segments)
        self._timeline = timeline
        self._where = where
        self._stream = frozen_stream(timeline, where)
        self._events = list(timeline.events(len(self._segments) + 1))
        self._stamps: list[int] = []
        self._ran = False

    @property
    def stream(self) -> Stream:
        """The frozen stream."""
        return self._timeline.identity(self._stream)

    @property
    def recorded(self) -> int:
        """Number of recorded events."""
        return max(0, len(self._stamps) - 1) if self._ran else len(self._stamps)

    def run(self) -> None:
        """Run the segments, in place of vLLM's own loop; raises ProfileError in a second run or on another stream."""
        if self._stamps:
            raise ProfileError(f"{self._where}: seen a second run; expected each event to be recorded once")
        now, add, current, stream = time.perf_counter_ns, self._stamps.append, self._timeline.current, self._stream
        events = iter(self._events)
        add(now())
        next(events).record()
        for index, (segment, event) in enumerate(zip(self._segments, events, strict=True)):
            if current() != stream:
                self._drifted("before", index)
            segment()
            if current() != stream:
                self._drifted("after", index)
            add(now())
            event.record()
        self._timeline.synchronize()
        add(now())
        self._ran = True

    def read(self) -> Intervals:
        """Times between the events; raises ProfileError if an event is missing, or a time is negative or not finite."""
        if not self._ran:
            raise ProfileError(f"{self._where}: seen {self.recorded} of {len(self._events)} events; expected all")
        require_complete(self._events, self._where)
        pairs = enumerate(itertools.pairwise(self._events))
        start = self._stamps[0]
        return Intervals(
            interval_ns=[nanoseconds(*pair, f"{self._where}: interval {index}") for index, pair in pairs],
            span_ns=nanoseconds(self._events[0], self._events[-1], f"{self._where}: span"),
            boundary_ns=[stamp - start for stamp in self._stamps[:-1]],
            synchronised_ns=self._stamps[-1] - start,
        )

    def _drifted(self, when: str, index: int) -> None:
        now = self._timeline.identity(self._timeline.current())
        raise ProfileError(f"{self._where}: seen {now} {when} segment {index}; expected {self.stream}")
