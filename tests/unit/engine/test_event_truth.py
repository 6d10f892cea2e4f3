# SPDX-License-Identifier: Apache-2.0
"""The sparse profile against the truth: replays whose segments take known times of the processor."""

from __future__ import annotations

from benchmarks.event_profile import KNOWN_KINDS, known_shares


def test_shares_of_a_few_intervals_are_within_two_points_of_known_ones() -> None:
    told = known_shares("cpu")
    assert set(told["known_shares"]) == set(KNOWN_KINDS)
    assert sum(told["known_shares"].values()) > 99.999
    assert told["max_share_error_points"] <= 2
