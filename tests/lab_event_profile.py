# SPDX-License-Identifier: Apache-2.0
"""Reads a rank's event profile in the form that the B70 laboratory published.

Field names and the relations between them are those of the published contract: what is read is that form, whole and
without contradiction, or no evidence.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.replay_profile import Count, Nanoseconds, SegmentKind, order_sha256
from pytest_laguna.evidence.events.profile import EventProfile, StreamIdentity
from pytest_laguna.evidence.foreign_json import parse_foreign_json
from pytest_laguna.evidence.schemas import Schema, Sha256, first_defect
from pytest_laguna.verdict import JSON, UnusableEvidenceError

SIZE_LIMIT = 1024 * 1024


class _Stream(Schema):
    device_type: Literal["xpu"]
    device_index: Count
    stream_id: int


class _Interval(Schema):
    index: Count
    kind: Literal["graph", "attention", "collective"]
    duration_ns: Nanoseconds


class _Profile(Schema):
    """The published fields."""

    file_schema: Annotated[Literal["laguna-m8-current-stream-event-profile-v1"], pydantic.Field(alias="schema")]
    status: Literal["complete"]
    rank: Count
    world_size: Literal[4]
    batch_descriptor: Annotated[str, pydantic.Field(min_length=1)]
    graphs: Count
    eager_breaks: Count
    boundary_categories: dict[str, Count]
    event_count: Count
    interval_count: Count
    total_duration_ns: Nanoseconds
    segment_kind_order_sha256: Sha256
    stream_identity: _Stream
    intervals: Annotated[list[_Interval], pydantic.Field(min_length=1)]
    rank_local_only: Literal[True]
    global_critical_path_validated: Literal[False]
    collective_cross_stream_completion_validated: Literal[False]
    diagnostic_only: Literal[True]
    not_benchmark_or_submission_evidence: Literal[True]

    @pydantic.field_validator(
        "rank_local_only",
        "global_critical_path_validated",
        "collective_cross_stream_completion_validated",
        "diagnostic_only",
        "not_benchmark_or_submission_evidence",
        mode="before",
    )
    @classmethod
    def _truth_value(cls, value: object) -> object:
        """1 equals true, and is none."""
        if not isinstance(value, bool):
            message = f"{value!r}; expected true or false"
            raise ValueError(message)  # noqa: TRY004 - pydantic reports a ValueError as its own
        return value

    @pydantic.model_validator(mode="after")
    def _without_contradiction(self) -> Self:
        kinds = [interval.kind for interval in self.intervals]
        counts = Counter(kinds)
        derived = {
            "graphs": counts["graph"],
            "eager_breaks": len(kinds) - counts["graph"],
            "boundary_categories": {"attention": counts["attention"], "collective": counts["collective"]},
            "event_count": len(kinds) + 1,
            "interval_count": len(kinds),
            "total_duration_ns": sum(interval.duration_ns for interval in self.intervals),
            "segment_kind_order_sha256": order_sha256(kinds),
        }
        for field, expected in derived.items():
            if (seen := getattr(self, field)) != expected:
                message = f"{field} {seen}; expected {expected}, as its intervals have it"
                raise ValueError(message)
        if [interval.index for interval in self.intervals] != list(range(len(kinds))):
            raise ValueError("intervals out of order: expected their indices to count from 0")
        return self


def read_lab_event_profile(path: Path) -> EventProfile:
    """Read one rank's file, ``rank<rank>.json``.

    Raises:
        UnusableEvidenceError: a key too many or too few, a value that is none or contradicts another, another schema.
    """
    content = files.read_bytes(path, limit=SIZE_LIMIT)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        message = f"{path.name}: not text ({error.reason}); expected an event profile"
        raise UnusableEvidenceError(message) from error
    return parse_lab_event_profile(parse_foreign_json(text, path.name), path.name)


def parse_lab_event_profile(value: JSON, name: str) -> EventProfile:
    """Turn a published profile into ours; ``name`` is what an error calls it. Raises as ``read_lab_event_profile``."""
    try:
        lab = _Profile.model_validate(value, strict=True)
        kinds: list[SegmentKind] = [interval.kind for interval in lab.intervals]
        return EventProfile(
            rank=lab.rank,
            world_size=lab.world_size,
            descriptor=lab.batch_descriptor,
            clock="device-event",
            stream=StreamIdentity(**lab.stream_identity.model_dump()),
            kinds=kinds,
            interval_ns=[interval.duration_ns for interval in lab.intervals],
            span_ns=lab.total_duration_ns,
            lead=None,
        )
    except pydantic.ValidationError as error:
        message = f"{name}: {first_defect(error, 'profile')}; expected the published form"
        raise UnusableEvidenceError(message) from error
