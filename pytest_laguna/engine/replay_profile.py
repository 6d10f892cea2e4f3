# SPDX-License-Identifier: Apache-2.0
"""Times the first replays of the target's graph on the host, writes the profile, and removes itself."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeAlias

import torch

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.replay_profile import ReplayProfile, ReplaySample, SegmentKind, ViewPreparation

from .event_loop import ProfiledBatch, Replay
from .profile_directory import ProfileDirectory, ProfileError
from .view_preparation import Clocked, Counted, Stopped, TimingSeam, ViewCounts

_Taken: TypeAlias = tuple[tuple[Clocked, Counted, Counted], tuple[int, int] | None, int, int, int]
"""Raw sample of a replay: the parts of a ``Stopped``, and readings of its clock.

The readings: before and after the wait for the offloader, at the begin, after the submission and after the end.
"""


class ReplayProfiler:
    """Takes a rank's samples from the first replays after ``start``.

    Attributes:
        samples: number to take.
        taken: number taken so far.
        sha256: digest of the written file; None before the last sample.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is one fact
        self,
        batch: ProfiledBatch,
        kinds: Sequence[SegmentKind],
        seam: TimingSeam,
        directory: ProfileDirectory,
        place: tuple[int, int],
        samples: int,
    ) -> None:
        """Store the arguments; change nothing yet; ``place`` is rank and world size."""
        self._batch = batch
        self._segments = tuple(batch.segments)
        self._kinds = list(kinds)
        self._seam = seam
        self._directory = directory
        self._place = place
        self._read = seam.clock.read
        self._synchronize = synchronizer()
        self._started = False
        self._hooks = contextlib.ExitStack()
        self._taken: list[_Taken] = []
        self._waited: tuple[int, int] | None = None
        self.samples = samples
        self.sha256: str | None = None

    @property
    def taken(self) -> int:
        """Number of samples taken so far."""
        return len(self._taken)

    def start(self, then: Callable[[], None]) -> None:
        """Time every replay from now on; after the last sample, restore the plain path and call ``then``; once."""
        if self._started:
            raise ProfileError("replay profile: seen a second start; expected one attempt in a process")
        self._started = True
        self._then = then
        with contextlib.ExitStack() as hooks:
            hooks.enter_context(self._batch.around(self.replay))
            hooks.enter_context(self.parts())
            self._hooks = hooks.pop_all()

    @contextlib.contextmanager
    def parts(self) -> Iterator[None]:
        """Time the parts of a replay inside the block; ``replay`` combines them to a sample."""
        self._seam.install()
        try:
            with self._batch.inside(self.loop, self.wait_for_offloader):
                yield
        finally:
            self._seam.remove()

    def replay(self, replay: Replay) -> object:
        """Time one replay; everything else happens before the first or after the last clock reading."""
        self._waited = None
        self._seam.start()
        begin = self._read()
        returned = replay()
        submitted = self._read()
        self._synchronize()
        done = self._read()
        (_, _, segments), *_ = stopped = self._seam.stop()
        if not segments:
            self._refuse(f"vLLM's replay to run {len(self._kinds)} segments", "none timed")
        self._taken.append((stopped, self._waited, begin, submitted, done))
        if len(self._taken) == self.samples:
            self._finish()
        return returned

    def loop(self) -> None:
        """Run the segments in place of vLLM's loop, with one clock reading between two segments."""
        if not self._seam.clock.run_segments(self._segments, self._batch.segments):
            self._refuse_segments()

    def wait_for_offloader(self, wait: Replay) -> None:
        """Time the wait for offloaded weights."""
        begin = self._read()
        wait()
        self._waited = (begin, self._read())

    def _refuse_segments(self) -> NoReturn:
        """Name the first segment that is not the captured one."""
        now = self._batch.segments
        if len(now) != len(self._segments):
            self._refuse(f"{len(self._segments)} segments, as captured", f"{len(now)}")
        other = list(map(operator.is_, now, self._segments)).index(False)
        self._refuse("the segments that were captured", f"another segment {other}")

    def _finish(self) -> None:
        """Restore the plain path for good, write the profile and call ``then``."""
        self._hooks.close()
        rank, world_size = self._place
        profile = ReplayProfile(
            rank=rank,
            world_size=world_size,
            descriptor=self._batch.descriptor,
            kinds=self._kinds,
            samples=[_sample(taken) for taken in self._taken],
        )
        self.sha256 = self._directory.write(files.canonical_json(profile.canonical()))
        self._then()

    def _refuse(self, expected: str, seen: str) -> NoReturn:
        raise ProfileError(f"rank {self._place[0]}, profiled replay {self.taken}: seen {seen}; expected {expected}")


def _sample(taken: _Taken) -> ReplaySample:
    parts, waited, *readings = taken
    stopped = Stopped(*parts)
    begin, submitted, done = map(stopped.since_start, readings)
    stamps = stopped.readings()
    return ReplaySample(
        segment_ns=[end - start for start, end in itertools.pairwise(stamps)],
        loop_ns=stamps[-1] - stamps[0],
        # vLLM takes these steps in debug mode only, and offers no place to time them from outside.
        debug_guard_ns=None,
        signature_collect_ns=None,
        signature_compare_ns=None,
        offloader_sync_ns=None if waited is None else stopped.since_start(waited[1]) - stopped.since_start(waited[0]),
        host_ns=submitted - begin,
        synchronize_ns=done - submitted,
        whole_ns=done - begin,
        views=ViewPreparation(**ViewCounts.of(stopped)._asdict()),
    )


def synchronizer() -> Callable[[], None]:
    """The function that waits for the device; on a CPU it does nothing."""
    if torch.accelerator.is_available():
        return torch.accelerator.synchronize
    return lambda: None
