# SPDX-License-Identifier: Apache-2.0
"""Times one replay of the target's graph by events on its stream, writes the profile, and is gone for ever.

Source: the preregistration of the current-stream event profile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from pytest_laguna.evidence import files
from pytest_laguna.evidence.event_profile import EventProfile, HostLead, StreamIdentity
from pytest_laguna.evidence.replay_profile import SegmentKind, order_sha256

from .arms import VERIFIED_TOKENS
from .event_loop import EventLoop, Replay, unchanged
from .profile_directory import ProfileError
from .timeline import Timeline

_ATTEMPTED: set[tuple[Path, int]] = set()
"""Root and rank of every attempt of this process: there is one each, whatever became of it."""


class Batch(Protocol):
    """A captured batch; ``compat.replay.CapturedBatch``."""

    descriptor: str
    tokens: int
    segments: list[Replay]

    def around(self, whole: Callable[[Replay], object]) -> contextlib.AbstractContextManager[None]:
        """Each replay is run by ``whole``."""

    def inside(
        self, loop: Callable[[], None], offloader: Callable[[Replay], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Its parts are run by these."""


class Directory(Protocol):
    """Where the file goes; ``profile_directory.ProfileDirectory``."""

    root: Path

    def write(self, content: bytes) -> str:
        """Write this rank's file, once; its SHA-256."""


class Subject:
    """What is measured: a captured batch whose segments are those that were asked for.

    Attributes:
        batch: whose replays are measured.
        segments: of it, as they were when it was looked at first.
        kinds: of its segments.
        rank: that it belongs to.
        world_size: how many ranks there are.
    """

    def __init__(self, batch: Batch, kinds: Sequence[SegmentKind], order: str, place: tuple[int, int]) -> None:
        """Look at it.

        Args:
            batch: whose replays are measured.
            kinds: of its segments.
            order: SHA-256 of the kinds that are expected, in their order.
            place: rank and world size.

        Raises:
            ProfileError: it is of another size, topology or place than expected.
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
        """A replay runs what was captured, segment for segment.

        Raises:
            ProfileError: it does not.
        """
        now = self.batch.segments
        if len(now) != len(self.segments):
            self.refuse(f"{len(self.segments)} segments, as captured", f"{len(now)}")
        same = [given is captured for given, captured in zip(now, self.segments, strict=True)]
        if not all(same):
            self.refuse("the segments that were captured", f"another segment {same.index(False)}")

    def refuse(self, expected: str, seen: str) -> NoReturn:
        """Say what is wrong."""
        raise ProfileError(f"rank {self.rank}, event profile: expected {expected}, seen {seen}")


class EventProfiler:
    """Measures the first replay after ``start``, and no other.

    Attributes:
        sha256: digest of the file that was written; None until then.
    """

    def __init__(self, subject: Subject, timeline: Timeline, directory: Directory) -> None:
        """Claim the one attempt of this root and rank.

        Args:
            subject: what is measured.
            timeline: what takes the times.
            directory: where the file goes.

        Raises:
            ProfileError: this process has attempted it before.
        """
        claim = (directory.root, subject.rank)
        if claim in _ATTEMPTED:
            subject.refuse("one attempt in a process", f"a second one for {directory.root}")
        _ATTEMPTED.add(claim)
        self._subject = subject
        self._timeline = timeline
        self._directory = directory
        self._loop: EventLoop | None = None
        self._hooks: contextlib.ExitStack | None = None
        self.sha256: str | None = None

    def start(self, then: Callable[[], None]) -> None:
        """Measure the next replay; then the plain path is restored and ``then`` called.

        Raises:
            ProfileError: it was started before.
        """
        if self._hooks is not None:
            self._subject.refuse("one start", "a second one")
        self._then = then
        batch = self._subject.batch
        with contextlib.ExitStack() as hooks:
            hooks.enter_context(batch.around(self.replay))
            hooks.enter_context(batch.inside(self.loop, unchanged))
            self._hooks = hooks.pop_all()

    def replay(self, replay: Replay) -> object:
        """The one replay. Whatever becomes of it, the plain path is back afterwards.

        Raises:
            ProfileError: it was not one whole replay of what was captured, on one stream.
        """
        if self._hooks is None:
            self._subject.refuse("a start before the replay", "none")
        if self._loop is not None:
            self._subject.refuse("one measured replay", "a second one")
        with self._hooks:
            self._subject.require_captured()
            self._loop = EventLoop(self._subject.segments, self._timeline, f"rank {self._subject.rank}, event profile")
            returned = replay()
        self._finish(self._loop)
        return returned

    def loop(self) -> None:
        """In place of vLLM's loop over the segments.

        Raises:
            ProfileError: there is no replay that it belongs to, or a stream drifted.
        """
        if self._loop is None:
            self._subject.refuse("a loop within the measured replay", "one outside")
        self._loop.run()

    def _finish(self, loop: EventLoop) -> None:
        """Read, write, and say so."""
        subject = self._subject
        subject.require_captured()
        measured = loop.read()
        on_device = self._timeline.clock == "device-event"
        profile = EventProfile(
            rank=subject.rank,
            world_size=subject.world_size,
            descriptor=subject.batch.descriptor,
            clock=self._timeline.clock,
            stream=StreamIdentity(**loop.stream._asdict()),
            kinds=subject.kinds,
            interval_ns=measured.interval_ns,
            span_ns=measured.span_ns,
            lead=HostLead(boundary_ns=measured.boundary_ns, synchronised_ns=measured.synchronised_ns)
            if on_device
            else None,
        )
        self.sha256 = self._directory.write(files.canonical_json(profile.canonical()))
        self._then()
