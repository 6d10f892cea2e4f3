# SPDX-License-Identifier: Apache-2.0
"""Record of a supervised child, and of all processes below it."""

from __future__ import annotations

import enum
import os
import signal
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.evidence.values import NonNegative


def _ended(wait_status: int) -> int:
    """Return the status of an ended process; raises ValueError for a stopped one."""
    os.waitstatus_to_exitcode(wait_status)
    return wait_status


class Reason(enum.StrEnum):
    """Cause of a supervised child's end."""

    EXITED = "exited"
    """It ended by itself."""
    STOPPED = "stopped"
    """The controller asked for it, or a signal to the supervisor did."""
    DEADLINE = "deadline"
    MEMORY = "memory"
    OWNER_GONE = "owner-gone"
    """The controller hung up: the supervisor killed everything at once."""
    SUPERVISOR_LOST = "supervisor-lost"
    """The supervisor ended without a result: the controller swept by token."""


class FoundProcess(Schema):
    """An unexpected process.

    Attributes:
        command: its command line, or its name in brackets; empty if it ended while it was read.
        start_ticks: when it started, in clock ticks since boot; with the pid it names one process for ever.
    """

    pid: pydantic.PositiveInt
    command: str
    start_ticks: pydantic.NonNegativeInt

    def __str__(self) -> str:
        return f"pid {self.pid}, started at tick {self.start_ticks}: {self.command}"


class ProcessRecord(Schema):
    """End of a supervised child.

    Attributes:
        wait_status: as ``waitpid`` gives it; None if nobody could collect it.
        last_signal: number of the last signal to the tree; None if none was necessary.
        wall_seconds: from its start to the end of the last process below it.
        peak_memory_bytes: the largest polled sum over the tree; None without a limit.
        leftovers: processes alive after the child had ended by itself and the time to settle was over: killed, and held
            against the arm. If the child ended badly and the controller stopped it in that time, the processes that
            ignored the request to end; if the supervisor was lost, those found by the sweep.
        survivors: processes alive after SIGKILL and its seconds: stuck in the kernel, or not ours to signal.
        proven_empty: True if the kernel confirmed at the end that no process is left below the supervisor; /proc may
            hide some, as on a host that hides the processes of others.
    """

    schema_name: Literal["laguna-process-v1"] = "laguna-process-v1"
    reason: Reason
    wait_status: Annotated[int, pydantic.Field(ge=0, le=0xFFFF), pydantic.AfterValidator(_ended)] | None
    last_signal: int | None
    wall_seconds: NonNegative
    peak_memory_bytes: pydantic.NonNegativeInt | None
    leftovers: list[FoundProcess]
    survivors: list[FoundProcess]
    proven_empty: bool
    last_journal_line: str | None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the child; negative for a signal's number, None if unknown."""
        return None if self.wait_status is None else os.waitstatus_to_exitcode(self.wait_status)

    @property
    def left_behind(self) -> FoundProcess | None:
        """First process left running at the end of the child; None if none is known.

        The sweep after a lost supervisor may find the arm itself, not yet ended; it does not count.
        """
        return None if self.reason is Reason.SUPERVISOR_LOST else next(iter(self.leftovers), None)

    @property
    def is_clean(self) -> bool:
        """True if the child ended by itself with exit code 0 and left nothing behind."""
        nothing_left = self.proven_empty and not self.leftovers and not self.survivors
        return self.reason is Reason.EXITED and self.exit_code == 0 and self.last_signal is None and nothing_left

    def __str__(self) -> str:
        parts = [f"{self.reason}, {exit_words(self.exit_code)} after {self.wall_seconds:.1f} s"]
        found = "swept" if self.reason is Reason.SUPERVISOR_LOST else "left behind"
        parts += [f"{found}: {process}" for process in self.leftovers]
        parts += [f"survived SIGKILL: {process}" for process in self.survivors]
        if not self.proven_empty and not self.survivors:
            parts.append("not proven that all its processes have ended")
        return "; ".join(parts)


def exit_words(exit_code: int | None) -> str:
    """Return an exit code of ``ProcessRecord`` in words: a negative one by the name of its signal."""
    if exit_code is None:
        return "exit unknown"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    names = {number.value: number.name for number in signal.Signals}
    return names.get(-exit_code, f"signal {-exit_code}")
