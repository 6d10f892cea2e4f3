# SPDX-License-Identifier: Apache-2.0
"""Events at the drawn intervals of many replays, so few that the replays stay what they are.

Nothing is read before the last replay: no synchronise and no look at an event lies between two replays.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

from pytest_laguna.evidence import files
from pytest_laguna.evidence.event_profile import StreamIdentity
from pytest_laguna.evidence.event_sparse import SparseProfile, chosen_intervals

from .event_loop import Replay, unchanged
from .event_profile import Directory, Subject
from .profile_directory import ProfileError
from .timeline import TimedEvent, Timeline


class SparseLoop:
    """One run over a replay's segments, with an event on both sides of each chosen one."""

    def __init__(self, segments: Sequence[Replay], chosen: Sequence[int], timeline: Timeline) -> None:
        """Make the events on the current stream, and lay out what runs.

        Args:
            segments: what a replay runs, in order.
            chosen: indices of those that are measured, in order.
            timeline: what takes the times.
        """
        events = timeline.events(2 * len(chosen))
        self.pairs: list[tuple[TimedEvent, TimedEvent]] = list(zip(events[::2], events[1::2], strict=True))
        self._steps: list[Callable[[], object]] = []
        done = 0
        for (before, after), index in zip(self.pairs, chosen, strict=True):
            self._steps += [*segments[done:index], before.record, segments[index], after.record]
            done = index + 1
        self._steps += segments[done:]

    def run(self) -> None:
        """The loop of vLLM's replay."""
        for step in self._steps:
            step()

    def read(self, where: str) -> list[int]:
        """Nanoseconds of the chosen segments, once the device is done.

        Args:
            where: how an error begins.

        Raises:
            ProfileError: an event is not complete, or a duration is not finite, or negative.
        """
        durations = []
        for before, after in self.pairs:
            complete = before.is_complete() and after.is_complete()
            milliseconds = before.milliseconds_until(after) if complete else math.nan
            if not math.isfinite(milliseconds) or milliseconds < 0:
                message = f"{where}: an interval of {milliseconds} ms; expected a finite duration from 0"
                raise ProfileError(message)
            durations.append(round(milliseconds * 1_000_000))
        return durations


class SparseProfiler:
    """Measures a few intervals of each of the first replays after ``start``.

    Attributes:
        replays: how many are to be measured.
        sha256: digest of the file that was written after the last; None until then.
    """

    def __init__(self, subject: Subject, timeline: Timeline, directory: Directory, replays: int) -> None:
        """Change nothing yet.

        Args:
            subject: what is measured.
            timeline: what takes the times.
            directory: where the file goes.
            replays: how many.
        """
        self._subject = subject
        self._timeline = timeline
        self._directory = directory
        self._stream = timeline.current()
        self._chosen = [chosen_intervals(subject.kinds, number) for number in range(replays)]
        self._loops: list[SparseLoop] = []
        self._hooks: contextlib.ExitStack | None = None
        self.replays = replays
        self.sha256: str | None = None

    def start(self, then: Callable[[], None]) -> None:
        """Measure every replay from now on; after the last the plain path is restored and ``then`` called.

        Raises:
            ProfileError: it was started before.
        """
        if self._hooks is not None:
            self._subject.refuse("one start", "a second one")
        self._then = then
        with contextlib.ExitStack() as hooks:
            hooks.enter_context(self._subject.batch.around(self.replay))
            self._hooks = hooks.pop_all()

    def replay(self, replay: Replay) -> object:
        """One replay; its events are made before it.

        Raises:
            ProfileError: it does not run what was captured, or on another stream.
        """
        self._subject.require_captured()
        self._require_stream()
        loop = SparseLoop(self._subject.segments, self._chosen[len(self._loops)], self._timeline)
        with self._subject.batch.inside(loop.run, unchanged):
            returned = replay()
        self._require_stream()
        self._loops.append(loop)
        if len(self._loops) == self.replays:
            self._finish()
        return returned

    def _require_stream(self) -> None:
        if (current := self._timeline.current()) != self._stream:
            self._subject.refuse(f"{self._stream}", f"{current}")

    def _finish(self) -> None:
        """Restore the plain path for ever, read, write, and say so."""
        if self._hooks is not None:
            self._hooks.close()
        self._timeline.synchronize()
        subject = self._subject
        where = f"rank {subject.rank}, sparse event profile"
        profile = SparseProfile(
            rank=subject.rank,
            world_size=subject.world_size,
            descriptor=subject.batch.descriptor,
            clock=self._timeline.clock,
            stream=StreamIdentity(**self._stream._asdict()),
            kinds=subject.kinds,
            replays=[loop.read(f"{where}, replay {number}") for number, loop in enumerate(self._loops)],
        )
        self.sha256 = self._directory.write(files.canonical_json(profile.canonical()))
        self._then()
