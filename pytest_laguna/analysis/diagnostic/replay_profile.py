# SPDX-License-Identifier: Apache-2.0
"""Reduces the profiles of an arm's ranks to one number a sample: in one pass, with one rank's file in memory.

Every quantity of a sample is the maximum over the ranks, since the others wait for the slowest rank. Source: the
published replay profile of the persistent KV-cache views.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import TypeAlias

from pytest_laguna.evidence.arms.profile_file import Profiles
from pytest_laguna.evidence.arms.replay_profile import ProfileHeader, RankProfile, ReplaySample, SegmentKind
from pytest_laguna.verdict import UnusableEvidenceError

KINDS: tuple[SegmentKind, ...] = ("graph", "attention", "collective", "other")


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """One sample, with sums over its segments.

    Attributes:
        totals: nanoseconds by kind of segment.
        shortest: of the segments that are not ``other``, in nanoseconds.
    """

    sample: ReplaySample
    totals: Mapping[SegmentKind, int]
    shortest: int


Check: TypeAlias = Callable[[Replay], str | None]
"""A function that returns a replay's first defect in one line, or None."""

QUANTITIES: Mapping[str, Callable[[Replay], int | None]] = {
    "view_preparation": lambda replay: replay.sample.views.total_ns if replay.sample.views else None,
    "graph_host": lambda replay: replay.totals["graph"],
    "attention_host": lambda replay: replay.totals["attention"],
    "collective_host": lambda replay: replay.totals["collective"],
    "other_host": lambda replay: replay.totals["other"],
    "replay_loop": lambda replay: replay.sample.loop_ns,
    "debug_guard": lambda replay: replay.sample.debug_guard_ns,
    "offloader_synchronise": lambda replay: replay.sample.offloader_sync_ns,
    "signature_collect": lambda replay: replay.sample.signature_collect_ns,
    "signature_compare": lambda replay: replay.sample.signature_compare_ns,
    "replay_host": lambda replay: replay.sample.host_ns,
    "post_replay_synchronise": lambda replay: replay.sample.synchronize_ns,
    "whole_replay": lambda replay: replay.sample.whole_ns,
}
"""Quantities of a replay in nanoseconds; a None of one rank drops the quantity for all."""


@dataclasses.dataclass(frozen=True, slots=True)
class RankFacts:
    """Facts of a rank's file; ``whole_ns`` is the sum over its replays."""

    name: str
    sha256: str
    header: ProfileHeader
    samples: int
    whole_ns: int


@dataclasses.dataclass(frozen=True, slots=True)
class ArmProfile:
    """An arm's profiles, reduced.

    Attributes:
        ranks: the readable files, in the order of the ranks' numbers.
        unusable: reason of the first unreadable file, or None.
        complaints: by check, its first finding: rank, sample and fact.
        maxima: by quantity, the maximum over the ranks of each sample.
    """

    ranks: tuple[RankFacts, ...]
    unusable: str | None
    complaints: Mapping[str, str]
    maxima: Mapping[str, Sequence[int]]


def reduce_profiles(profiles: Profiles, checks: Mapping[str, Check]) -> ArmProfile:
    """Read an arm's rank files one after the other, check every replay and reduce them."""
    reduction = _Reduction(checks)
    unusable = None
    for name, read in sorted(profiles.items(), key=lambda item: (len(item[0]), item[0])):
        try:
            reduction.add(name, read())
        except UnusableEvidenceError as error:
            unusable = unusable or str(error)
    return reduction.result(unusable)


class _Reduction:
    """The state of the pass."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = dict(checks)
        self._complaints: dict[str, str] = {}
        self._ranks: list[RankFacts] = []
        self._maxima: dict[str, array[int]] = {name: array("q") for name in QUANTITIES}

    def add(self, name: str, profile: RankProfile) -> None:
        """Add one file; samples before an unusable one stay, but the arm is then unusable."""
        replays = _replays(profile)
        number, whole = -1, 0
        for number, replay in enumerate(replays):
            self._check(replay, f"rank {profile.header.rank} sample {number}")
            self._raise_maxima(replay, number)
            whole += replay.sample.whole_ns
        self._ranks.append(RankFacts(name, profile.sha256, profile.header, number + 1, whole))

    def result(self, unusable: str | None) -> ArmProfile:
        complaints = {name: self._complaints[name] for name in self._checks if name in self._complaints}
        return ArmProfile(tuple(self._ranks), unusable, complaints, self._maxima)

    def _check(self, replay: Replay, where: str) -> None:
        for name, check in self._checks.items():
            if name not in self._complaints and (complaint := check(replay)):
                self._complaints[name] = f"{where}: {complaint}"

    def _raise_maxima(self, replay: Replay, number: int) -> None:
        for name, maxima in list(self._maxima.items()):
            value = QUANTITIES[name](replay)
            if value is None:
                del self._maxima[name]
            elif number == len(maxima):
                maxima.append(value)
            elif value > maxima[number]:
                maxima[number] = value


def _replays(profile: RankProfile) -> Iterable[Replay]:
    masks = {kind: [each == kind for each in profile.header.kinds] for kind in KINDS}
    counted = [each != "other" for each in profile.header.kinds]
    for sample in profile.samples:
        totals = {kind: sum(compress(sample.segment_ns, mask)) for kind, mask in masks.items()}
        yield Replay(sample, totals, min(compress(sample.segment_ns, counted), default=0))
