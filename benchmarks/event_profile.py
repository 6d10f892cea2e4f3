# SPDX-License-Identifier: Apache-2.0
"""Cost of the event profiles, error of the sparse shares, and attribution of waits between host and device.

``python -m benchmarks.event_profile --json`` runs the tiny pair in several processes. In each, replays of the target's
graph go round in three ways, in an order that turns: as they are, with events at the few drawn intervals, and with all
events. A ratio is the median over all rounds of one way over the first of the same round: ``slowdown_sparse`` and
``slowdown_full``.

``max_share_error_points`` is the largest error of the sparse profile's share of a kind, in percentage points, over
replays with known segment times, which depend on kind and layer. On the cpu lane those times are processor time of the
thread, which a busy host does not stretch; on a device they are products of matrices.

``delays``, on a device alone, comes from replays with a known delay of the device or the host before each segment of
one kind. It is the part of a device's delay found as work, and the part of a host's delay found as waiting, each within
the bounds of the whole profile's knowledge. Needs the lane's extra and a checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import replays
from benchmarks.replays import Replay, Rounds
from pytest_laguna.analysis.events.profile import category_sums, shares
from pytest_laguna.analysis.events.sparse import sparse_shares
from pytest_laguna.analysis.events.work import waiting
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.replay_profile import SegmentKind, order_sha256
from pytest_laguna.evidence.events.profile import EventClock, EventProfile, HostLead, StreamIdentity
from pytest_laguna.evidence.events.sparse import SparseProfile, chosen_intervals
from pytest_laguna.evidence.values import Lane

if TYPE_CHECKING:
    from pytest_laguna.engine.timeline import Stream, Timeline  # import torch

MODULE = "benchmarks.event_profile"
WAYS = ("plain", "sparse", "full")
MEASURING = {"cost": f"{MODULE}.Measuring", "delays": f"{MODULE}.Delaying"}

KNOWN_UNITS: dict[SegmentKind, int] = {"graph": 6, "attention": 2, "collective": 12}
"""Time of each kind's first segment in the replays with known shares; the last takes twice as long."""
UNIT_NS = 10_000
"""Of processor time, on the cpu lane."""
UNIT_SIZE = 512
"""Rows and columns of the matrices whose product is a unit, on a device."""
KNOWN_KINDS: list[SegmentKind] = [
    "graph",
    "collective",
    *(("graph", "attention", "graph", "collective", "graph", "collective") * 48),
    "graph",
]
KNOWN_TIMES = [
    round(KNOWN_UNITS[kind] * (1 + index / (len(KNOWN_KINDS) - 1))) for index, kind in enumerate(KNOWN_KINDS)
]
"""Of each segment, in units."""
KNOWN_REPLAYS = 60
KNOWN_TRIES = 3
"""Several, because a host that takes a core away for a while can stretch one interval a hundredfold."""

DELAY_SIZE = 1024
"""Of the matrices whose product delays a device."""
DELAY_NS = 200_000
"""Pause of the host, during which the device idles."""


def main() -> int:
    """Measure in processes of their own and print, or be one of them."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Cost and truth of the events.")
    parser.add_argument("--device", choices=sorted(replays.VLLM), default="cpu")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "REQUEST"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        what, request = chosen.measure
        print(json.dumps(replays.measure(Path(request), MEASURING[what])))
        return 0
    figures = run(chosen.processes, chosen.device) | known_shares(chosen.device)
    if chosen.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:24} {value}" for name, value in figures.items()))
    return 0


def run(processes: int, lane: Lane) -> dict[str, Any]:
    """All processes, one after the other."""
    rounds: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        asked = replays.request(lane, replays.build_pair(home, lane))
        for _ in range(processes):
            rounds += replays.child(MODULE, "cost", asked, home)
        delayed = None if lane == "cpu" else attributed(replays.child(MODULE, "delays", asked, home))
    return {
        "device": lane,
        "rounds": len(rounds),
        "median_ms": {way: statistics.median(taken[way] for taken in rounds) / 1e6 for way in WAYS},
        "slowdown_full": statistics.median(taken["full"] / taken["plain"] for taken in rounds),
        "slowdown_sparse": statistics.median(taken["sparse"] / taken["plain"] for taken in rounds),
        "delays": delayed,
    }


class Measuring:
    """Mixed into vLLM's worker; its names must not be among the worker's own."""

    def begin_measuring(self) -> None:
        """Time every replay from now on."""
        self.laguna_measurement = Measurement(self)

    def measured(self) -> list[dict[str, int]]:
        """The whole rounds."""
        return self.laguna_measurement.rounds.whole()


class Measurement:
    """Runs each replay of the target in one of the ways, and times it with the profiles' work in each replay.

    One-time work, and work before the measured replay such as the creation of events, is outside the time.
    """

    def __init__(self, worker: Any) -> None:
        from pytest_laguna.engine.compat import introspection, replay  # noqa: PLC0415 - import vLLM
        from pytest_laguna.engine.event_profile import Subject  # noqa: PLC0415
        from pytest_laguna.engine.timeline import timeline  # noqa: PLC0415

        batch = replay.verification_batch(worker, arm_settings.VERIFIED_TOKENS)
        kinds = [introspection.segment_kind(segment) for segment in batch.segments]
        self.subject = Subject(batch, kinds, order_sha256(kinds), (0, 1))
        self.timeline = timeline()
        self.drawn = itertools.cycle([chosen_intervals(kinds, number) for number in range(100)])
        self.rounds = Rounds(WAYS, self.timeline.synchronize)
        self.hooks = contextlib.ExitStack()
        self.hooks.enter_context(batch.around(self.timed))

    def timed(self, replay: Replay) -> Any:
        """One replay, in the way that is due."""
        way = self.rounds.due()
        if way == "plain":
            return self.rounds.timed(way, replay)
        with self.put(way):
            return self.rounds.timed(way, lambda: self.checked(replay))

    def checked(self, replay: Replay) -> Any:
        """Checks of both profiles around a replay."""
        self.subject.require_captured()
        stream = self.timeline.current()
        returned = replay()
        if self.timeline.current() != stream:
            raise RuntimeError("another stream")
        return returned

    @contextlib.contextmanager
    def put(self, way: str) -> Iterator[None]:
        """A loop with events in the place of vLLM's."""
        from pytest_laguna.engine.event_loop import EventLoop, unchanged  # noqa: PLC0415 - imports torch
        from pytest_laguna.engine.event_sparse import SparseLoop  # noqa: PLC0415

        segments = self.subject.segments
        loop = (
            EventLoop(segments, self.timeline, "benchmark")
            if way == "full"
            else SparseLoop(segments, next(self.drawn), self.timeline)
        )
        with self.subject.batch.inside(loop.run, unchanged):
            yield


# Delays


class Delaying:
    """Mixed into vLLM's worker likewise."""

    def begin_measuring(self) -> None:
        """Delay every replay from now on."""
        self.laguna_measurement = Delays(self)

    def measured(self) -> dict[str, Any]:
        """The size of a delay of each side, the segments of each kind, and every replay's sums by kind."""
        delays = self.laguna_measurement
        return {
            "delay_ns": {"device": delays.load.unit_ns, "host": DELAY_NS},
            "counts": {kind: delays.kinds.count(kind) for kind in dict.fromkeys(delays.kinds)},
            "replays": delays.taken,
        }


class Delays:
    """Runs each replay of the target with all events, and one side delayed before each segment of one kind."""

    def __init__(self, worker: Any) -> None:
        from pytest_laguna.engine.compat import introspection, replay  # noqa: PLC0415 - import vLLM
        from pytest_laguna.engine.timeline import timeline  # noqa: PLC0415

        self.batch = replay.verification_batch(worker, arm_settings.VERIFIED_TOKENS)
        self.kinds: list[SegmentKind] = [introspection.segment_kind(segment) for segment in self.batch.segments]
        self.timeline = timeline()
        self.load = Load(DELAY_SIZE, self.timeline)
        self.delays: dict[str, Callable[[], None]] = {"device": self.load.submit, "host": _spin}
        self.due = itertools.cycle(
            [("none", ""), *itertools.product(self.delays, dict.fromkeys(self.kinds))]  # each kind once
        )
        self.taken: list[dict[str, Any]] = []
        self.hooks = contextlib.ExitStack()
        self.hooks.enter_context(self.batch.around(self.delayed))

    def delayed(self, replay: Replay) -> Any:
        """One replay."""
        from pytest_laguna.engine.event_loop import EventLoop, unchanged  # noqa: PLC0415 - imports torch

        side, kind = next(self.due)
        segments = [
            _after(self.delays[side], segment) if kind == own else segment
            for own, segment in zip(self.kinds, self.batch.segments, strict=True)
        ]
        loop = EventLoop(segments, self.timeline, "benchmark")
        with self.batch.inside(loop.run, unchanged):
            returned = replay()
        measured = loop.read()
        profile = EventProfile(
            rank=0,
            world_size=1,
            descriptor=self.batch.descriptor,
            clock=self.timeline.clock,
            stream=StreamIdentity(**loop.stream._asdict()),
            kinds=self.kinds,
            interval_ns=measured.interval_ns,
            span_ns=measured.span_ns,
            lead=HostLead(boundary_ns=measured.boundary_ns, synchronised_ns=measured.synchronised_ns),
        )
        self.taken.append({"side": side, "kind": kind, **self.sums(profile)})
        return returned

    def sums(self, profile: EventProfile) -> dict[str, dict[SegmentKind, float]]:
        """Nanoseconds by kind: of the intervals, and of the waiting in them at least and at most."""
        waited = waiting(profile)
        if waited is None:
            raise RuntimeError("the host is the device: there is nothing to split")
        values = {"interval": profile.interval_ns, "least": waited.least, "most": waited.most}
        return {name: category_sums(self.kinds, each) for name, each in values.items()}


def attributed(told: dict[str, Any]) -> dict[str, Any]:
    """Median increase of each kind's sums by a delay, by delayed side and kind.

    ``found`` is the share attributed to the delayed side, within its bounds: the device's delays as work, and the
    host's as waiting, of the increase of the intervals.
    """
    taken: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for replay in told["replays"]:
        taken.setdefault((replay["side"], replay["kind"]), []).append(replay)
    plain = taken.pop(("none", ""))
    answer = {}
    for (side, kind), rows in taken.items():
        added = {name: _median(rows, name, kind) - _median(plain, name, kind) for name in ("interval", "least", "most")}
        injected = told["delay_ns"][side] * told["counts"][kind]
        if side == "device":
            found = sorted((added["interval"] - added[bound]) / injected for bound in ("least", "most"))
        else:
            found = sorted(added[bound] / added["interval"] for bound in ("least", "most"))
        in_ms = {f"{name}_ms": value / 1e6 for name, value in {"injected": injected, **added}.items()}
        answer[f"{side} {kind}"] = {"replays": len(rows), **in_ms, "found": found}
    return answer


def _median(rows: Sequence[dict[str, Any]], name: str, kind: str) -> float:
    return statistics.median(float(row[name][kind]) for row in rows)


def _after(delay: Callable[[], None], segment: Replay) -> Replay:
    def delayed() -> Any:
        delay()
        return segment()

    return delayed


def _spin() -> None:
    until = time.perf_counter_ns() + DELAY_NS
    while time.perf_counter_ns() < until:
        pass


class Load:
    """Work of a known size for the device: products of matrices, submitted to the current stream.

    Attributes:
        unit_ns: measured duration of one product.
    """

    PRODUCTS = 200
    WARM_SECONDS = 0.5

    def __init__(self, size: int, timeline: Timeline) -> None:
        import torch  # noqa: PLC0415 - the rest needs none

        from pytest_laguna.engine.event_loop import nanoseconds  # noqa: PLC0415 - imports torch

        self._multiply = torch.mm
        self._matrix = torch.ones(size, size, device=torch.accelerator.current_accelerator())
        self._product = torch.empty_like(self._matrix)
        until = time.monotonic() + self.WARM_SECONDS
        while time.monotonic() < until:  # the first ones make what the library needs, and the clocks rise
            self.submit(self.PRODUCTS)
            timeline.synchronize()
        begin, end = timeline.events(2)
        begin.record()
        self.submit(self.PRODUCTS)
        end.record()
        timeline.synchronize()
        self.unit_ns = nanoseconds(begin, end, "load") / self.PRODUCTS

    def submit(self, times: int = 1) -> None:
        """Submit a number of products."""
        for _ in range(times):
            self._multiply(self._matrix, self._matrix, out=self._product)


# Known shares


class _ProcessorTime:
    """A timeline whose events take the thread's processor time."""

    clock: EventClock = "host-clock"

    def current(self) -> int:
        return 0

    def identity(self, stream: Hashable) -> Stream:
        raise NotImplementedError("the sparse loop asks for no stream")

    def events(self, count: int) -> list[_ProcessorEvent]:
        return [_ProcessorEvent() for _ in range(count)]

    def synchronize(self) -> None:
        """Nothing runs beside the thread."""


class _ProcessorEvent:
    def __init__(self) -> None:
        self.nanoseconds = 0

    def record(self) -> None:
        self.nanoseconds = time.thread_time_ns()

    def is_complete(self) -> bool:
        return self.nanoseconds > 0

    def milliseconds_until(self, later: Any) -> float:
        return float(later.nanoseconds - self.nanoseconds) / 1e6


def known_shares(lane: Lane) -> dict[str, Any]:
    """Shares found by the sparse profile of replays with known segment times; the error is the median of the tries."""
    truth = shares(category_sums(KNOWN_KINDS, KNOWN_TIMES))
    tries = [sparse_shares(_known_profile(lane)) for _ in range(KNOWN_TRIES)]
    errors = [max(abs(seen[kind].percent - share) for kind, share in truth.items()) for seen in tries]
    return {
        "known_shares": {str(kind): share for kind, share in truth.items()},
        "sparse_shares": [{str(kind): share.percent for kind, share in seen.items()} for seen in tries],
        "share_error_points": errors,
        "max_share_error_points": statistics.median(errors),
    }


def _known_profile(lane: Lane) -> SparseProfile:
    from pytest_laguna.engine.event_sparse import SparseLoop  # noqa: PLC0415 - imports torch
    from pytest_laguna.engine.timeline import timeline  # noqa: PLC0415

    clock: Timeline = _ProcessorTime() if lane == "cpu" else timeline()
    work: Callable[[int], None] = _processor_work if lane == "cpu" else Load(UNIT_SIZE, clock).submit
    segments = [functools.partial(work, number) for number in KNOWN_TIMES]
    loops = [SparseLoop(segments, chosen_intervals(KNOWN_KINDS, number), clock) for number in range(KNOWN_REPLAYS)]
    for loop in loops:
        loop.run()
    clock.synchronize()
    return SparseProfile(
        rank=0,
        world_size=1,
        descriptor="known times",
        clock=clock.clock,
        stream=StreamIdentity(device_type=lane, device_index=0, stream_id=0),
        kinds=KNOWN_KINDS,
        replays=[loop.read(f"replay {number}") for number, loop in enumerate(loops)],
    )


def _processor_work(units: int) -> None:
    until = time.thread_time_ns() + units * UNIT_NS
    while time.thread_time_ns() < until:
        pass


if __name__ == "__main__":
    sys.exit(main())
