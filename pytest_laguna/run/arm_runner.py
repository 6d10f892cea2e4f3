# SPDX-License-Identifier: Apache-2.0
"""Runs a gate's programs: supervised, under the lease's token, seeing only the lease's cards."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_laguna.analysis.arms.hung_ranks import hung_ranks
from pytest_laguna.analysis.machine.process import judge_cleanliness
from pytest_laguna.attempt.attempt import Attempt
from pytest_laguna.campaign import Bounds
from pytest_laguna.engine import launch
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import ArmRecord, ArmRequest
from pytest_laguna.evidence.arms.parity import PacketRecord, PacketRequest
from pytest_laguna.evidence.machine import leased_cards
from pytest_laguna.evidence.machine.card_masks import showing
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.reading import read_stacks
from pytest_laguna.machine import descent, process
from pytest_laguna.machine.cards import Card
from pytest_laguna.machine.command import Command, Ladder
from pytest_laguna.machine.environment import PRIVATE_DIRECTORIES, make_short_directory, private_environment
from pytest_laguna.run.leasing import LeasedCards
from pytest_laguna.verdict import NotProvenError, Verdict

_NAME_LIMIT = 64


def _unwatched(_directory: Path, _deadline_seconds: float) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


@dataclasses.dataclass(frozen=True, slots=True)
class RunningProgram:
    """Handle of a running program; an ``endpoint.server.RunningServer``.

    Attributes:
        start_ticks: start time, in clock ticks since boot.
    """

    pid: int
    start_ticks: int
    supervised: process.SupervisedProcess

    def processes(self) -> frozenset[int]:
        """Return the pids of the program and its live descendants."""
        return frozenset(found.pid for found in descent.descendants(self.supervised.supervisor_pid))

    def stop(self) -> ProcessRecord:
        """End the program by the ladder of signals, if it still runs, and return its record."""
        return self.supervised.stop()


@dataclasses.dataclass(frozen=True, slots=True)
class ArmRunner:
    """Starts programs for a gate's tests; a ``launch.Runner``.

    Attributes:
        token: of the lease, or of the session without a lease.
        cards: environment variables that show a process the leased cards; empty without a lease.
        cores: processor cores of everything that runs; empty for no restriction.
        bytecode: Python's bytecode cache, private to the session; not evidence.
        evidence: the attempt's ``evidence`` directory. A run inside it is recorded in its own directory, any other in
            a new one below ``processes``. None without an attempt.
        held: leased cards; the host is recorded before and after each run. None without a lease.
        watched: called with the directory and deadline (seconds) of each run, and entered for as long as it lasts.
        attempt: its journal binds the records and is told of leftover processes at once; None without an attempt.
    """

    token: str
    cards: Mapping[str, str]
    cores: frozenset[int]
    bounds: Bounds
    bytecode: Path
    evidence: Path | None = None
    held: LeasedCards | None = None
    watched: Callable[[Path, float], contextlib.AbstractContextManager[None]] = _unwatched
    attempt: Attempt | None = None

    def __call__(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> ProcessRecord:
        """Run a program to its end; see ``launch.Runner``.

        Raises:
            ProcessError: it cannot be run.
            NotProvenError: the host cannot be inspected before or after it.
        """
        with self._supervised(argv, variables, directory, deadline_seconds) as supervised:
            return supervised.wait()

    @contextlib.contextmanager
    def start(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> Iterator[RunningProgram]:
        """Start a program and stop it when the block is left; an ``endpoint.server.StartServer``.

        Raises:
            ProcessError: it cannot be run, or ended at once.
            NotProvenError: the host cannot be inspected before or after it.
        """
        with self._supervised(argv, variables, directory, deadline_seconds) as supervised:
            found = descent.find(supervised.pid)
            if found is None:
                message = f"{argv[0]} in {directory}: ended at once; expected a running program"
                raise process.ProcessError(message)
            yield RunningProgram(supervised.pid, found.start_ticks, supervised)

    @contextlib.contextmanager
    def _supervised(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> Iterator[process.SupervisedProcess]:
        short = make_short_directory(Path(tempfile.gettempdir()))
        try:
            places = private_environment(directory, short, self.bytecode, os.environ)
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
            records = self._records(directory)
            with (
                self.watched(directory, deadline_seconds),
                contextlib.nullcontext() if self.held is None else self.held.audited(records, self._write),
                self._recorded(process.SupervisedProcess(command, self.token), records) as supervised,
            ):
                yield supervised
        finally:
            shutil.rmtree(short, ignore_errors=True)
            for private in {path.partition("/")[0] for path in PRIVATE_DIRECTORIES.values()}:
                shutil.rmtree(directory / private, ignore_errors=True)  # caches are no evidence

    def _records(self, directory: Path) -> Path:
        """Directory for a run's process record, inside the evidence so that no caller can hide it."""
        if self.evidence is None or directory.resolve().is_relative_to(self.evidence.resolve()):
            return directory
        place = self.evidence / leased_cards.PROCESSES
        place.mkdir(mode=files.PRIVATE_DIRECTORY, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{directory.name[:_NAME_LIMIT]}-", dir=place))

    @contextlib.contextmanager
    def _recorded(self, supervised: process.SupervisedProcess, directory: Path) -> Iterator[process.SupervisedProcess]:
        """Yield a supervised process, and record its end however the block is left."""
        with contextlib.ExitStack() as ended, supervised:
            ended.callback(self._record_end, supervised, directory)
            yield supervised

    def _record_end(self, supervised: process.SupervisedProcess, directory: Path) -> None:
        """Record the end; leftovers go to the journal first, so that a failing write cannot hide them."""
        record, path = supervised.stop(), directory / leased_cards.PROCESS
        content = files.canonical_json(record.canonical())
        verdict, reason = judge_cleanliness(record)
        if self.attempt is not None and verdict is Verdict.FAIL:
            name = self.attempt.evidence_name(path)
            self.attempt.append("problem", reason=f"{name}: {reason}", verdict=verdict.value)
            self.attempt.record(path, content, displaced=verdict)
        else:
            self._write(path, content)

    def _write(self, path: Path, content: bytes) -> None:
        write = files.write_new if self.attempt is None else self.attempt.record
        write(path, content)

    def on_card(self, card: Card) -> ArmRunner:
        """Return a runner that sees one of the leased cards only.

        Raises:
            NotProvenError: nothing is leased.
        """
        if self.held is None:
            raise NotProvenError("no cards are leased; run this on gate 2 or 3")
        return dataclasses.replace(self, cards=showing(card.lane, [card]), cores=self.held.cores([card]))

    def arm(self, request: ArmRequest, directory: Path, *, interpreter: Path) -> ArmRecord:
        """Run one arm and read its record; errors as ``launch.run_arm``, naming a rank if it hung."""
        deadline = self.bounds.deadline_seconds
        try:
            return launch.run_arm(request, directory, interpreter=interpreter, deadline_seconds=deadline, run=self)
        except launch.ArmFailedError as error:
            hung = hung_ranks(read_stacks(directory), request.tensor_parallel_size)
            if hung is None:
                raise
            raise launch.ArmFailedError(f"{error}; {hung}") from error

    def packet(self, request: PacketRequest, directory: Path, *, interpreter: Path) -> PacketRecord:
        """Run one parity packet and read its record; errors as ``launch.run_packet``."""
        deadline = self.bounds.deadline_seconds
        return launch.run_packet(request, directory, interpreter=interpreter, deadline_seconds=deadline, run=self)

    def tiny_pair(  # noqa: PLR0913 - parameters of ``launch.build_tiny_pair``
        self,
        directory: Path,
        *,
        interpreter: Path,
        layers: int = launch.TINY_PAIR_LAYERS,
        tensor_parallel_size: int = 1,
        width: int = 1,
        vllm: str = launch.TINY_PAIR_VLLM,
    ) -> launch.TinyPair:
        """Write the tiny pair; errors as ``launch.build_tiny_pair``."""
        return launch.build_tiny_pair(
            directory,
            layers=layers,
            tensor_parallel_size=tensor_parallel_size,
            width=width,
            vllm=vllm,
            interpreter=interpreter,
            deadline_seconds=self.bounds.deadline_seconds,
            run=self,
        )
