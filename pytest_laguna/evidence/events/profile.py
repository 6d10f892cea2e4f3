# SPDX-License-Identifier: Apache-2.0
"""The stream's time in each interval of one replay of the target's graph: one file a rank.

One event before the first segment and one after each, all on one stream. The quantities are those of the published
current-stream event profile; the names are ours. All times are integer nanoseconds.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

import pydantic

from pytest_laguna.evidence.arms.replay_profile import Count, Nanoseconds, RankHeader, SegmentKind, order_sha256
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.evidence.values import SchemaName

EventClock: TypeAlias = Literal["device-event", "host-clock"]
"""Source of the times: events of the device's stream, or on the cpu lane the host's monotonic clock."""


class StreamIdentity(Schema):
    """The stream of all events.

    Attributes:
        device_index: the device's number in the rank's process.
        stream_id: torch's number of the stream; on a CPU the number of the calling thread, which is the stream.
    """

    device_type: Annotated[str, pydantic.Field(min_length=1)]
    device_index: Count
    stream_id: int


class HostLead(Schema):
    """Host time at each boundary: evidence of a working stream against one waiting for the host.

    Attributes:
        boundary_ns: host clock right before each event was recorded, from the first event on.
        synchronised_ns: host clock at the return of the one synchronise, from the same moment on.
    """

    boundary_ns: list[Nanoseconds]
    synchronised_ns: Nanoseconds


class EventProfile(RankHeader):
    """The event profile of one rank.

    Attributes:
        interval_ns: from each event to the next, one a segment.
        span_ns: from the first event to the last one, by the clock itself.
        lead: None on a CPU, where the host is the device, and in a published profile.
    """

    file_schema: SchemaName[Literal["pytest-laguna-event-profile-v1"]] = "pytest-laguna-event-profile-v1"
    clock: EventClock
    stream: StreamIdentity
    interval_ns: list[Nanoseconds]
    span_ns: Nanoseconds
    lead: HostLead | None

    @property
    def total_ns(self) -> int:
        """Sum of all intervals."""
        return sum(self.interval_ns)

    @property
    def order_sha256(self) -> str:
        """Digest of the kinds in replay order."""
        return order_sha256(self.kinds)

    @pydantic.model_validator(mode="after")
    def _whole(self) -> Self:
        if len(self.interval_ns) != len(self.kinds):
            raise ValueError(f"{len(self.interval_ns)} intervals; expected {len(self.kinds)}, one a segment")
        if self.lead is not None:
            stamps = [*self.lead.boundary_ns, self.lead.synchronised_ns]
            if len(stamps) != len(self.kinds) + 2 or stamps[0] != 0 or stamps != sorted(stamps):
                raise ValueError(f"{len(stamps)} host times; expected {len(self.kinds) + 2}, rising from 0")
        return self


class FitnessRound(Schema):
    """Three consecutive replays: the cost of the instrument.

    Attributes:
        plain_ns: the whole replay, with nothing around it but the wait for the device at its end.
        stamped_ns: likewise, with a host clock reading at each boundary.
        events_ns: likewise, with the whole event profile.
        stamped_kind_ns: host time by kind of segment in the second.
        events_kind_ns: host time by kind in the third, by the same readings.
    """

    plain_ns: Annotated[int, pydantic.Field(gt=0)]
    stamped_ns: Annotated[int, pydantic.Field(gt=0)]
    events_ns: Annotated[int, pydantic.Field(gt=0)]
    stamped_kind_ns: dict[SegmentKind, Nanoseconds]
    events_kind_ns: dict[SegmentKind, Nanoseconds]


class EventFitness(RankHeader):
    """The instrument's trial on one rank."""

    file_schema: SchemaName[Literal["pytest-laguna-event-fitness-v1"]] = "pytest-laguna-event-fitness-v1"
    clock: EventClock
    rounds: Annotated[list[FitnessRound], pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _whole(self) -> Self:
        for number, each in enumerate(self.rounds):
            if {*each.stamped_kind_ns} != {*self.kinds} or {*each.events_kind_ns} != {*self.kinds}:
                seen = sorted({*each.stamped_kind_ns, *each.events_kind_ns})
                message = f"round {number}: host times of {seen}; expected twice those of {sorted({*self.kinds})}"
                raise ValueError(message)
        return self
