# SPDX-License-Identifier: Apache-2.0
"""Ends every bearer of a lease's token: the leftovers of a killed supervisor."""

from __future__ import annotations

import dataclasses
import os
import signal
import time

from pytest_laguna.evidence.machine.process import FoundProcess
from pytest_laguna.machine import descent
from pytest_laguna.machine.command import check_token
from pytest_laguna.machine.descent import Process

POLL_SECONDS = 0.01
_EMPTY_SCANS = 2
"""In a row: one pass over the table is not atomic and may miss the child of a process that just ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """The bearers of a token, each of which got SIGKILL, and those still alive when the time was over."""

    found: list[FoundProcess]
    survivors: list[FoundProcess]


def sweep(token: str, *, seconds: float) -> Sweep:
    """Kill the bearers of a token until none is left or the time is over: a process stuck in the kernel stays.

    This process and its ancestors are never signalled, whatever they bear.

    Raises:
        ValueError: the token has another form.
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
    """Return a process in the form of a report."""
    return FoundProcess(pid=process.pid, command=process.command(), start_ticks=process.start_ticks)
