# SPDX-License-Identifier: Apache-2.0
"""The host's time in each replay of the target's graph: one file a rank.

The quantities are those of the published in-process replay profile, version 2; the names are ours. All times are
integer nanoseconds of a monotonic clock. What upstream vLLM has no step for is None.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self, TypeAlias

import pydantic

from pytest_laguna.evidence.schemas import Schema

LARGEST = 2**53
"""From here on not every integer has a form of its own in canonical JSON."""

Count = Annotated[int, pydantic.Field(ge=0, lt=LARGEST)]
Nanoseconds = Annotated[int, pydantic.Field(ge=0, lt=LARGEST)]
SegmentKind: TypeAlias = Literal["graph", "attention", "collective", "other"]


class ViewPreparation(Schema):
    """The preparations of KV-cache views within one replay.

    Attributes:
        forward_calls: for the attention kernel.
        forward_ns: their time.
        update_calls: for the write of new keys and values; none where the write is inside a captured graph.
        update_ns: their time.
        incumbent_calls: of both that evaluated vLLM's own expression.
        persistent_calls: of both that asked the candidate.
        persistent_hits: of those, answered with views that were there.
        persistent_builds: of those, answered with new ones.
    """

    forward_calls: Count
    forward_ns: Nanoseconds
    update_calls: Count
    update_ns: Nanoseconds
    incumbent_calls: Count
    persistent_calls: Count
    persistent_hits: Count
    persistent_builds: Count

    @property
    def total_ns(self) -> int:
        """Time of all preparations."""
        return self.forward_ns + self.update_ns


class ReplaySample(Schema):
    """One replay.

    Attributes:
        segment_ns: host time of each segment's call, in replay order.
        loop_ns: the loop over all segments.
        debug_guard_ns: the check that the inputs are those of the capture, which upstream makes in debug mode only.
        offloader_sync_ns: waiting for offloaded weights.
        signature_collect_ns: collecting the signature of the static inputs.
        signature_compare_ns: comparing it.
        host_ns: from the wrapper's entry until the host has submitted everything.
        synchronize_ns: the one wait for the device after it.
        whole_ns: from the entry until the device is done.
        views: None in a profile of the first published version.
    """

    segment_ns: list[Nanoseconds]
    loop_ns: Nanoseconds
    debug_guard_ns: Nanoseconds | None
    offloader_sync_ns: Nanoseconds | None
    signature_collect_ns: Nanoseconds | None
    signature_compare_ns: Nanoseconds | None
    host_ns: Nanoseconds
    synchronize_ns: Nanoseconds
    whole_ns: Nanoseconds
    views: ViewPreparation | None

    @pydantic.model_validator(mode="after")
    def _bounded(self) -> Self:
        if sum(self.segment_ns) >= LARGEST:
            message = f"segments of {sum(self.segment_ns)} ns in all; expected less than {LARGEST}, as of each time"
            raise ValueError(message)
        return self


class RankHeader(Schema):
    """Of which rank a profile is, and of which replay.

    Attributes:
        rank: its number.
        world_size: how many there are.
        descriptor: vLLM's description of the batch that was replayed.
        kinds: of the segments, in replay order.
    """

    rank: Count
    world_size: Annotated[int, pydantic.Field(ge=1)]
    descriptor: Annotated[str, pydantic.Field(min_length=1)]
    kinds: Annotated[list[SegmentKind], pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _rank_exists(self) -> Self:
        if self.rank >= self.world_size:
            message = f"rank {self.rank} of {self.world_size}"
            raise ValueError(message)
        return self


class ProfileHeader(RankHeader):
    """What holds for all samples of a rank."""

    file_schema: Annotated[Literal["pytest-laguna-replay-profile-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-replay-profile-v1"
    )


class ReplayProfile(ProfileHeader):
    """What one rank measured.

    Attributes:
        samples: in the order of the replays.
    """

    samples: Annotated[list[ReplaySample], pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _whole(self) -> Self:
        for index, sample in enumerate(self.samples):
            if len(sample.segment_ns) != len(self.kinds):
                message = f"sample {index}: {len(sample.segment_ns)} segment times for {len(self.kinds)} segments"
                raise ValueError(message)
        return self


@dataclasses.dataclass(frozen=True, slots=True)
class RankProfile:
    """A profile whose samples are read one at a time: it may be larger than is wanted in memory.

    Attributes:
        sha256: digest of the file.
        header: what holds for all of them.
        samples: in the order of the replays; consumed by the first pass.
    """

    sha256: str
    header: ProfileHeader
    samples: Iterator[ReplaySample]


def order_sha256(kinds: Sequence[str]) -> str:
    """SHA-256 of the kinds in replay order, joined by commas: the form in which published campaigns freeze it."""
    return hashlib.sha256(",".join(kinds).encode()).hexdigest()
