# SPDX-License-Identifier: Apache-2.0
"""What each rank of a server says of itself, in files that it writes: no request is made for it.

A rank writes its first state when its start-up is over, before the server answers anything. For the second a thread of
it waits at a pipe, in the kernel, so that it costs the measurement nothing; opening the pipe wakes it. The names are
those of ``pytest_laguna.engine.rank_state``, which runs in the ranks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.leg import RankState
from pytest_laguna.evidence.rank_files import PIPES, VARIABLE, pipe_name, state_name
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import UnusableEvidenceError

ANSWER_SECONDS = 30.0
"""How long a rank may take for its second state; it is milliseconds unless the rank is stuck."""

_POLL_SECONDS = 0.01


class Ranks:
    """The ranks of one server."""

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._count = count
        self._pipes: Path | None = None

    @contextlib.contextmanager
    def pipes(self) -> Iterator[dict[str, str]]:
        """Make the directory of the states, and the pipes in one of their own, which is gone afterwards.

        The pipes are no evidence, and lie outside it: a manifest takes regular files, also of a leg that was killed.

        Yields:
            The variables that tell a server's ranks where both are.
        """
        self._directory.mkdir(mode=files.PRIVATE_DIRECTORY)
        pipes = Path(tempfile.mkdtemp(prefix="laguna-pipes-"))
        self._pipes = pipes
        try:
            for rank in range(self._count):
                os.mkfifo(pipes / pipe_name(rank), files.PRIVATE_FILE)
            yield {VARIABLE: str(self._directory), PIPES: str(pipes)}
        finally:
            self._pipes = None
            shutil.rmtree(pipes, ignore_errors=True)

    def captured(self) -> list[RankState]:
        """Every rank's first state.

        Raises:
            UnusableEvidenceError: one is missing, of another rank, or not of its form, or there is a rank too many.
        """
        expected = {state_name(rank, "captured") for rank in range(self._count)}
        more = sorted({path.name for path in self._directory.glob("*.json")} - expected)
        if more:
            message = f"{more[0]}: from a rank too many; expected {self._count}"
            raise UnusableEvidenceError(message)
        return [self._read(rank, "captured") for rank in range(self._count)]

    def served(self) -> list[RankState]:
        """Ask every rank for its second state.

        Raises:
            UnusableEvidenceError: a rank does not wait to be asked, does not answer in its time, or not in its form.
            ValueError: outside the block of ``pipes``.
        """
        if self._pipes is None:
            raise ValueError("there are no pipes; expected to be asked while they are there")
        end = time.monotonic() + ANSWER_SECONDS
        for rank in range(self._count):
            self._wake(rank, self._pipes / pipe_name(rank), end)
        for rank in range(self._count):
            while not (self._directory / state_name(rank, "served")).exists() and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
        return [self._read(rank, "served") for rank in range(self._count)]

    @staticmethod
    def _wake(rank: int, pipe: Path, end: float) -> None:
        """Open a rank's pipe, on which it may be about to wait."""
        while True:
            try:
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                if error.errno == errno.ENXIO and time.monotonic() < end:
                    time.sleep(_POLL_SECONDS)
                    continue
                reason = "nobody waits there" if error.errno == errno.ENXIO else error.strerror
                message = f"{pipe.name}: {reason}; expected rank {rank} of the server to wait to be asked"
                raise UnusableEvidenceError(message) from error
            return

    def _read(self, rank: int, moment: str) -> RankState:
        name = state_name(rank, moment)
        state = read_model(self._directory / name, RankState)
        if (state.rank, state.moment) != (rank, moment):
            message = f"{name}: of rank {state.rank} when it had {state.moment}; expected rank {rank}, {moment}"
            raise UnusableEvidenceError(message)
        return state
