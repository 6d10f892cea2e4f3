# SPDX-License-Identifier: Apache-2.0
"""Estimates shares of a replay from a few intervals of many replays, each with its 95 % interval.

Every interval of every replay has the same chance to be drawn. So a group's mean over drawn intervals, times its number
of intervals in a replay, is an unbiased estimate of its time. A share is such a time over the sum of all. Its interval
follows from the scatter within each group, over layers and replays (delta method).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

from pytest_laguna.analysis.events.ranges import places
from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.evidence.events.analysis import SparseShare
from pytest_laguna.evidence.events.sparse import SparseProfile, chosen_intervals
from pytest_laguna.verdict import NotProvenError

Group = TypeVar("Group", bound=Hashable)

QUANTILE = statistics.NormalDist().inv_cdf(0.975)
LEAST = 2
"""Least drawn intervals of a group: one has no scatter."""


def sparse_shares(profile: SparseProfile) -> dict[SegmentKind, SparseShare]:
    """Shares by kind of segment.

    Raises:
        NotProvenError: fewer than two intervals of a kind were drawn; more replays are needed.
    """
    return _shares(profile, profile.kinds)


def sparse_class_shares(profile: SparseProfile) -> dict[str, SparseShare]:
    """Shares by place in the source: prefix, the repeated graphs, boundaries, tail.

    A part with fewer than two drawn intervals, such as a tail of one, joins the part with the most intervals of its
    kind, under both names; their common share is unbiased too. Raises as ``sparse_shares``.
    """
    parts = [place.part for place in places(profile.kinds)]
    drawn = Counter(parts[index] for number in _numbers(profile) for index in chosen_intervals(profile.kinds, number))
    names = {part: part for part in dict.fromkeys(parts) if drawn[part] >= LEAST}
    of_part = dict(zip(parts, profile.kinds, strict=True))
    for part in [part for part in of_part if part not in names]:
        mates = Counter(other for other in parts if other in names and of_part[other] == of_part[part])
        for mate, _ in mates.most_common(1):
            joined = f"{names[mate]} and {part}"
            names = {one: joined if name == names[mate] else name for one, name in names.items()} | {part: joined}
    return _shares(profile, [names.get(part, part) for part in parts])


def _numbers(profile: SparseProfile) -> range:
    return range(len(profile.replays))


def _shares(profile: SparseProfile, groups: Sequence[Group]) -> dict[Group, SparseShare]:
    drawn: dict[Group, list[int]] = {group: [] for group in groups}
    for number, durations in enumerate(profile.replays):
        for index, nanoseconds in zip(chosen_intervals(profile.kinds, number), durations, strict=True):
            drawn[groups[index]].append(nanoseconds)
    for group, values in drawn.items():
        if len(values) < LEAST:
            message = f"rank {profile.rank}: seen {len(values)} intervals of {group} in {len(profile.replays)} replays"
            raise NotProvenError(f"{message}; expected {LEAST} at least; measure more replays")
    counts = Counter(groups)
    sums = {group: counts[group] * statistics.fmean(values) for group, values in drawn.items()}
    variances = {
        group: counts[group] ** 2 * statistics.variance(values) / len(values) for group, values in drawn.items()
    }
    total = sum(sums.values())
    if not total:
        raise NotProvenError(f"rank {profile.rank}: seen 0 ns in all drawn intervals; expected replays that took time")
    return {group: _share(group, sums, variances, total, len(values)) for group, values in drawn.items()}


def _share(
    group: Group, sums: dict[Group, float], variances: dict[Group, float], total: float, drawn: int
) -> SparseShare:
    own, others = sums[group], sum(variances.values()) - variances[group]
    deviation = math.sqrt((total - own) ** 2 * variances[group] + own**2 * others) / total**2
    share = own / total
    low, high = share - QUANTILE * deviation, share + QUANTILE * deviation
    return SparseShare(percent=100 * share, low=100 * low, high=100 * high, drawn=drawn)
