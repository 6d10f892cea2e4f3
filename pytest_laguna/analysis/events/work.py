# SPDX-License-Identifier: Apache-2.0
"""How much of each interval the stream worked, and how much it may have stood waiting for the host.

An event's time is when the stream came to it. Where the host had submitted all of an interval before the stream entered
it, the interval is work. Where the host was still submitting, the stream may have waited up to the moment at which the
host came to the interval's end. The two clocks are tied together by what cannot be otherwise: the stream passes no
event before the host recorded it, which gives the earliest moment of the first event, and all are passed when the
synchronise returns, which gives the latest. Both are carried through, so waiting is known within bounds and nothing is
assumed of a queue's depth. The latency of a submission counts as work, as nothing here can see it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from pytest_laguna.evidence.events.profile import EventProfile, HostLead
from pytest_laguna.verdict import UnusableEvidenceError

CLOCK_TOLERANCE = 0.001
"""Of the span: by how much the two clocks may run apart in one replay."""


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """Nanoseconds that the stream may have waited for the host, one value a segment.

    Attributes:
        least: with the stream as late as it can have been.
        most: with the stream as early as it can have been.
        lead: of the host over the stream at each boundary, in nanoseconds, by the latter: never more than it was.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]
    lead: tuple[int, ...]


def waiting(profile: EventProfile) -> Waiting | None:
    """Bounds of the stream's waiting; None where the host is the device, or the profile does not tell of the host.

    Raises:
        UnusableEvidenceError: the stream ended later by its clock than the synchronise returned by the host's.
    """
    lead = profile.lead
    if lead is None:
        return None
    stream = list(itertools.accumulate(profile.interval_ns, initial=0))
    earliest = max(host - device for host, device in zip(lead.boundary_ns, stream, strict=True))
    latest = lead.synchronised_ns - stream[-1]
    if latest < earliest - CLOCK_TOLERANCE * profile.total_ns:
        message = f"rank {profile.rank}: the stream's end lies {earliest - latest} ns after the synchronise returned"
        raise UnusableEvidenceError(f"{message}; expected clocks that agree to a thousandth of the replay")
    latest = max(earliest, latest)
    return Waiting(
        least=_waited(stream, latest, lead),
        most=_waited(stream, earliest, lead),
        lead=tuple(device + earliest - host for host, device in zip(lead.boundary_ns, stream, strict=True)),
    )


def _waited(stream: Sequence[int], first: int, lead: HostLead) -> tuple[int, ...]:
    """Per interval from the stream's arrival until the host had submitted all of it.

    Never beyond the interval's end: the first event is given no earlier than lets the host come first to every other.
    """
    return tuple(max(host - (begin + first), 0) for begin, host in zip(stream[:-1], lead.boundary_ns[1:], strict=True))
