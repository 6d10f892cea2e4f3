# SPDX-License-Identifier: Apache-2.0
"""States of a server's ranks, written by the ranks themselves as files: no request is made for them.

A rank writes its first state at the end of start-up, before the server answers. For the second, one of its threads
blocks on a pipe, in the kernel, at no cost to the measurement; opening the pipe wakes it. File names are those of
``pytest_laguna.engine.rank_state``, which runs in the ranks.
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
from pytest_laguna.evidence.arms.rank_files import PIPES, VARIABLE, pipe_name, state_name
from pytest_laguna.evidence.endpoint.leg import RankState
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import UnusableEvidenceError

ANSWER_SECONDS = 30.0
"""Deadline for all second states; a rank needs milliseconds unless it is stuck."""

_POLL_SECONDS = 0.01


class Ranks:
    """The ranks of one server."""

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._count = count
        self._pipes: Path | None = None

    @contextlib.contextmanager
    def pipes(self) -> Iterator[dict[str, str]]:
        """Create the directory of the states, and a temporary one for the pipes.

        The pipes lie outside the evidence because a manifest takes regular files only, even after a killed leg.

        Yields:
            The variables that tell a server's ranks both directories.
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
        """First state of every rank.

        Raises:
            UnusableEvidenceError: one is missing, malformed or of another rank, or there is a rank too many.
        """
        expected = {state_name(rank, "captured") for rank in range(self._count)}
        more = sorted({path.name for path in self._directory.glob("*.json")} - expected)
        if more:
            raise UnusableEvidenceError(f"{more[0]}: seen a file of another rank; expected {self._count} ranks")
        return [self._read(rank, "captured") for rank in range(self._count)]

    def served(self) -> list[RankState]:
        """Ask every rank for its second state.

        Raises:
            UnusableEvidenceError: a rank does not wait at its pipe, misses the deadline, or answers malformed.
            ValueError: called outside the block of ``pipes``.
        """
        if self._pipes is None:
            raise ValueError("ranks: seen no pipes; expected a call inside the block of pipes()")
        end = time.monotonic() + ANSWER_SECONDS
        for rank in range(self._count):
            self._wake(rank, self._pipes / pipe_name(rank), end)
        for rank in range(self._count):
            while not (self._directory / state_name(rank, "served")).exists() and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
        return [self._read(rank, "served") for rank in range(self._count)]

    @staticmethod
    def _wake(rank: int, pipe: Path, end: float) -> None:
        """Open a rank's pipe; retry until the deadline, as the rank may be about to wait."""
        while True:
            try:
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                if error.errno == errno.ENXIO and time.monotonic() < end:
                    time.sleep(_POLL_SECONDS)
                    continue
                reason = "nobody waiting" if error.errno == errno.ENXIO else error.strerror
                message = f"{pipe.name}: seen {reason}; expected rank {rank} of the server to wait there"
                raise UnusableEvidenceError(message) from error
            return

    def _read(self, rank: int, moment: str) -> RankState:
        name = state_name(rank, moment)
        state = read_model(self._directory / name, RankState)
        if (state.rank, state.moment) != (rank, moment):
            message = f"{name}: seen rank {state.rank}, {state.moment}; expected rank {rank}, {moment}"
            raise UnusableEvidenceError(message)
        return state
