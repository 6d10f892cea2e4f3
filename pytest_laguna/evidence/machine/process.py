# SPDX-License-Identifier: Apache-2.0
"""What became of a supervised child and of all below it."""

from __future__ import annotations

import enum
import os
import signal
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.evidence.values import NonNegative


def _ended(wait_status: int) -> int:
    """A status of a process that has ended, and was not only stopped."""
    os.waitstatus_to_exitcode(wait_status)
    return wait_status


class Reason(enum.StrEnum):
    """Why a supervised child's time was over."""

    EXITED = "exited"
    """It ended by itself."""
    STOPPED = "stopped"
    """The controller asked for it, or a signal to the supervisor."""
    DEADLINE = "deadline"
    MEMORY = "memory"
    OWNER_GONE = "owner-gone"
    """The controller hung up: everything was killed at once."""
    SUPERVISOR_LOST = "supervisor-lost"
    """The supervisor ended without a result: the controller swept by token."""


class FoundProcess(Schema):
    """A process that should not have been there.

    Attributes:
        pid: its number.
        command: its command line, or its name in brackets; empty when it ended while it was described.
        start_ticks: when it started, in clock ticks since boot; with the pid it names one process for ever.
    """

    pid: pydantic.PositiveInt
    command: str
    start_ticks: pydantic.NonNegativeInt

    def __str__(self) -> str:
        return f"pid {self.pid}, started at tick {self.start_ticks}: {self.command}"


class ProcessRecord(Schema):
    """A supervised child's end.

    Attributes:
        schema_name: the form of this record.
        reason: why its time was over.
        wait_status: as ``waitpid`` gives it; None when nobody could collect it.
        last_signal: the number of the last signal that was sent to the tree; None when there was no need for one.
        wall_seconds: from its start to the end of the last process below it.
        peak_memory_bytes: the largest sum over the tree that was polled; None without a limit.
        leftovers: what was still alive when the child had ended by itself and the time to settle was over: it was
            killed, and still counts against the arm. Where it had ended badly and the controller stopped it in that
            time, what did not end when it was asked to; where the supervisor was lost, what the sweep found instead.
        survivors: what was still alive after SIGKILL and its seconds: stuck in the kernel, or not ours to signal.
        proven_empty: whether the kernel said in the end that no process is left below the supervisor; a look at /proc
            may not show all of them, as on a host that hides the processes of others.
        last_journal_line: the last whole line of the child's journal; None when it has none.
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
        """The child's exit code; negative is the signal that ended it, None is unknown."""
        return None if self.wait_status is None else os.waitstatus_to_exitcode(self.wait_status)

    @property
    def left_behind(self) -> FoundProcess | None:
        """The first process that it left running when it had ended; None when none is known.

        What a sweep finds after a lost supervisor may be the arm itself, which was still to end: it is none of these.
        """
        return None if self.reason is Reason.SUPERVISOR_LOST else next(iter(self.leftovers), None)

    @property
    def is_clean(self) -> bool:
        """Whether the child ended by itself with exit code 0 and left nothing behind."""
        nothing_left = self.proven_empty and not self.leftovers and not self.survivors
        return self.reason is Reason.EXITED and self.exit_code == 0 and self.last_signal is None and nothing_left

    def __str__(self) -> str:
        parts = [f"{self.reason}, {exit_words(self.exit_code)} after {self.wall_seconds:.1f} s"]
        found = "swept" if self.reason is Reason.SUPERVISOR_LOST else "left behind"
        parts += [f"{found}: {process}" for process in self.leftovers]
        parts += [f"survived SIGKILL: {process}" for process in self.survivors]
        if not self.proven_empty and not self.survivors:
            parts.append("whether all of it has ended is not proven")
        return "; ".join(parts)


def exit_words(exit_code: int | None) -> str:
    """An exit code as ``ProcessRecord`` has it, or the name of the signal that it stands for."""
    if exit_code is None:
        return "exit unknown"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    names = {number.value: number.name for number in signal.Signals}
    return names.get(-exit_code, f"signal {-exit_code}")
