# SPDX-License-Identifier: Apache-2.0
"""Runs arms and other programs for a gate: supervised, under the lease's token, seeing the lease's cards only."""

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
    """A program that was started and not waited for; an ``endpoint.server.RunningServer``.

    Attributes:
        pid: of the program.
        start_ticks: when it started, in clock ticks since boot.
        supervised: the program under its supervisor.
    """

    pid: int
    start_ticks: int
    supervised: process.SupervisedProcess

    def processes(self) -> frozenset[int]:
        """The pids of the program and of everything below it that have not ended."""
        return frozenset(found.pid for found in descent.descendants(self.supervised.supervisor_pid))

    def stop(self) -> ProcessRecord:
        """End it by the ladder of signals, if it still runs; what became of it."""
        return self.supervised.stop()


@dataclasses.dataclass(frozen=True, slots=True)
class ArmRunner:
    """What a gate's tests start programs with; it is a ``launch.Runner``.

    Attributes:
        token: of the lease, or of the session where nothing is leased.
        cards: the variables that show a process the lease's cards; empty where nothing is leased.
        cores: the processor cores that everything runs on; empty for all that this process may use.
        bounds: the campaign's.
        bytecode: where Python keeps what everything compiles; private to the session, and not evidence.
        evidence: the attempt's directory of that name, where the end of everything that runs is recorded: in its own
            directory, or for one that lies elsewhere in a new one below ``processes``; None without an attempt.
        held: the leased cards, around each of whose runs the host is recorded; None where nothing is leased.
        watched: is told of each run, by its directory and its deadline in seconds, for as long as it lasts.
        attempt: whose journal is bound to these records, and is told at once what was left running; None without one.
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
            NotProvenError: the host cannot be looked at before or after it.
        """
        with self._supervised(argv, variables, directory, deadline_seconds) as supervised:
            return supervised.wait()

    @contextlib.contextmanager
    def start(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> Iterator[RunningProgram]:
        """Start a program that runs until it is stopped, or the block is left; an ``endpoint.server.StartServer``.

        Raises:
            ProcessError: it cannot be run, or ended in this moment.
            NotProvenError: the host cannot be looked at before or after it.
        """
        with self._supervised(argv, variables, directory, deadline_seconds) as supervised:
            found = descent.find(supervised.pid)
            if found is None:
                message = f"{argv[0]} in {directory}: ended at once"
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
        """Where the end of what runs in a directory is recorded: whoever starts it cannot keep it from the analysis."""
        if self.evidence is None or directory.resolve().is_relative_to(self.evidence.resolve()):
            return directory
        place = self.evidence / leased_cards.PROCESSES
        place.mkdir(mode=files.PRIVATE_DIRECTORY, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{directory.name[:_NAME_LIMIT]}-", dir=place))

    @contextlib.contextmanager
    def _recorded(self, supervised: process.SupervisedProcess, directory: Path) -> Iterator[process.SupervisedProcess]:
        """A supervised process whose end is written down, in whatever way the block is left."""
        with contextlib.ExitStack() as ended, supervised:
            ended.callback(self._record_end, supervised, directory)
            yield supervised

    def _record_end(self, supervised: process.SupervisedProcess, directory: Path) -> None:
        """The journal first: whatever becomes of the file, what was left running is a broken contract."""
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
        """The same, seeing one of the leased cards only.

        Raises:
            NotProvenError: nothing is leased.
        """
        if self.held is None:
            raise NotProvenError("no cards are leased; nothing can run on one")
        return dataclasses.replace(self, cards=showing(card.lane, [card]), cores=self.held.cores([card]))

    def arm(self, request: ArmRequest, directory: Path, *, interpreter: Path) -> ArmRecord:
        """Run one arm and read its record; raises what ``launch.run_arm`` raises, naming a rank that hung."""
        deadline = self.bounds.deadline_seconds
        try:
            return launch.run_arm(request, directory, interpreter=interpreter, deadline_seconds=deadline, run=self)
        except launch.ArmFailedError as error:
            hung = hung_ranks(read_stacks(directory), request.tensor_parallel_size)
            if hung is None:
                raise
            raise launch.ArmFailedError(f"{error}; {hung}") from error

    def packet(self, request: PacketRequest, directory: Path, *, interpreter: Path) -> PacketRecord:
        """Run one parity packet and read its record; raises what ``launch.run_packet`` raises."""
        deadline = self.bounds.deadline_seconds
        return launch.run_packet(request, directory, interpreter=interpreter, deadline_seconds=deadline, run=self)

    def tiny_pair(  # noqa: PLR0913 - what ``launch.build_tiny_pair`` asks for
        self,
        directory: Path,
        *,
        interpreter: Path,
        layers: int = launch.TINY_PAIR_LAYERS,
        tensor_parallel_size: int = 1,
        width: int = 1,
        vllm: str = launch.TINY_PAIR_VLLM,
    ) -> launch.TinyPair:
        """Write the tiny pair; raises what ``launch.build_tiny_pair`` raises."""
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
