# SPDX-License-Identifier: Apache-2.0
"""Checks of every profiled replay: parts no longer than their whole, and views prepared as planned.

Source: the published replay profile of the persistent KV-cache views, and the preregistration's count of 48 forward
preparations and no update in each replay.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pytest_laguna.analysis.diagnostic.replay_profile import Check, Replay
from pytest_laguna.evidence.arms.arm_record import Arm


def segments_timed(replay: Replay) -> str | None:
    """Check ``segments-timed``: every graph, attention and collective segment took time."""
    return None if replay.shortest > 0 else "seen a segment of 0 ns; expected every segment but other to take time"


def loop_contains_segments(replay: Replay) -> str | None:
    """Check ``loop-contains-segments``: the loop takes at least the sum of its segments."""
    return _least("loop", replay.sample.loop_ns, sum(replay.totals.values()), "its segments")


def host_contains_loop(replay: Replay) -> str | None:
    """Check ``host-contains-loop``: the host's part takes at least the time of the loop."""
    return _least("host", replay.sample.host_ns, replay.sample.loop_ns, "its loop")


def whole_contains_host(replay: Replay) -> str | None:
    """Check ``whole-contains-host``: the whole takes at least the host's part and the wait after it."""
    parts = replay.sample.host_ns + replay.sample.synchronize_ns
    return _least("whole", replay.sample.whole_ns, parts, "host and synchronise")


def synchronise_timed(replay: Replay) -> str | None:
    """Check ``synchronise-timed``: the wait for the device took time, even with nothing to wait for."""
    return None if replay.sample.synchronize_ns > 0 else "seen a synchronise of 0 ns; expected it to take time"


def views_within_attention(replay: Replay) -> str | None:
    """Check ``views-within-attention``: attention's segments contain the preparation of its views."""
    views = replay.sample.views
    return None if views is None else _least("attention", replay.totals["attention"], views.forward_ns, "its views")


def _least(name: str, seen: int, parts: int, of: str) -> str | None:
    return None if seen >= parts else f"seen {name} of {seen} ns; expected at least the {parts} ns of {of}"


CONTAINMENT: Mapping[str, Check] = {
    "segments-timed": segments_timed,
    "loop-contains-segments": loop_contains_segments,
    "host-contains-loop": host_contains_loop,
    "whole-contains-host": whole_contains_host,
    "synchronise-timed": synchronise_timed,
    "views-within-attention": views_within_attention,
}
"""Checks that make a profile a measurement."""


def preparation_checks(arm: Arm, layers: int) -> Mapping[str, Check]:
    """Checks of one graph arm's replays: number of preparations, and vLLM's or stored views.

    Each layer of the target prepares its views for attention once; the update runs inside the graphs.
    """
    counted = functools.partial(_counted, layers=layers)
    if arm is Arm.GRAPH_CANDIDATE:
        served = functools.partial(_served, expected=(0, layers, layers, 0))
        return {"preparations-counted": counted, "candidate-persistent": served}
    return {
        "preparations-counted": counted,
        "control-incumbent": functools.partial(_served, expected=(layers, 0, 0, 0)),
    }


PREPARATION = ("preparations-counted", "control-incumbent", "candidate-persistent")
"""Names of both arms' checks."""


def _counted(replay: Replay, layers: int) -> str | None:
    views = replay.sample.views
    if views is None:
        return "seen no view preparations; expected their counts"
    seen = (views.forward_calls, views.update_calls, views.update_ns)
    if seen != (layers, 0, 0):
        return f"seen forward, update and ns of update {seen}; expected {(layers, 0, 0)}"
    return None


def _served(replay: Replay, expected: tuple[int, int, int, int]) -> str | None:
    views = replay.sample.views
    if views is None:
        return None
    seen = (views.incumbent_calls, views.persistent_calls, views.persistent_hits, views.persistent_builds)
    return None if seen == expected else f"seen incumbent, persistent, hits and builds {seen}; expected {expected}"
