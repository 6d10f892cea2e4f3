# SPDX-License-Identifier: Apache-2.0
"""Events at a few intervals of many replays, chosen before anything ran.

The intervals of a replay are drawn from the digest of the segments' order and the replay's number. Anybody can draw
them again from the topology, and nobody can choose them by their results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import pydantic

from pytest_laguna.evidence.arms.replay_profile import Nanoseconds, RankHeader, order_sha256
from pytest_laguna.evidence.events.profile import EventClock, StreamIdentity
from pytest_laguna.evidence.values import SchemaName

FRACTION = 0.05
"""Maximum share of a replay's boundaries with an event: two an interval."""


def chosen_intervals(kinds: Sequence[str], replay: int) -> list[int]:
    """Return the measured intervals of one replay, from 0 on, ascending; at least one."""
    order = order_sha256(kinds)
    count = max(1, int(FRACTION * (len(kinds) + 1) / 2))

    def drawn(index: int) -> bytes:
        return hashlib.sha256(f"{order}:{replay}:{index}".encode()).digest()

    return sorted(sorted(range(len(kinds)), key=drawn)[:count])


class SparseProfile(RankHeader):
    """The sparse profile of one rank.

    Attributes:
        replays: by replay, the nanoseconds of its chosen intervals in their order.
    """

    file_schema: SchemaName[Literal["pytest-laguna-event-sparse-v1"]] = "pytest-laguna-event-sparse-v1"
    clock: EventClock
    stream: StreamIdentity
    replays: Annotated[list[list[Nanoseconds]], pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _whole(self) -> Self:
        count = len(chosen_intervals(self.kinds, 0))
        for number, durations in enumerate(self.replays):
            if len(durations) != count:
                message = f"replay {number}: {len(durations)} durations; expected {count}, one a chosen interval"
                raise ValueError(message)
        return self
