# SPDX-License-Identifier: Apache-2.0
"""A simulated stream, host and captured batch: the event profiler's contract is tested on them without a device.

The stream works off submissions in order, and passes an event when it comes to it. Host time and stream time are
counted, not measured, so every interval and all waiting is known exactly.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from pytest_laguna.engine.timeline import Stream, TimedEvent
from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.evidence.events.profile import EventClock

LAYER: tuple[SegmentKind, ...] = ("graph", "attention", "graph", "collective", "graph", "collective")


def published_kinds(layers: int = 48) -> list[SegmentKind]:
    """The published order: 291 segments for 48 layers."""
    return ["graph", "collective", *LAYER * layers, "graph"]


@dataclasses.dataclass
class FakeEvent:
    """An event of the simulation; ``milliseconds`` replaces its time to a later one."""

    timeline: FakeTimeline
    number: int
    stream: Stream
    nanoseconds: int | None = None
    complete: bool = True
    milliseconds: float | None = None

    def record(self) -> None:
        """See ``TimedEvent``."""
        self.timeline.log.append(("record", self.number, self.stream))
        self.nanoseconds = max(self.timeline.free, self.timeline.host)

    def is_complete(self) -> bool:
        """See ``TimedEvent``."""
        return self.complete and self.nanoseconds is not None

    def milliseconds_until(self, later: TimedEvent) -> float:
        """See ``TimedEvent``."""
        if self.milliseconds is not None:
            return self.milliseconds
        assert isinstance(later, FakeEvent)
        assert self.nanoseconds is not None
        assert later.nanoseconds is not None
        return (later.nanoseconds - self.nanoseconds) / 1e6


class FakeTimeline:
    """One stream of one device, and its submitting host.

    Attributes:
        log: every action, in order.
        host: the host's clock, ns.
        free: end of the submitted work on the stream, ns.
        made: the events.
        spoilt: changed attributes, by an event's number.
    """

    clock: EventClock = "device-event"

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.stream = Stream("xpu", 2, 499)
        self.host = self.free = 1_000
        self.made: list[FakeEvent] = []
        self.spoilt: dict[int, dict[str, Any]] = {}

    def current(self) -> Stream:
        """See ``Timeline``."""
        return self.stream

    def identity(self, stream: Hashable) -> Stream:
        """See ``Timeline``."""
        assert isinstance(stream, Stream)
        return stream

    def events(self, count: int) -> Sequence[TimedEvent]:
        """See ``Timeline``."""
        self.made = [FakeEvent(self, number, self.stream, **self.spoilt.get(number, {})) for number in range(count)]
        return self.made

    def synchronize(self) -> None:
        """See ``Timeline``."""
        self.log.append(("synchronize",))
        self.host = max(self.host, self.free)

    def perf_counter_ns(self) -> int:
        """In place of ``time.perf_counter_ns``."""
        return self.host

    def submit(self, host_ns: int, work_ns: int) -> None:
        """Add the host's time to submit, and then the stream's work."""
        self.host += host_ns
        self.free = max(self.free, self.host) + work_ns


class FakeBatch:
    """A captured batch as vLLM replays it; its segments log themselves.

    Attributes:
        plain: replays by vLLM's own loop.
        hooked: true if a hook is around its replay, or in it.
    """

    descriptor = "BatchDescriptor(num_tokens=8)"

    def __init__(
        self,
        timeline: FakeTimeline,
        kinds: Sequence[SegmentKind],
        host_ns: Callable[[SegmentKind], int] = lambda _: 10,
        work_ns: Callable[[SegmentKind], int] = lambda _: 100,
    ) -> None:
        self.tokens = 8
        self.kinds = list(kinds)
        self.plain = 0
        self.before: Callable[[], None] | None = None
        self._timeline = timeline
        self._whole: Callable[[Callable[[], object]], object] | None = None
        self._loop: Callable[[], None] | None = None
        self.segments: list[Callable[[], object]] = [
            self._segment(number, kind, host_ns, work_ns) for number, kind in enumerate(kinds)
        ]

    def _segment(
        self,
        number: int,
        kind: SegmentKind,
        host_ns: Callable[[SegmentKind], int],
        work_ns: Callable[[SegmentKind], int],
    ) -> Callable[[], object]:
        def segment() -> None:
            self._timeline.log.append(("segment", number))
            self._timeline.submit(host_ns(kind), work_ns(kind))

        return segment

    @property
    def hooked(self) -> bool:
        """See the class."""
        return self._whole is not None or self._loop is not None

    @contextlib.contextmanager
    def around(self, whole: Callable[[Callable[[], object]], object]) -> Iterator[None]:
        """See ``event_profile.Batch``."""
        self._whole = whole
        try:
            yield
        finally:
            self._whole = None

    @contextlib.contextmanager
    def inside(self, loop: Callable[[], None], offloader: Callable[[Callable[[], object]], None]) -> Iterator[None]:
        """See ``event_profile.Batch``."""
        del offloader
        self._loop = loop
        try:
            yield
        finally:
            self._loop = None

    def replay(self) -> object:
        """Replay as vLLM does when the batch is due."""
        return self._replay() if self._whole is None else self._whole(self._replay)

    def _replay(self) -> str:
        if self._loop is not None:
            self._loop()
        else:
            self.plain += 1
            for segment in self.segments:
                segment()
        return "output"
