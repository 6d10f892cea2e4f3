# SPDX-License-Identifier: Apache-2.0
"""Evidence of idle cards: their holders, their memory, and the worker processes of the host.

Source of the checks: the published idle and worker proof of the B70 laboratory, and public reports of leaked engines.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence.machine.xpu_smi import ProcessRow, read_processes
from pytest_laguna.evidence.schemas import Schema, Sha256
from pytest_laguna.evidence.values import Lane, NonNegative, SchemaName


def _of_the_calendar(text: str) -> str:
    """Return a time of the calendar; raises ValueError for the 30th of February."""
    datetime.datetime.fromisoformat(text)
    return text


Utc = Annotated[
    str,
    pydantic.Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00$"),
    pydantic.AfterValidator(_of_the_calendar),
]
Token = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{32}$")]


def utc_now() -> str:
    """Return the time in the form of ``Utc``: ISO 8601 with microseconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds from one ``Utc`` to another; negative if they are in the other order."""
    return (datetime.datetime.fromisoformat(later) - datetime.datetime.fromisoformat(earlier)).total_seconds()


class SeenProcess(Schema):
    """A process found on a card or among the inference workers.

    Attributes:
        pid: reused by the kernel; with ``start_ticks`` it is an identity.
        start_ticks: when it started, in clock ticks since the host did; None if it had ended before it was read.
        command: its arguments as a shell takes them, or its name in brackets if it has none.
        carries_token: True if it bears the lease's token; None if it had ended before it was read.
        seen_by: its source, such as ``nvml``, ``xpu-smi``, ``fdinfo`` or the pattern of a worker.
    """

    pid: pydantic.PositiveInt
    start_ticks: pydantic.NonNegativeInt | None
    command: str
    carries_token: bool | None
    seen_by: str


class CardState(Schema):
    """State of one card at one moment.

    Attributes:
        identity: PCI address, UUID or slot.
        memory_used_bytes: None without telemetry; an unknown value proves nothing.
        utilisation_percent: never judged: an idle Arc card can show full load.
        holders: processes with an open handle of the device, without the observer itself.
    """

    identity: str
    ordinal: pydantic.NonNegativeInt
    memory_used_bytes: pydantic.NonNegativeInt | None
    utilisation_percent: NonNegative | None
    holders: list[SeenProcess]


class Observer(Schema):
    """The management tool, run as a child; it opens the devices itself.

    Attributes:
        executable: the program's file, with links resolved.
        executable_sha256: the same before and after.
        devices: the number of every device known to the tool.
    """

    command: list[str]
    executable: str
    executable_sha256: Sha256
    pid: pydantic.PositiveInt
    devices: list[pydantic.NonNegativeInt]
    output: str

    def rows(self) -> list[ProcessRow]:
        """Return the processes of its output.

        Raises:
            UnusableEvidenceError: the output is not exactly of the tool's form.
        """
        return read_processes(self.output)


class Snapshot(Schema):
    """State of the leased cards and of the host's processes.

    Attributes:
        utc: of its begin.
        cards: in the order of the lease.
        workers: inference workers on the host, and every process with the lease's token.
    """

    utc: Utc
    cards: list[CardState]
    observer: Observer | None
    workers: list[SeenProcess]


class MemoryPoint(Schema):
    """Memory of every leased card at one moment.

    Attributes:
        seconds: since the first snapshot.
        used_bytes: in the order of the lease; None without telemetry.
    """

    seconds: NonNegative
    used_bytes: list[pydantic.NonNegativeInt | None]


class IdleRecord(Schema):
    """Idleness before or after a lease: the return of memory, then the snapshots.

    Attributes:
        phase: before the first arm of the lease, or after its last.
        settling: memory until it reached the baseline or the time for it was over.
        snapshots: the judged ones.
    """

    file_schema: SchemaName[Literal["pytest-laguna-idle-v1"]] = "pytest-laguna-idle-v1"
    phase: Literal["before", "after"]
    lane: Lane
    token: Token
    cards: Annotated[list[str], pydantic.Field(min_length=1)]
    settling: Annotated[list[MemoryPoint], pydantic.Field(min_length=1)]
    snapshots: list[Snapshot]


class IdleRequirement(Schema, strict=True):
    """The campaign's definition of idle cards.

    Attributes:
        snapshots: minimum number.
        seconds: minimum from the first to the last of them.
        memory_bytes: maximum of an idle card: its measured baseline with the tolerance.
        foreign_workers: True if others' inference workers may run on the host; a measurement of time forbids them.
    """

    snapshots: pydantic.PositiveInt
    seconds: NonNegative
    memory_bytes: pydantic.NonNegativeInt
    foreign_workers: bool
