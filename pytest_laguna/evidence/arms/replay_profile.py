# SPDX-License-Identifier: Apache-2.0
"""Host times of each replay of the target's graph: one file a rank.

The quantities are those of the published in-process replay profile, version 2; the names are ours. All times are
integer nanoseconds of a monotonic clock. A step unknown to upstream vLLM is None.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self, TypeAlias

import pydantic

from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.evidence.values import SchemaName

LARGEST = 2**53
"""Smallest integer without a form of its own in canonical JSON."""

Count = Annotated[int, pydantic.Field(ge=0, lt=LARGEST)]
Nanoseconds = Annotated[int, pydantic.Field(ge=0, lt=LARGEST)]
SegmentKind: TypeAlias = Literal["graph", "attention", "collective", "other"]


class ViewPreparation(Schema):
    """Preparations of KV-cache views within one replay.

    Attributes:
        forward_calls: for the attention kernel.
        update_calls: for the write of new keys and values; 0 if the write is inside a captured graph.
        incumbent_calls: of both, those by vLLM's own expression.
        persistent_calls: of both, those by the candidate.
        persistent_hits: of these, answered with existing views.
        persistent_builds: of these, answered with new ones.
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
        segment_ns: in replay order.
        loop_ns: the loop over all segments.
        debug_guard_ns: comparison of the inputs with those of the capture, upstream in debug mode only.
        offloader_sync_ns: waiting for offloaded weights.
        signature_collect_ns: collecting the signature of the static inputs.
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
            raise ValueError(f"segments of {sum(self.segment_ns)} ns in all; expected less than {LARGEST} ns")
        return self


class RankHeader(Schema):
    """The rank and the replay of a profile.

    Attributes:
        descriptor: vLLM's description of the replayed batch.
        kinds: of the segments, in replay order.
    """

    rank: Count
    world_size: Annotated[int, pydantic.Field(ge=1)]
    descriptor: Annotated[str, pydantic.Field(min_length=1)]
    kinds: Annotated[list[SegmentKind], pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _rank_exists(self) -> Self:
        if self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} of {self.world_size}; expected less than the world size")
        return self


class ProfileHeader(RankHeader):
    """The part of a rank's profile common to all samples."""

    file_schema: SchemaName[Literal["pytest-laguna-replay-profile-v1"]] = "pytest-laguna-replay-profile-v1"


class ReplayProfile(ProfileHeader):
    """The replay profile of one rank.

    Attributes:
        samples: in the order of the replays.
    """

    samples: Annotated[list[ReplaySample], pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _whole(self) -> Self:
        for index, sample in enumerate(self.samples):
            if len(sample.segment_ns) != len(self.kinds):
                raise ValueError(f"sample {index}: {len(sample.segment_ns)} segment times; expected {len(self.kinds)}")
        return self


@dataclasses.dataclass(frozen=True, slots=True)
class RankProfile:
    """A profile with samples read one at a time: it may be too large for memory.

    Attributes:
        sha256: digest of the file.
        header: the part common to all samples.
        samples: in the order of the replays; consumed by the first pass.
    """

    sha256: str
    header: ProfileHeader
    samples: Iterator[ReplaySample]


def order_sha256(kinds: Sequence[str]) -> str:
    """SHA-256 of the kinds in replay order, joined by commas, as in published campaigns."""
    return hashlib.sha256(",".join(kinds).encode()).hexdigest()
