# SPDX-License-Identifier: Apache-2.0
"""The files of profiles hold together: each rule of their own fires and says what it saw."""

from __future__ import annotations

import hashlib
from typing import Any

import pydantic
import pytest

from pytest_laguna.evidence.arms.replay_profile import LARGEST, ReplayProfile, ReplaySample
from pytest_laguna.evidence.events.profile import EventFitness, EventProfile, HostLead
from pytest_laguna.evidence.events.sparse import SparseProfile, chosen_intervals

HEADER: dict[str, Any] = {
    "rank": 0,
    "world_size": 2,
    "descriptor": "8 tokens",
    "kinds": ["graph", "attention"],
    "clock": "device-event",
}
STREAM = {"device_type": "xpu", "device_index": 0, "stream_id": 3}


def lead(*stamps: int) -> HostLead:
    return HostLead(boundary_ns=list(stamps[:-1]), synchronised_ns=stamps[-1])


def event_profile(**changes: Any) -> EventProfile:
    values = HEADER | {"stream": STREAM, "interval_ns": [5, 6], "span_ns": 11, "lead": lead(0, 1, 2, 2)}
    return EventProfile.model_validate(values | changes)


def test_a_profile_tells_its_sum_and_its_order() -> None:
    profile = event_profile()
    assert profile.total_ns == 11
    assert profile.order_sha256 == hashlib.sha256(b"graph,attention").hexdigest()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"interval_ns": [5]}, "1 intervals; expected 2, one a segment"),
        ({"lead": lead(0, 1, 2)}, "3 host times; expected 4, rising from 0"),
        ({"lead": lead(1, 1, 2, 3)}, "4 host times; expected 4, rising from 0"),
        ({"lead": lead(0, 2, 1, 3)}, "4 host times; expected 4, rising from 0"),
        ({"lead": lead(0, 1, 2, 1)}, "4 host times; expected 4, rising from 0"),
        ({"rank": 2}, "rank 2 of 2"),
    ],
)
def test_an_event_profile_that_contradicts_itself_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=reason):
        event_profile(**changes)


def fitness(stamped: dict[str, int], events: dict[str, int]) -> EventFitness:
    round_ = {"plain_ns": 9, "stamped_ns": 10, "events_ns": 11, "stamped_kind_ns": stamped, "events_kind_ns": events}
    whole = round_ | {"stamped_kind_ns": WHOLE, "events_kind_ns": WHOLE}
    return EventFitness.model_validate(HEADER | {"rounds": [whole, round_]})


WHOLE = {"graph": 1, "attention": 2}


@pytest.mark.parametrize(
    ("stamped", "events"),
    [({"graph": 1}, WHOLE), (WHOLE, {"graph": 1}), (WHOLE, WHOLE | {"collective": 1})],
    ids=["stamped", "events", "a kind too many"],
)
def test_a_round_has_host_times_of_every_kind(stamped: dict[str, int], events: dict[str, int]) -> None:
    assert len(fitness(WHOLE, WHOLE).rounds) == 2
    with pytest.raises(
        pydantic.ValidationError, match=r"round 1: host times of .*; expected twice those of \['attention', 'graph'\]"
    ):
        fitness(stamped, events)


def test_a_sparse_replay_has_one_duration_a_chosen_interval() -> None:
    kinds = 200 * ["graph"]
    count = len(chosen_intervals(kinds, 0))
    values = HEADER | {"stream": STREAM, "kinds": kinds}
    assert SparseProfile.model_validate(values | {"replays": [count * [1]]}).replays == [count * [1]]
    reason = f"replay 1: {count + 1} durations; expected {count}, one a chosen interval"
    with pytest.raises(pydantic.ValidationError, match=reason):
        SparseProfile.model_validate(values | {"replays": [count * [1], (count + 1) * [1]]})


def test_intervals_are_drawn_anew_for_each_replay_from_the_order_and_its_number() -> None:
    """At most a twentieth of the boundaries has an event, two an interval: of 200 segments five."""
    order = hashlib.sha256(",".join(200 * ["graph"]).encode()).hexdigest()
    for replay in (0, 1):
        drawn = sorted(range(200), key=lambda index: hashlib.sha256(f"{order}:{replay}:{index}".encode()).digest())
        assert chosen_intervals(200 * ["graph"], replay) == sorted(drawn[:5])
    assert [len(chosen_intervals(["graph"] * count, 0)) for count in (1, 78, 79, 119)] == [1, 1, 2, 3]


def sample(*segments: int) -> ReplaySample:
    times = dict.fromkeys(ReplaySample.model_fields, 7)
    return ReplaySample.model_validate(times | {"segment_ns": list(segments), "views": None})


def test_the_times_of_a_replays_segments_fit_a_double_together() -> None:
    assert sum(sample(LARGEST - 2, 1).segment_ns) == LARGEST - 1
    reason = f"segments of {LARGEST} ns in all; expected less than {LARGEST} ns"
    with pytest.raises(pydantic.ValidationError, match=reason):
        sample(LARGEST - 1, 1)


def test_a_replay_has_one_time_a_segment() -> None:
    values = {name: HEADER[name] for name in HEADER.keys() - {"clock"}}
    assert len(ReplayProfile.model_validate(values | {"samples": [sample(1, 2)]}).samples) == 1
    with pytest.raises(pydantic.ValidationError, match="sample 1: 1 segment times; expected 2"):
        ReplayProfile.model_validate(values | {"samples": [sample(1, 2), sample(1)]})
