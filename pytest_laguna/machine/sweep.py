# SPDX-License-Identifier: Apache-2.0
"""Ends every process that bears a lease's token: what is left when a supervisor was killed too."""

from __future__ import annotations

import dataclasses
import os
import signal
import time

from pytest_laguna.evidence.process_record import FoundProcess
from pytest_laguna.machine import descent
from pytest_laguna.machine.command import check_token
from pytest_laguna.machine.descent import Process

POLL_SECONDS = 0.01
_EMPTY_SCANS = 2
"""In a row: one pass over the table is not atomic and may miss a process whose parent it saw end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep did.

    Attributes:
        found: the processes that bore the token; each got SIGKILL.
        survivors: those of them that had not ended when the time was over.
    """

    found: list[FoundProcess]
    survivors: list[FoundProcess]


def sweep(token: str, *, seconds: float) -> Sweep:
    """Kill the bearers of a token until none is left.

    This process and its ancestors are never signalled, whatever they bear.

    Args:
        token: the lease's.
        seconds: how long processes may take to end; one that is stuck in the kernel does not.

    Raises:
        ValueError: the token is none.
    """
    check_token(token)
    spared = descent.ancestors(os.getpid())
    found: dict[tuple[int, int], FoundProcess] = {}
    end, empty_scans, left = time.monotonic() + seconds, 0, []
    while empty_scans < _EMPTY_SCANS:
        left = [process for process in descent.bearers(token) if process.pid not in spared]
        empty_scans = 0 if left else empty_scans + 1
        for process in left:
            found.setdefault((process.pid, process.start_ticks), describe(process))
            process.signal(signal.SIGKILL)
        if left and time.monotonic() >= end:
            break
        if left:
            time.sleep(POLL_SECONDS)
    return Sweep(list(found.values()), [found[process.pid, process.start_ticks] for process in left])


def describe(process: Process) -> FoundProcess:
    """A process by what a report names."""
    return FoundProcess(pid=process.pid, command=process.command(), start_ticks=process.start_ticks)
