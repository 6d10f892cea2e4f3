# SPDX-License-Identifier: Apache-2.0
"""Events on one explicit stream: a device's own, or on a CPU the host's monotonic clock with the same interface."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

import torch

from pytest_laguna.evidence.events.profile import EventClock


class Stream(NamedTuple):
    """Identity of a stream, as ``evidence.event_profile.StreamIdentity``."""

    device_type: str
    device_index: int
    stream_id: int


class TimedEvent(Protocol):
    """One event, made for one stream."""

    def record(self) -> None:
        """Record it on its stream."""

    def is_complete(self) -> bool:
        """True if the stream has reached it."""

    def milliseconds_until(self, later: TimedEvent) -> float:
        """Milliseconds from this event to a later one."""


class Timeline(Protocol):
    """The stream of a replay; ``clock`` is the source of its times."""

    clock: EventClock

    def current(self) -> Hashable:
        """The current stream of the calling thread, in a form that is quick to get and to compare."""

    def identity(self, stream: Hashable) -> Stream:
        """Identity of a stream."""

    def events(self, count: int) -> Sequence[TimedEvent]:
        """New events on the current stream, with their one-time costs already paid."""

    def synchronize(self) -> None:
        """Wait for the device, all of its streams."""


class DeviceTimeline:
    """The accelerator's current stream, through ``torch.Event``: the same on CUDA and XPU."""

    clock: EventClock = "device-event"

    current = staticmethod(torch.accelerator.current_stream)
    """See ``Timeline``; torch compares device and number."""

    def identity(self, stream: Hashable) -> Stream:
        """See ``Timeline``."""
        if not isinstance(stream, torch.Stream):
            raise TypeError(f"stream: seen {type(stream).__name__}; expected a stream of the device")
        return Stream(stream.device.type, stream.device.index or 0, stream.stream_id)

    def events(self, count: int) -> Sequence[TimedEvent]:
        """See ``Timeline``."""
        stream = torch.accelerator.current_stream()
        made = [_DeviceEvent(stream) for _ in range(count)]
        for event in made:  # torch creates an event at its first record, which must not be measured
            event.record()
        return made

    def synchronize(self) -> None:
        """See ``Timeline``."""
        torch.accelerator.synchronize()


class _DeviceEvent:
    __slots__ = ("_event", "record")

    def __init__(self, stream: torch.Stream) -> None:
        self._event = torch.Event(stream.device, enable_timing=True)
        self.record: Callable[[], None] = functools.partial(self._event.record, stream)

    def is_complete(self) -> bool:
        return bool(self._event.query())

    def milliseconds_until(self, later: TimedEvent) -> float:
        if not isinstance(later, _DeviceEvent):
            raise TypeError(f"event: seen {type(later).__name__}; expected one of the same timeline")
        return float(self._event.elapsed_time(later._event))  # noqa: SLF001 - its own class


class HostTimeline:
    """The calling thread, which runs the replay on a CPU."""

    clock: EventClock = "host-clock"

    def current(self) -> int:
        """See ``Timeline``."""
        return threading.get_native_id()

    def identity(self, stream: Hashable) -> Stream:
        """See ``Timeline``."""
        if not isinstance(stream, int):
            raise TypeError(f"stream: seen {type(stream).__name__}; expected a thread's number")
        return Stream("cpu", 0, stream)

    def events(self, count: int) -> Sequence[TimedEvent]:
        """See ``Timeline``."""
        return [_HostEvent() for _ in range(count)]

    def synchronize(self) -> None:
        """Do nothing: no work runs beside the thread."""


class _HostEvent:
    __slots__ = ("nanoseconds",)

    def __init__(self) -> None:
        self.nanoseconds: int | None = None

    def record(self) -> None:
        self.nanoseconds = time.perf_counter_ns()

    def is_complete(self) -> bool:
        return self.nanoseconds is not None

    def milliseconds_until(self, later: TimedEvent) -> float:
        if not isinstance(later, _HostEvent) or self.nanoseconds is None or later.nanoseconds is None:
            raise TypeError("events: seen one without a time; expected two recorded events of the same timeline")
        return (later.nanoseconds - self.nanoseconds) / 1e6


def timeline() -> Timeline:
    """The accelerator's timeline, or the host's without one."""
    return DeviceTimeline() if torch.accelerator.is_available() else HostTimeline()
