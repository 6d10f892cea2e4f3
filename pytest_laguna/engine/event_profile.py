# SPDX-License-Identifier: Apache-2.0
"""Times one replay of the target's graph by events on its stream, writes the profile, and removes itself.

Source: the preregistration of the current-stream event profile.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_settings import VERIFIED_TOKENS
from pytest_laguna.evidence.arms.replay_profile import SegmentKind, order_sha256
from pytest_laguna.evidence.events.profile import EventProfile, HostLead, StreamIdentity
from pytest_laguna.evidence.schemas import Schema

from .event_loop import EventLoop, ProfiledBatch, Replay, unchanged
from .profile_directory import ProfileError
from .timeline import Timeline

_ATTEMPTED: set[tuple[Path, int]] = set()
"""Root and rank of every attempt of this process; a second attempt is refused, however the first ended."""


class TimedBatch(ProfiledBatch, Protocol):
    """A captured batch with its number of tokens."""

    tokens: int


class Directory(Protocol):
    """Destination of a rank's file, such as ``profile_directory.ProfileDirectory``."""

    root: Path

    def write(self, content: bytes) -> str:
        """Write this rank's file, once; return its SHA-256."""


class Subject:
    """A captured batch to measure, with the expected segments.

    Attributes:
        batch: its replays are measured.
        segments: of the batch, at construction.
        kinds: of the segments.
        rank: owner of the batch.
        world_size: number of ranks.
    """

    def __init__(self, batch: TimedBatch, kinds: Sequence[SegmentKind], order: str, place: tuple[int, int]) -> None:
        """Check the batch; raises ProfileError for another size, topology or place.

        Args:
            batch: its replays are measured.
            kinds: of its segments.
            order: expected SHA-256 of the kinds, in order.
            place: rank and world size.
        """
        self.rank, self.world_size = place
        self.batch = batch
        self.segments = list(batch.segments)
        self.kinds = list(kinds)
        if not 0 <= self.rank < self.world_size:
            self.refuse(f"a rank below {self.world_size}", f"rank {self.rank}")
        if batch.tokens != VERIFIED_TOKENS:
            self.refuse(f"a batch of {VERIFIED_TOKENS} tokens", f"{batch.tokens}")
        if len(self.kinds) != len(self.segments):
            self.refuse(f"{len(self.segments)} kinds, one a segment", f"{len(self.kinds)}")
        if order_sha256(self.kinds) != order:
            seen = f"{len(self.kinds)} segments in order {order_sha256(self.kinds)}"
            self.refuse(f"the segments in order {order}", seen)

    def require_captured(self) -> None:
        """Require the captured segments, one by one; raises ProfileError if a replay would run others."""
        now = self.batch.segments
        if now == self.segments:
            return
        if len(now) != len(self.segments):
            self.refuse(f"{len(self.segments)} segments, as captured", f"{len(now)}")
        same = [given is captured for given, captured in zip(now, self.segments, strict=True)]
        if not all(same):
            self.refuse("the segments that were captured", f"another segment {same.index(False)}")

    def refuse(self, expected: str, seen: str) -> NoReturn:
        """Raise ProfileError."""
        raise ProfileError(f"rank {self.rank}, event profile: seen {seen}; expected {expected}")


class Instrument(abc.ABC):
    """Measures a subject's replays: starts once, writes one file of its rank, then leaves the plain path for good.

    Attributes:
        sha256: digest of the written file; None before.
    """

    def __init__(self, subject: Subject, timeline: Timeline, directory: Directory) -> None:
        """Store the arguments; change nothing yet."""
        self._subject = subject
        self._timeline = timeline
        self._directory = directory
        self._hooks: contextlib.ExitStack | None = None
        self._then: Callable[[], None] | None = None
        self.sha256: str | None = None

    def start(self, then: Callable[[], None]) -> None:
        """Measure the next replays; after the last, restore the plain path and call ``then``; once, or ProfileError."""
        if self._hooks is not None:
            self._subject.refuse("one start", "a second one")
        self._then = then
        with contextlib.ExitStack() as hooks:
            self._put(hooks)
            self._hooks = hooks.pop_all()

    def _put(self, hooks: contextlib.ExitStack) -> None:
        """Install the measurement around the replays."""
        hooks.enter_context(self._subject.batch.around(self._measured))

    def _measured(self, replay: Replay) -> object:
        """Run one replay; an error ends the measurement."""
        try:
            return self.replay(replay)
        except BaseException:
            self._restore()
            raise

    @abc.abstractmethod
    def replay(self, replay: Replay) -> object:
        """Measure one replay, and ``finish`` after the last."""

    def finish(self, profile: Schema) -> None:
        """Restore the plain path, write the profile and call ``then``."""
        self._restore()
        self.sha256 = self._directory.write(files.canonical_json(profile.canonical()))
        if self._then is not None:
            self._then()

    def _restore(self) -> None:
        if self._hooks is not None:
            self._hooks.close()

    @property
    def started(self) -> bool:
        """True after ``start``."""
        return self._hooks is not None


class EventProfiler(Instrument):
    """Measures the first replay after ``start``, and no other."""

    def __init__(self, subject: Subject, timeline: Timeline, directory: Directory) -> None:
        """Claim the one attempt of this root and rank; raises ProfileError if this process has attempted it before."""
        super().__init__(subject, timeline, directory)
        claim = (directory.root, subject.rank)
        if claim in _ATTEMPTED:
            subject.refuse("one attempt in a process", f"a second one for {directory.root}")
        _ATTEMPTED.add(claim)
        self._loop: EventLoop | None = None

    def replay(self, replay: Replay) -> object:
        """Measure the one replay; raises ProfileError unless it runs the captured segments once, on one stream."""
        subject = self._subject
        if not self.started:
            subject.refuse("a start before the replay", "none")
        if self._loop is not None:
            subject.refuse("one measured replay", "a second one")
        subject.require_captured()
        self._loop = EventLoop(subject.segments, self._timeline, f"rank {subject.rank}, event profile")
        with subject.batch.inside(self._loop.run, unchanged):
            returned = replay()
        subject.require_captured()
        self.finish(self._profile(self._loop))
        return returned

    def _profile(self, loop: EventLoop) -> EventProfile:
        subject, measured = self._subject, loop.read()
        lead = HostLead(boundary_ns=measured.boundary_ns, synchronised_ns=measured.synchronised_ns)
        return EventProfile(
            rank=subject.rank,
            world_size=subject.world_size,
            descriptor=subject.batch.descriptor,
            clock=self._timeline.clock,
            stream=StreamIdentity(**loop.stream._asdict()),
            kinds=subject.kinds,
            interval_ns=measured.interval_ns,
            span_ns=measured.span_ns,
            lead=lead if self._timeline.clock == "device-event" else None,
        )
