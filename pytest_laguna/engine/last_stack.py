# SPDX-License-Identifier: Apache-2.0
"""Has this rank write where it is before its arm is ended, or before vLLM gives a step up.

The clock and the writing are Python's fault handler's, in a thread that needs nothing of the interpreter and sleeps
until then: a rank that answers in time never wakes it.
"""

from __future__ import annotations

import faulthandler
import os
import time
from pathlib import Path
from typing import Any

from pytest_laguna.evidence import files
from pytest_laguna.evidence.rank_files import STACKS, STACKS_BEFORE, stack_name

MARGIN_SECONDS = 5.0
"""How long before the arm is ended: a busy host wakes a thread late."""
STEP_SECONDS = 240.0
"""After how long a step is taken for one that hangs: vLLM gives up after 300. Seen in 0.26.0, 0.32.0 and 0.33.0."""
RENEWED_SECONDS = 30.0
"""How old a step's limit may become before the next step renews it: a renewal starts a thread, and is not free."""

_LEAST_SECONDS = 0.001


class LastStack:
    """The one that a process has."""

    def __init__(self, directory: Path, before: float, rank: int) -> None:
        """Make the rank's file, and have it written before the arm is ended.

        Args:
            directory: the arm's own.
            before: when the arm will be ended, in seconds of the monotonic clock.
            rank: this one.

        Raises:
            FileExistsError: the rank has made it already.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(directory / stack_name(rank), flags, files.PRIVATE_FILE)
        self._before = before - MARGIN_SECONDS
        self._set_at = -RENEWED_SECONDS
        self._set(self._before - time.monotonic())

    def step(self) -> None:
        """Say that a step begins: it too has a limit from now on."""
        now = time.monotonic()
        if now - self._set_at >= RENEWED_SECONDS:
            self._set_at = now
            self._set(min(STEP_SECONDS, self._before - now))

    def _set(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(max(seconds, _LEAST_SECONDS), file=self._descriptor)


def write_before_the_end(worker: Any, rank: int) -> None:
    """Give a worker of an arm its ``LastStack``, as ``laguna_last_stack``."""
    worker.laguna_last_stack = LastStack(Path(os.environ[STACKS]), float(os.environ[STACKS_BEFORE]), rank)
