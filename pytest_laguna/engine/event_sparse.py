# SPDX-License-Identifier: Apache-2.0
"""Events at a few drawn intervals of many replays, so that they hardly change the replays.

Nothing is read before the last replay: no synchronise and no query of an event lies between two replays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence

from pytest_laguna.evidence.events.profile import StreamIdentity
from pytest_laguna.evidence.events.sparse import SparseProfile, chosen_intervals

from .event_loop import Replay, frozen_stream, nanoseconds, require_complete, unchanged
from .event_profile import Directory, Instrument, Subject
from .timeline import Timeline


class SparseLoop:
    """One run over a replay's segments, with an event before and after each chosen one."""

    def __init__(self, segments: Sequence[Replay], chosen: Sequence[int], timeline: Timeline) -> None:
        """Create the events on the current stream, and lay out the steps.

        Args:
            segments: of a replay, in order.
            chosen: indices of the measured ones, in order.
            timeline: takes the times.
        """
        self._events = timeline.events(2 * len(chosen))
        self.ran = False
        self._steps: list[Callable[[], object]] = []
        done = 0
        for before, after, index in zip(self._events[::2], self._events[1::2], chosen, strict=True):
            self._steps += [*segments[done:index], before.record, segments[index], after.record]
            done = index + 1
        self._steps += segments[done:]

    def run(self) -> None:
        """Run the steps, in place of the loop of vLLM's replay."""
        for step in self._steps:
            step()
        self.ran = True

    def read(self, where: str) -> list[int]:
        """Nanoseconds of the chosen segments, once the device is done; raises ProfileError like ``EventLoop.read``."""
        require_complete(self._events, where)
        pairs = zip(self._events[::2], self._events[1::2], strict=True)
        return [nanoseconds(*pair, f"{where}: interval {number}") for number, pair in enumerate(pairs)]


class SparseProfiler(Instrument):
    """Measures a few intervals of each of the first replays after ``start``.

    Attributes:
        replays: number to measure.
    """

    def __init__(self, subject: Subject, timeline: Timeline, directory: Directory, replays: int) -> None:
        """Draw the intervals; arguments as of an ``Instrument``, and the number of replays."""
        super().__init__(subject, timeline, directory)
        self._where = f"rank {subject.rank}, sparse event profile"
        self._stream: Hashable | None = None
        self._chosen = [chosen_intervals(subject.kinds, number) for number in range(replays)]
        self._loops: list[SparseLoop] = []
        self._due: Iterator[SparseLoop] = iter(())
        self._loop: SparseLoop | None = None
        self.replays = replays

    def _put(self, hooks: contextlib.ExitStack) -> None:
        super()._put(hooks)
        hooks.enter_context(self._subject.batch.inside(self._run, unchanged))

    def _run(self) -> None:
        """Run the due loop, in place of vLLM's."""
        if self._loop is None:
            self._subject.refuse("a loop within a measured replay", "one outside")
        self._loop.run()

    def replay(self, replay: Replay) -> object:
        """Measure one replay; the first fixes the stream and creates all events.

        Raises:
            ProfileError: it runs other segments than the captured ones, or on another stream.
        """
        self._subject.require_captured()
        stream = self._stream = self._begin() if self._stream is None else self._stream
        self._require_stream(stream)
        loop = self._loop = next(self._due)
        returned = replay()
        self._require_stream(stream)
        if not loop.ran:
            self._subject.refuse("vLLM's replay to run its segments", "none run")
        if loop is self._loops[-1]:
            self._timeline.synchronize()
            self.finish(self._profile(stream))
        return returned

    def _begin(self) -> Hashable:
        stream = frozen_stream(self._timeline, self._where)
        self._loops = [SparseLoop(self._subject.segments, chosen, self._timeline) for chosen in self._chosen]
        self._due = iter(self._loops)
        return stream

    def _require_stream(self, stream: Hashable) -> None:
        if (current := self._timeline.current()) != stream:
            self._subject.refuse(f"{self._timeline.identity(stream)}", f"{self._timeline.identity(current)}")

    def _profile(self, stream: Hashable) -> SparseProfile:
        subject = self._subject
        return SparseProfile(
            rank=subject.rank,
            world_size=subject.world_size,
            descriptor=subject.batch.descriptor,
            clock=self._timeline.clock,
            stream=StreamIdentity(**self._timeline.identity(stream)._asdict()),
            kinds=subject.kinds,
            replays=[loop.read(f"{self._where}, replay {number}") for number, loop in enumerate(self._loops)],
        )
