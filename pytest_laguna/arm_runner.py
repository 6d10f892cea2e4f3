# SPDX-License-Identifier: Apache-2.0
"""Runs arms and other programs for a gate: supervised, under the lease's token, seeing the lease's cards only."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_laguna.campaign import Bounds
from pytest_laguna.engine import launch
from pytest_laguna.evidence.arm_record import ArmRecord, ArmRequest
from pytest_laguna.evidence.process_record import ProcessRecord
from pytest_laguna.leasing import LeasedCards
from pytest_laguna.machine import process
from pytest_laguna.machine.command import Command, Ladder
from pytest_laguna.machine.environment import PRIVATE_DIRECTORIES, make_short_directory, private_environment


@dataclasses.dataclass(frozen=True, slots=True)
class ArmRunner:
    """What a gate's tests start programs with; it is a ``launch.Runner``.

    Attributes:
        token: of the lease, or of the session where nothing is leased.
        cards: the variables that show a process the lease's cards; empty where nothing is leased.
        cores: the processor cores that everything runs on; empty for all that this process may use.
        bounds: the campaign's.
        held: the leased cards, around each of whose runs the host is recorded; None where nothing is leased.
    """

    token: str
    cards: Mapping[str, str]
    cores: frozenset[int]
    bounds: Bounds
    held: LeasedCards | None = None

    def __call__(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> ProcessRecord:
        """Run a program to its end; see ``launch.Runner``.

        Raises:
            ProcessError: it cannot be run.
            NotProvenError: the host cannot be looked at before or after it.
        """
        short = make_short_directory(Path(tempfile.gettempdir()), directory)
        try:
            places = private_environment(directory, short, os.environ)
            command = Command(
                argv=tuple(argv),
                environment=places | dict(self.cards) | dict(variables),
                directory=directory,
                deadline_seconds=deadline_seconds,
                ladder=Ladder(
                    interrupt_seconds=self.bounds.interrupt_seconds,
                    terminate_seconds=self.bounds.terminate_seconds,
                    kill_seconds=self.bounds.kill_seconds,
                ),
                settle_seconds=self.bounds.settle_seconds,
                memory_limit_bytes=self.bounds.memory_limit_bytes,
                cores=self.cores,
            )
            with contextlib.nullcontext() if self.held is None else self.held.audited(directory):
                return process.run(command, self.token)
        finally:
            shutil.rmtree(short, ignore_errors=True)
            for private in {path.partition("/")[0] for path in PRIVATE_DIRECTORIES.values()}:
                shutil.rmtree(directory / private, ignore_errors=True)  # caches are no evidence

    def arm(self, request: ArmRequest, directory: Path, *, interpreter: Path) -> ArmRecord:
        """Run one arm and read its record; raises what ``launch.run_arm`` raises."""
        deadline = self.bounds.deadline_seconds
        return launch.run_arm(request, directory, interpreter=interpreter, deadline_seconds=deadline, run=self)

    def tiny_pair(
        self,
        directory: Path,
        *,
        interpreter: Path,
        layers: int = launch.TINY_PAIR_LAYERS,
        tensor_parallel_size: int = 1,
    ) -> launch.TinyPair:
        """Write the tiny pair; raises what ``launch.build_tiny_pair`` raises."""
        return launch.build_tiny_pair(
            directory,
            layers=layers,
            tensor_parallel_size=tensor_parallel_size,
            interpreter=interpreter,
            deadline_seconds=self.bounds.deadline_seconds,
            run=self,
        )
