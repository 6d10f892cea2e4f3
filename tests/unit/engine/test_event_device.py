# SPDX-License-Identifier: Apache-2.0
"""The event loop on a real accelerator, where there is one: delays of known size are found on the right side."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from pytest_laguna.analysis.event_work import waiting
from pytest_laguna.engine.event_loop import EventLoop
from pytest_laguna.engine.timeline import DeviceTimeline
from pytest_laguna.evidence.event_profile import EventProfile, HostLead, StreamIdentity
from pytest_laguna.evidence.replay_profile import SegmentKind

pytestmark = pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator")

PAIR: list[SegmentKind] = ["graph", "attention"]
KINDS: list[SegmentKind] = [*PAIR * 16, "graph"]
HOST_SECONDS = 0.002


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
def work() -> Callable[[int], None]:
    """Submits so many products of large matrices to the current stream."""
    matrix = torch.ones(2048, 2048, device=torch.accelerator.current_accelerator())
    product = torch.empty_like(matrix)

    def submit(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix, out=product)

    return submit


def by_kind(profile: EventProfile, values: tuple[int, ...] | list[int]) -> dict[str, int]:
    return {
        kind: sum(value for each, value in zip(profile.kinds, values, strict=True) if each == kind)
        for kind in ("graph", "attention")
    }


def test_work_of_the_device_is_work(work: Callable[[int], None]) -> None:
    profile = measured(lambda kind: work(40 if kind == "attention" else 4))
    waited = waiting(profile)
    assert waited is not None
    sums, most = by_kind(profile, profile.interval_ns), by_kind(profile, waited.most)
    assert sums["attention"] > 5 * sums["graph"]
    assert most["attention"] < 0.2 * sums["attention"]


def test_a_delay_of_the_host_is_waiting(work: Callable[[int], None]) -> None:
    def segment(kind: SegmentKind) -> None:
        if kind == "attention":
            time.sleep(HOST_SECONDS)
        work(1)

    profile = measured(segment)
    waited = waiting(profile)
    assert waited is not None
    sums, most, least = (by_kind(profile, each) for each in (profile.interval_ns, waited.most, waited.least))
    injected = 16 * HOST_SECONDS * 1e9
    assert sums["attention"] > sums["graph"], "the intervals alone would blame attention"
    assert most["attention"] > 0.7 * injected
    assert least["attention"] > 0.5 * injected
    assert sums["attention"] - most["attention"] < 0.3 * injected
