# SPDX-License-Identifier: Apache-2.0
"""What is recorded of the host around an arm: heat, throttling, the kernel's log, memory, load, other holders."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

import pydantic

from pytest_laguna.evidence.idle import CardState, Utc, seconds_between
from pytest_laguna.evidence.schemas import Schema

Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]


class KernelLog(Schema):
    """Lines of the kernel's log.

    Attributes:
        state: ``read``, or ``absent`` when it may not be read, which is not the same as clean.
        reason: why it is absent.
        last: number of the newest line; None when there is none or it is absent.
        complete: whether no line since the one that was asked for has been overwritten.
        lines: those since the line that was asked for; none for the state before an arm.
    """

    state: Literal["read", "absent"]
    reason: str
    last: pydantic.NonNegativeInt | None
    complete: bool
    lines: list[str]


class HostState(Schema):
    """The host at one moment. A sensor or counter that the host does not have is not in the mapping.

    Attributes:
        utc: when.
        boot_id: of this start of the host.
        temperatures_celsius: by sensor.
        throttle_counts: by counter, since the host started.
        kernel_log: its lines.
        memory_available_bytes: what the kernel thinks can be had without swapping.
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
    """After minus before, for what both have.

    Attributes:
        seconds: between the two.
        temperatures_celsius: by sensor.
        throttle_counts: by counter.
        memory_available_bytes: change.
        lost: sensors and counters that only the state before has.
    """

    seconds: Finite
    temperatures_celsius: dict[str, Finite]
    throttle_counts: dict[str, int]
    memory_available_bytes: int
    lost: list[str]


def difference(before: HostState, after: HostState) -> HostDifference:
    """What changed on the host between two moments."""
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

    file_schema: Annotated[Literal["pytest-laguna-host-audit-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-host-audit-v1"
    )
    before: HostState
    after: HostState
    difference: HostDifference

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.difference != difference(self.before, self.after):
            raise ValueError("difference is not after minus before")
        return self


BACKGROUND = (
    "xe 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "pcieport 0000:00:01.1: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    "{1}[Hardware Error]: It has been corrected by h/w and requires no further action",
)
"""What a healthy host's log says a few times an hour. Source: Linux, drivers/pci/pcie and drivers/acpi/apei."""


class HostLimits(Schema):
    """What a campaign freezes about its host; None leaves a fact recorded and not judged.

    Attributes:
        temperature_celsius: the most that any sensor shows before or after.
        throttle_events: the most that all counters together grow by.
        kernel_patterns: regular expressions that no line of the kernel's log during the arm matches.
        memory_available_bytes: the least that is free before and after.
        load: the most that the load of the last minute is before the arm; afterwards it is the arm's own.
        foreign_holders: whether processes without the lease's token may hold a card of the lane.
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
        """A limit that a healthy host breaks by itself says nothing of what ran on it."""
        for pattern in patterns or []:
            try:
                matched = next((line for line in BACKGROUND if re.search(pattern, line)), None)
            except re.error as error:
                message = f"{pattern!r}: {error}; expected a regular expression"
                raise ValueError(message) from error
            if matched is not None:
                message = f"{pattern!r} matches {matched!r}, which a healthy host logs; expected a graver line"
                raise ValueError(message)
        return patterns
