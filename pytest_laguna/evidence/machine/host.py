# SPDX-License-Identifier: Apache-2.0
"""State of the host around an arm: heat, throttling, the kernel's log, memory, load, holders of cards."""

from __future__ import annotations

import re
from typing import Literal, Self

import pydantic

from pytest_laguna.evidence.machine.idle import CardState, Utc, seconds_between
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.evidence.values import Finite, SchemaName


class KernelLog(Schema):
    """Lines of the kernel's log.

    Attributes:
        state: ``absent`` without permission to read it; this proves nothing.
        last: number of the newest line; None if there is none or the log is absent.
        complete: True if no line after the requested one has been overwritten.
        lines: those after the requested one; none for the state before an arm.
    """

    state: Literal["read", "absent"]
    reason: str
    last: pydantic.NonNegativeInt | None
    complete: bool
    lines: list[str]


class HostState(Schema):
    """The host at one moment.

    Attributes:
        boot_id: differs after each start of the host.
        temperatures_celsius: by sensor; a sensor without a value has no entry.
        throttle_counts: by counter, since the host started; likewise.
        memory_available_bytes: the kernel's estimate of memory available without swapping.
        load: runnable processes, averaged over 1, 5 and 15 minutes.
        cards: every card of the lane on this host, leased or not.
    """

    utc: Utc
    boot_id: str
    temperatures_celsius: dict[str, Finite]
    throttle_counts: dict[str, pydantic.NonNegativeInt]
    kernel_log: KernelLog
    memory_available_bytes: pydantic.NonNegativeInt
    load: tuple[Finite, Finite, Finite]
    cards: list[CardState]


class HostDifference(Schema):
    """After minus before, for the sensors and counters of both.

    Attributes:
        lost: sensors and counters of the state before alone.
    """

    seconds: Finite
    temperatures_celsius: dict[str, Finite]
    throttle_counts: dict[str, int]
    memory_available_bytes: int
    lost: list[str]


def difference(before: HostState, after: HostState) -> HostDifference:
    """Return the change of the host between two moments."""
    degrees = {
        name: round(after.temperatures_celsius[name] - value, 3)
        for name, value in before.temperatures_celsius.items()
        if name in after.temperatures_celsius
    }
    counts = {
        name: after.throttle_counts[name] - value
        for name, value in before.throttle_counts.items()
        if name in after.throttle_counts
    }
    names = {*before.temperatures_celsius, *before.throttle_counts}
    return HostDifference(
        seconds=seconds_between(before.utc, after.utc),
        temperatures_celsius=degrees,
        throttle_counts=counts,
        memory_available_bytes=after.memory_available_bytes - before.memory_available_bytes,
        lost=sorted(names - {*after.temperatures_celsius, *after.throttle_counts}),
    )


class HostAudit(Schema):
    """The host before and after an arm."""

    file_schema: SchemaName[Literal["pytest-laguna-host-audit-v1"]] = "pytest-laguna-host-audit-v1"
    before: HostState
    after: HostState
    difference: HostDifference

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.difference != difference(self.before, self.after):
            raise ValueError("difference: seen other values; expected after minus before")
        return self


BACKGROUND = (
    "xe 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "pcieport 0000:00:01.1: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    "{1}[Hardware Error]: It has been corrected by h/w and requires no further action",
)
"""Lines of a healthy host's log, a few times an hour.

Source: Linux, drivers/pci/pcie and drivers/acpi/apei.
"""


class HostLimits(Schema):
    """The campaign's limits of the host; a limit of None leaves its fact unjudged.

    Attributes:
        temperature_celsius: maximum of all sensors, before and after.
        throttle_events: maximum growth of all counters together.
        kernel_patterns: regular expressions; no line of the kernel's log during the arm may match one.
        memory_available_bytes: minimum, before and after.
        load: maximum of the last minute's, before the arm; afterwards it is the arm's own.
        foreign_holders: True if processes without the lease's token may hold a card of the lane.
    """

    temperature_celsius: Finite | None = None
    throttle_events: pydantic.NonNegativeInt | None = None
    kernel_patterns: list[str] | None = None
    memory_available_bytes: pydantic.NonNegativeInt | None = None
    load: Finite | None = None
    foreign_holders: bool

    @pydantic.field_validator("kernel_patterns")
    @classmethod
    def _feasible(cls, patterns: list[str] | None) -> list[str] | None:
        """Refuse a pattern of a healthy host's lines: a match would not concern the arm."""
        for pattern in patterns or []:
            try:
                matched = next((line for line in BACKGROUND if re.search(pattern, line)), None)
            except re.error as error:
                raise ValueError(f"{pattern!r}: {error}; expected a regular expression") from error
            if matched is not None:
                raise ValueError(f"{pattern!r} matches {matched!r}, which a healthy host logs; expected a graver line")
        return patterns
