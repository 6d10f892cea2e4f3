# SPDX-License-Identifier: Apache-2.0
"""Bounds how long the stream waited for the host in each interval.

The stream reaches an event at the event's time. If the host had submitted all of an interval before the stream entered
it, the interval is work. Otherwise the stream may have waited until the host reached the interval's end. Two facts tie
the clocks together: the stream passes no event before the host recorded it (earliest moment of the first event), and it
has passed all of them once the synchronise returns (latest moment). Both bounds are carried through, without an
assumption on the queue's depth. Latency of a submission counts as work, since no record shows it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from pytest_laguna.evidence.events.profile import EventProfile, HostLead
from pytest_laguna.verdict import UnusableEvidenceError

CLOCK_TOLERANCE = 0.001
"""Largest drift of the two clocks in one replay, as a share of the span."""


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """Bounds of the stream's waiting for the host, in nanoseconds, one value a segment.

    Attributes:
        least: for the latest possible stream.
        most: for the earliest possible stream.
        lead: of the host over the earliest possible stream at each boundary: a lower bound.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]
    lead: tuple[int, ...]


def waiting(profile: EventProfile) -> Waiting | None:
    """Bounds of the stream's waiting; None without a record of the host's lead.

    Raises:
        UnusableEvidenceError: the stream ended, by its clock, after the synchronise returned, by the host's.
    """
    lead = profile.lead
    if lead is None:
        return None
    stream = list(itertools.accumulate(profile.interval_ns, initial=0))
    earliest = max(host - device for host, device in zip(lead.boundary_ns, stream, strict=True))
    latest = lead.synchronised_ns - stream[-1]
    if latest < earliest - CLOCK_TOLERANCE * profile.total_ns:
        message = f"rank {profile.rank}: seen the stream's end {earliest - latest} ns after the synchronise returned"
        raise UnusableEvidenceError(f"{message}; expected clocks that agree to a thousandth of the replay")
    latest = max(earliest, latest)
    return Waiting(
        least=_waited(stream, latest, lead),
        most=_waited(stream, earliest, lead),
        lead=tuple(device + earliest - host for host, device in zip(lead.boundary_ns, stream, strict=True)),
    )


def _waited(stream: Sequence[int], first: int, lead: HostLead) -> tuple[int, ...]:
    """Nanoseconds of each interval from the stream's arrival until the host had submitted all of it.

    They never exceed the interval: with ``first``, the stream passes no event before the host recorded it.
    """
    return tuple(max(host - (begin + first), 0) for begin, host in zip(stream[:-1], lead.boundary_ns[1:], strict=True))
