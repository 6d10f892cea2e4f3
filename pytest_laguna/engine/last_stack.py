# SPDX-License-Identifier: Apache-2.0
"""Dumps this rank's stacks shortly before its arm is ended, or before vLLM gives up on a step.

Python's fault handler does it, in a thread that needs no interpreter and sleeps until then: a rank that answers in time
never wakes it.
"""

from __future__ import annotations

import faulthandler
import os
import time
from pathlib import Path
from typing import Any

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.rank_files import STACKS, STACKS_BEFORE, stack_name

MARGIN_SECONDS = 5.0
"""Lead before the arm's end: a busy host wakes a thread late."""
STEP_SECONDS = 240.0
"""Age at which a step counts as hung: vLLM gives up after 300; seen in 0.26.0, 0.32.0 and 0.33.0."""
RENEWED_SECONDS = 30.0
"""Least time between two resets of the watchdog: each starts a thread, which is not free."""

_LEAST_SECONDS = 0.001


class LastStack:
    """The watchdog of a process."""

    def __init__(self, directory: Path, before: float, rank: int) -> None:
        """Create the rank's file, and arm the watchdog; raises FileExistsError if the rank has done so already.

        Args:
            directory: the arm's own.
            before: planned end of the arm, in seconds of the monotonic clock.
            rank: this one.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(directory / stack_name(rank), flags, files.PRIVATE_FILE)
        self._before = before - MARGIN_SECONDS
        self._set_at = -RENEWED_SECONDS
        self._set(self._before - time.monotonic())

    def step(self) -> None:
        """Reset the watchdog at the start of a step, unless that was done less than ``RENEWED_SECONDS`` ago."""
        now = time.monotonic()
        if now - self._set_at >= RENEWED_SECONDS:
            self._set_at = now
            self._set(min(STEP_SECONDS, self._before - now))

    def _set(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(max(seconds, _LEAST_SECONDS), file=self._descriptor)


def write_before_the_end(worker: Any, rank: int) -> None:
    """Give a worker of an arm its ``LastStack``, as ``laguna_last_stack``."""
    worker.laguna_last_stack = LastStack(Path(os.environ[STACKS]), float(os.environ[STACKS_BEFORE]), rank)
