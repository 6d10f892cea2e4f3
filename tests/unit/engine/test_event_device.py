# SPDX-License-Identifier: Apache-2.0
"""The event loop on a real accelerator, where there is one: delays of known size are found on the right side."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from benchmarks.event_profile import Load
from pytest_laguna.analysis.events.profile import category_sums
from pytest_laguna.analysis.events.work import waiting
from pytest_laguna.engine.event_loop import EventLoop
from pytest_laguna.engine.timeline import DeviceTimeline, Stream
from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.evidence.events.profile import EventProfile, HostLead, StreamIdentity

pytestmark = pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator")

KINDS: list[SegmentKind] = [*("graph", "attention", "graph", "collective") * 16, "graph"]
DELAYED: tuple[SegmentKind, ...] = ("graph", "attention", "collective")
HOST_SECONDS = 0.002
BASE = 4
"""Products of each segment that nothing delays."""
DELAY = 40
"""Products more, of a device that is delayed."""


def measured(segment: Callable[[SegmentKind], None]) -> EventProfile:
    segments = [lambda kind=kind: segment(kind) for kind in KINDS]
    EventLoop(segments, DeviceTimeline(), "warm-up").run()
    loop = EventLoop(segments, DeviceTimeline(), "device")
    loop.run()
    times = loop.read()
    return EventProfile(
        rank=0,
        world_size=1,
        descriptor="none",
        clock="device-event",
        stream=StreamIdentity(**loop.stream._asdict()),
        kinds=KINDS,
        interval_ns=times.interval_ns,
        span_ns=times.span_ns,
        lead=HostLead(boundary_ns=times.boundary_ns, synchronised_ns=times.synchronised_ns),
    )


@pytest.fixture(scope="module")
def load() -> Load:
    return Load(1024, DeviceTimeline())


@pytest.mark.parametrize("delayed", DELAYED)
def test_a_delay_of_the_device_is_work(delayed: SegmentKind, load: Load) -> None:
    profile = measured(lambda kind: load.submit(BASE + DELAY * (kind == delayed)))
    waited = waiting(profile)
    assert waited is not None
    sums, most = category_sums(KINDS, profile.interval_ns), category_sums(KINDS, waited.most)
    work = sums[delayed] - most[delayed]
    assert work == pytest.approx((BASE + DELAY) * load.unit_ns * KINDS.count(delayed), rel=0.2)
    for kind in DELAYED:
        if kind != delayed:
            assert sums[kind] < 0.5 * work * KINDS.count(kind) / KINDS.count(delayed), "the others keep their time"


@pytest.mark.parametrize("delayed", DELAYED)
def test_a_delay_of_the_host_is_waiting(delayed: SegmentKind, load: Load) -> None:
    def segment(kind: SegmentKind) -> None:
        if kind == delayed:
            time.sleep(HOST_SECONDS)
        load.submit()

    profile = measured(segment)
    waited = waiting(profile)
    assert waited is not None
    sums, most, least = (category_sums(KINDS, each) for each in (profile.interval_ns, waited.most, waited.least))
    injected = KINDS.count(delayed) * HOST_SECONDS * 1e9
    assert sums[delayed] > 0.7 * injected, "the intervals alone would blame the kind"
    assert least[delayed] > 0.7 * injected
    assert sums[delayed] - most[delayed] < 0.2 * injected
    for kind in DELAYED:
        if kind != delayed:
            assert most[kind] < 0.2 * injected


def test_adjacent_intervals_add_up_and_the_clocks_agree(load: Load) -> None:
    profile = measured(lambda _: load.submit())
    assert abs(profile.total_ns - profile.span_ns) <= 0.001 * profile.span_ns
    assert all(profile.interval_ns)
    waited = waiting(profile)
    assert waited is not None
    assert all(least <= most for least, most in zip(waited.least, waited.most, strict=True))


def test_another_stream_is_another(load: Load) -> None:
    timeline = DeviceTimeline()
    first = timeline.current()
    assert first == timeline.current()
    other = torch.Stream(torch.accelerator.current_accelerator())
    torch.accelerator.set_stream(other)
    try:
        assert timeline.current() == other
        assert timeline.current() != first
        load.submit()
    finally:
        torch.accelerator.set_stream(first)
    assert timeline.current() == first
    assert timeline.identity(first) != timeline.identity(other)
    assert isinstance(timeline.identity(first), Stream)
    torch.accelerator.synchronize()
