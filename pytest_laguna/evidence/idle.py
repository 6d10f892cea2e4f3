# SPDX-License-Identifier: Apache-2.0
"""What is recorded to show that cards are idle: who holds them, their memory, and which worker processes run.

Source of the checks: the published idle and worker proof of the B70 laboratory, and public reports of leaked engines.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence.schemas import Schema, Sha256
from pytest_laguna.evidence.xpu_smi import ProcessRow, read_processes

Lane = Literal["cpu", "cuda", "xpu"]


def _of_the_calendar(text: str) -> str:
    """A time that there is; raises ValueError for the 30th of February."""
    datetime.datetime.fromisoformat(text)
    return text


Utc = Annotated[
    str,
    pydantic.Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00$"),
    pydantic.AfterValidator(_of_the_calendar),
]
Token = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{32}$")]
Seconds = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


def utc_now() -> str:
    """The time in the form of ``Utc``: ISO 8601 with microseconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def seconds_between(earlier: str, later: str) -> float:
    """Seconds from one ``Utc`` to another; negative when they are in the other order."""
    return (datetime.datetime.fromisoformat(later) - datetime.datetime.fromisoformat(earlier)).total_seconds()


class SeenProcess(Schema):
    """A process that was found where an idle card has none.

    Attributes:
        pid: its number, which the kernel gives to another process some day; with ``start_ticks`` it is an identity.
        start_ticks: when it started, in clock ticks since the host did; None when it was gone before it was looked at.
        command: its arguments as a shell would take them, or its name in brackets when it has none.
        carries_token: whether it bears the lease's token; None when it was gone before it was looked at.
        seen_by: what showed it, such as ``nvml``, ``xpu-smi``, ``fdinfo`` or the pattern of a worker.
    """

    pid: pydantic.PositiveInt
    start_ticks: pydantic.NonNegativeInt | None
    command: str
    carries_token: bool | None
    seen_by: str


class CardState(Schema):
    """One look at one card.

    Attributes:
        identity: PCI address, UUID or slot.
        ordinal: its number as the management tool counts.
        memory_used_bytes: None when there is no telemetry, which proves nothing.
        utilisation_percent: recorded and never judged: an idle Arc card can show full load.
        holders: the processes that have the device open, without the observer itself.
    """

    identity: str
    ordinal: pydantic.NonNegativeInt
    memory_used_bytes: pydantic.NonNegativeInt | None
    utilisation_percent: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] | None
    holders: list[SeenProcess]


class Observer(Schema):
    """The management tool, run as a child that itself opens the devices it looks at.

    Attributes:
        command: its arguments.
        executable: the file that ran, with links resolved.
        executable_sha256: of that file, the same before and after.
        pid: of the child.
        devices: the number of every device that the tool knows.
        output: its standard output, whole.
    """

    command: list[str]
    executable: str
    executable_sha256: Sha256
    pid: pydantic.PositiveInt
    devices: list[pydantic.NonNegativeInt]
    output: str

    def rows(self) -> list[ProcessRow]:
        """The processes that it printed.

        Raises:
            UnusableEvidenceError: the output is not exactly of the tool's form.
        """
        return read_processes(self.output)


class Snapshot(Schema):
    """One look at the leased cards and at the processes of the host.

    Attributes:
        utc: when it was begun.
        cards: in the order of the lease.
        observer: None on lanes whose telemetry opens no device.
        workers: inference workers on the host, and whatever carries the lease's token.
    """

    utc: Utc
    cards: list[CardState]
    observer: Observer | None
    workers: list[SeenProcess]


class MemoryPoint(Schema):
    """Memory of every leased card at one moment after the first look.

    Attributes:
        seconds: since the first look.
        used_bytes: in the order of the lease; None where there is no telemetry.
    """

    seconds: Seconds
    used_bytes: list[pydantic.NonNegativeInt | None]


class IdleRecord(Schema):
    """Before or after a lease: how memory came back, and then what was seen in each look.

    Attributes:
        phase: before the first arm of the lease, or after its last.
        lane: where the cards are.
        token: the lease's.
        cards: their identities.
        settling: memory until it was at the baseline or the time for that was over.
        snapshots: the looks that count.
    """

    file_schema: Annotated[Literal["pytest-laguna-idle-v1"], pydantic.Field(alias="schema")] = "pytest-laguna-idle-v1"
    phase: Literal["before", "after"]
    lane: Lane
    token: Token
    cards: Annotated[list[str], pydantic.Field(min_length=1)]
    settling: Annotated[list[MemoryPoint], pydantic.Field(min_length=1)]
    snapshots: list[Snapshot]


class IdleRequirement(Schema):
    """What a campaign freezes about idle cards.

    Attributes:
        snapshots: at least so many looks.
        seconds: from the first to the last of them at least.
        memory_bytes: the most that an idle card shows: its measured baseline with the tolerance.
        foreign_workers: whether inference workers of others may run on the host; a measurement of time forbids them.
    """

    snapshots: pydantic.PositiveInt
    seconds: Seconds
    memory_bytes: pydantic.NonNegativeInt
    foreign_workers: bool
