# SPDX-License-Identifier: Apache-2.0
"""Shares from drawn intervals, against sums that are done by hand."""

from __future__ import annotations

import itertools
import math

import pytest

from pytest_laguna.analysis.events.ranges import places
from pytest_laguna.analysis.events.sparse import sparse_class_shares, sparse_shares
from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.evidence.events.profile import StreamIdentity
from pytest_laguna.evidence.events.sparse import SparseProfile, chosen_intervals
from pytest_laguna.verdict import NotProvenError

ONE_LAYER: list[SegmentKind] = ["graph", "attention", "graph"]
THREE_LAYERS: list[SegmentKind] = [*("graph", "attention") * 3, "graph"]
TWO_LAYERS: list[SegmentKind] = [
    "graph", "collective", *("graph", "attention", "graph", "collective", "graph", "collective") * 2, "graph",
]  # fmt: skip


def sparse(kinds: list[SegmentKind], replays: list[int]) -> SparseProfile:
    """A profile of rank 3, with the one drawn interval of each replay."""
    return SparseProfile(
        rank=3,
        world_size=4,
        descriptor="a batch",
        clock="host-clock",
        stream=StreamIdentity(device_type="cpu", device_index=0, stream_id=1),
        kinds=kinds,
        replays=[[nanoseconds] for nanoseconds in replays],
    )


def drawn(kinds: list[SegmentKind], replays: int) -> list[str]:
    """The part of which each replay draws its one interval."""
    parts = [place.part for place in places(kinds)]
    return [parts[index] for replay in range(replays) for index in chosen_intervals(kinds, replay)]


def test_a_share_and_its_interval_are_the_sums_done_by_hand() -> None:
    """Two graphs of 12 ns in the mean and one attention of 6 ns; the first scatters by 2 ns in 14, the other in 2."""
    parts = drawn(ONE_LAYER, 16)
    assert parts.count("attention") == 2
    graph, attention = itertools.cycle([10, 14]), itertools.cycle([4, 8])
    found = sparse_shares(sparse(ONE_LAYER, [next(attention if part == "attention" else graph) for part in parts]))
    of_graphs, of_attention = 2**2 * (14 * 2**2 / 13) / 14, 1**2 * (2 * 2**2 / 1) / 2
    either = 1.959963984540054 * math.sqrt(24**2 * of_attention + 6**2 * of_graphs) / 30**2 * 100
    for kind, percent, count in (("graph", 80, 14), ("attention", 20, 2)):
        share = found[kind]  # type: ignore[index]
        assert share.drawn == count
        assert (share.percent, share.low, share.high) == pytest.approx((percent, percent - either, percent + either))


@pytest.mark.parametrize(
    ("kinds", "replays", "expected"),
    [
        (THREE_LAYERS, 20, {"between_attentions and tail": 6, "attention": 14}),
        (THREE_LAYERS, 21, {"between_attentions": 5, "attention": 14, "tail": 2}),
        (
            TWO_LAYERS,
            24,
            {
                "prefix": 6,
                "post_attention_local_o and pre_attention and tail": 4,
                "attention": 4,
                "collective": 6,
                "local_mlp": 4,
            },
        ),
    ],
    ids=["drawn once", "drawn twice", "two that are drawn once"],
)
def test_a_part_drawn_less_than_twice_is_joined_to_one_other(
    kinds: list[SegmentKind], replays: int, expected: dict[str, int]
) -> None:
    """Of two parts with as many intervals the first in the source."""
    found = sparse_class_shares(sparse(kinds, [7] * replays))
    assert {part: share.drawn for part, share in found.items()} == expected


def test_a_part_that_has_no_other_of_its_kind_needs_more_replays() -> None:
    with pytest.raises(NotProvenError) as raised:
        sparse_class_shares(sparse(ONE_LAYER, [7] * 8))
    told = "rank 3: seen 1 intervals of attention in 8 replays; expected 2 at least; measure more replays"
    assert str(raised.value) == told


def test_replays_that_took_no_time_have_no_shares() -> None:
    with pytest.raises(NotProvenError) as raised:
        sparse_shares(sparse(ONE_LAYER, [0] * 16))
    assert str(raised.value) == "rank 3: seen 0 ns in all drawn intervals; expected replays that took time"
