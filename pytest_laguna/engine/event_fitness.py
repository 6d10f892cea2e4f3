# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of the event profile: replays without and with it in turn, by one clock.

A round is three replays: plain, with a host clock reading at each boundary, and with the events. The readings tell
whether all kinds are slowed alike; their own cost is recorded too. The order rotates from round to round, so that a
growing context and a drifting host meet all three alike.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.evidence.events.profile import EventFitness, FitnessRound

from .event_loop import EventLoop, Replay, unchanged
from .event_profile import Directory, Instrument, Subject
from .timeline import Timeline

PLAIN, STAMPED, EVENTS = "plain", "stamped", "events"
_ORDER = ((PLAIN, STAMPED, EVENTS), (STAMPED, EVENTS, PLAIN), (EVENTS, PLAIN, STAMPED))


class FitnessProfiler(Instrument):
    """Takes the rounds from the first replays after ``start``.

    Attributes:
        rounds: number to take.
    """

    def __init__(self, subject: Subject, timeline: Timeline, directory: Directory, rounds: int) -> None:
        """Store the arguments, those of an ``Instrument`` and the number of rounds; change nothing yet."""
        super().__init__(subject, timeline, directory)
        self._due = itertools.cycle(itertools.chain.from_iterable(_ORDER))
        self._whole: dict[str, int] = {}
        self._kinds: dict[str, dict[SegmentKind, int]] = {}
        self._taken: list[FitnessRound] = []
        self.rounds = rounds

    def replay(self, replay: Replay) -> object:
        """Run one replay in the way that is due; its set-up is outside the measured time."""
        self._subject.require_captured()
        way = next(self._due)
        if way == PLAIN:
            returned = self._timed(way, replay)
        elif way == STAMPED:
            returned = self._stamped(replay)
        else:
            returned = self._with_events(replay)
        self._close_round()
        return returned

    def _timed(self, way: str, replay: Replay) -> object:
        self._timeline.synchronize()  # earlier work must not count for the replay
        begin = time.perf_counter_ns()
        returned = replay()
        self._timeline.synchronize()
        self._whole[way] = time.perf_counter_ns() - begin
        return returned

    def _stamped(self, replay: Replay) -> object:
        stamps: list[int] = []

        def loop() -> None:
            now, add = time.perf_counter_ns, stamps.append
            add(now())
            for segment in self._subject.segments:
                segment()
                add(now())

        with self._subject.batch.inside(loop, unchanged):
            returned = self._timed(STAMPED, replay)
        self._kinds[STAMPED] = self._by_kind(stamps)
        return returned

    def _with_events(self, replay: Replay) -> object:
        """Create the events before the replay, as the profile does."""
        loop = EventLoop(self._subject.segments, self._timeline, f"rank {self._subject.rank}, fitness")
        with self._subject.batch.inside(loop.run, unchanged):
            returned = self._timed(EVENTS, replay)
        self._kinds[EVENTS] = self._by_kind(loop.read().boundary_ns)
        return returned

    def _by_kind(self, stamps: Sequence[int]) -> dict[SegmentKind, int]:
        if len(stamps) != len(self._subject.kinds) + 1:
            self._subject.refuse(f"vLLM's replay to run {len(self._subject.kinds)} segments", f"{len(stamps)} readings")
        sums: dict[SegmentKind, int] = dict.fromkeys(self._subject.kinds, 0)
        for kind, (begin, end) in zip(self._subject.kinds, itertools.pairwise(stamps), strict=True):
            sums[kind] += end - begin
        return sums

    def _close_round(self) -> None:
        if len(self._whole) < len(_ORDER):
            return
        self._taken.append(
            FitnessRound(
                plain_ns=self._whole[PLAIN],
                stamped_ns=self._whole[STAMPED],
                events_ns=self._whole[EVENTS],
                stamped_kind_ns=self._kinds[STAMPED],
                events_kind_ns=self._kinds[EVENTS],
            )
        )
        self._whole.clear()
        if len(self._taken) == self.rounds:
            self.finish(self._fitness())

    def _fitness(self) -> EventFitness:
        subject = self._subject
        return EventFitness(
            rank=subject.rank,
            world_size=subject.world_size,
            descriptor=subject.batch.descriptor,
            clock=self._timeline.clock,
            kinds=subject.kinds,
            rounds=self._taken,
        )
