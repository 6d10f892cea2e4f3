# SPDX-License-Identifier: Apache-2.0
"""The controller's side of a supervised child: start, stop, and the record of the end of its whole tree."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_laguna.evidence import files
from pytest_laguna.evidence.machine.process import ProcessRecord, Reason, exit_words
from pytest_laguna.evidence.schemas import parse_model
from pytest_laguna.machine import descent, supervisor
from pytest_laguna.machine.command import Command, check_token
from pytest_laguna.machine.sweep import sweep
from pytest_laguna.verdict import NotProvenError

START_SECONDS = 60.0
"""Limit from a supervisor's exec to its child's: milliseconds unless the host is stuck."""

MARGIN_SECONDS = 30.0
"""Time beyond its limits before a supervisor counts as lost."""

SWEEP_SECONDS = 10.0

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from pytest_laguna.machine.supervisor import main; main(int(sys.argv[2]))"
)
"""A module, because a script would be compiled at each start; last on the path, so that it shadows nothing."""


class ProcessError(NotProvenError):
    """A child could not be started, or its end is unknown: its evidence is missing."""


def run(command: Command, token: str) -> ProcessRecord:
    """Run a child to its end; an interrupt of this process ends it first."""
    with SupervisedProcess(command, token) as process:
        return process.wait()


class SupervisedProcess:
    """A child under a supervisor, for use with ``with``: it starts on entry, and on exit nothing of it is left.

    Leaving the block in any way, an interrupt included, stops a running child by its ladder; an interrupt of the ladder
    kills everything at once. A thread waits for the result: it notices a killed supervisor at once, even if the
    controller is busy, and kills every bearer of the token.

    Attributes:
        pid: of the child; to look at it, not to signal it.
        supervisor_pid: of its supervisor.
    """

    pid: int
    supervisor_pid: int

    def __init__(self, command: Command, token: str) -> None:
        """Prepare without a start; every bearer of the token is killed if the supervisor is lost.

        Raises:
            ValueError: the token has another form.
        """
        check_token(token)
        self._command = command
        self._token = token
        self._running = threading.Event()
        self._ended = threading.Event()
        self._failure = ""
        self._thread: threading.Thread | None = None
        self._record: ProcessRecord | None = None

    def __enter__(self) -> Self:
        """Start the supervisor, and return once the child's program runs.

        Raises:
            FileExistsError: ``stdout.log`` or ``stderr.log`` exists.
            ProcessError: the program could not be run; the line says why.
        """
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._launch(theirs.fileno())
            heard = self._running.wait(START_SECONDS)
        except BaseException:
            self._stop_start()
            raise
        if not heard:
            self._abandon(patience_seconds=0)
        failure = self._failure if heard else f"nothing from its supervisor for {START_SECONDS:g} s"
        if failure:
            self._wait_for_end(MARGIN_SECONDS)
            where = f"{self._command.argv[0]} in {self._command.directory}"
            raise ProcessError(f"{where}: seen {failure}; expected a running program")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the child if it still runs."""
        self.stop()

    def wait(self) -> ProcessRecord:
        """Wait until the child and all below it have ended; the deadline bounds the time."""
        return self._wait(self._longest_seconds())

    def stop(self) -> ProcessRecord:
        """End the child by its ladder, in any phase; return its record, also if it has ended already."""
        try:
            if not self._ended.is_set():
                self._tell_to_stop()
            return self._wait(self._command.ladder.seconds + MARGIN_SECONDS)
        except BaseException:
            self._abandon()
            raise

    def _stop_start(self) -> None:
        """End a start that did not complete, as in any other phase."""
        if self._thread is None:
            self._connection.close()  # nobody has the request yet: a supervisor that waits for it ends
            self._ended.set()
            return
        with contextlib.suppress(ProcessError):
            self.stop()

    def _launch(self, descriptor: int) -> None:
        command = self._command
        output = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        opened: list[int] = []
        try:
            for name in ("stdout.log", "stderr.log"):
                opened.append(os.open(command.directory / name, output, files.PRIVATE_FILE))  # noqa: PERF401 - closed below
            argv = [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM, str(_ROOT), str(descriptor)]
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=opened[0],
                stderr=opened[1],
                env=_supervisor_environment(self._token),
                cwd=command.directory,
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        finally:
            for number in opened:
                os.close(number)
        self.supervisor_pid = self._process.pid
        self._thread = threading.Thread(target=self._watch, name=f"supervisor {self.supervisor_pid}", daemon=True)
        self._thread.start()
        self._connection.sendall(marshal.dumps(self._request()))

    def _request(self) -> dict[str, Any]:
        command, ladder = self._command, self._command.ladder
        return {
            "owner": os.getpid(),
            "token": self._token,
            "argv": list(command.argv),
            "environment": {**command.environment, descent.TOKEN_VARIABLE: self._token},
            "deadline_seconds": command.deadline_seconds,
            "settle_seconds": command.settle_seconds,
            "ladder": (ladder.interrupt_seconds, ladder.terminate_seconds, ladder.kill_seconds),
            "memory_limit_bytes": command.memory_limit_bytes,
            "journal": None if command.journal is None else str(command.journal),
            "cores": sorted(command.cores),
        }

    def _watch(self) -> None:
        """The thread: read the supervisor's messages, and sweep if it ends without a result."""
        started_at = time.monotonic()
        try:
            first = self._receive()
            self._failure = first["failure"] if first else self._supervisor_error()
            if first:
                self.pid = first["pid"]
                self._running.set()
            ended = self._receive() if first else None
            self._process.wait()
            self._record = (
                parse_model(ended, ProcessRecord, "supervisor's result") if ended else self._swept(started_at)
            )
        finally:
            self._connection.close()
            self._ended.set()
            self._running.set()

    def _receive(self) -> dict[str, Any] | None:
        """Return one message, or None if the supervisor has ended."""
        try:
            packet = self._connection.recv(supervisor.PACKET_BYTES)
        except ConnectionResetError:  # it ended before it read our stop message, which the kernel reports first
            packet = self._connection.recv(supervisor.PACKET_BYTES)  # its message before that
        message: dict[str, Any] | None = marshal.loads(packet) if packet else None  # noqa: S302 - our own child's
        return message

    def _swept(self, started_at: float) -> ProcessRecord:
        swept = sweep(self._token, seconds=SWEEP_SECONDS)
        return ProcessRecord(
            reason=Reason.SUPERVISOR_LOST,
            wait_status=None,
            last_signal=int(signal.SIGKILL) if swept.found else None,
            proven_empty=False,
            wall_seconds=time.monotonic() - started_at,
            peak_memory_bytes=None,
            leftovers=swept.found,
            survivors=swept.survivors,
            last_journal_line=None,
        )

    def _supervisor_error(self) -> str:
        """Last line of a supervisor that ended without a message."""
        lines = (self._command.directory / "stderr.log").read_text(errors="replace").splitlines()
        code = self._process.wait()
        how = f", by {exit_words(code)}" if code < 0 else ""
        return f"its supervisor ended at once{how}: {lines[-1] if lines else 'nothing on standard error'}"

    def _longest_seconds(self) -> float:
        command = self._command
        return command.deadline_seconds + command.settle_seconds + command.ladder.seconds + MARGIN_SECONDS

    def _wait(self, seconds: float) -> ProcessRecord:
        self._wait_for_end(seconds)
        if self._record is None:
            where = f"{self._command.argv[0]} in {self._command.directory}"
            raise ProcessError(f"{where}: seen no usable result from its supervisor; expected one")
        return self._record

    def _wait_for_end(self, seconds: float) -> None:
        """Wait for the end; a supervisor that takes longer is stuck and killed, and the thread sweeps."""
        if not self._ended.wait(seconds):
            self._process.kill()
            self._ended.wait(SWEEP_SECONDS + MARGIN_SECONDS)

    def _tell_to_stop(self) -> None:
        with contextlib.suppress(OSError):  # it has ended in this moment
            self._connection.send(b"stop")

    def _abandon(self, patience_seconds: float | None = None) -> None:
        """Hang up, so that the supervisor kills everything at once, and wait for that."""
        with contextlib.suppress(OSError):  # it has ended in this moment
            self._connection.shutdown(socket.SHUT_WR)
        self._wait_for_end(self._command.ladder.kill_seconds if patience_seconds is None else patience_seconds)


def _supervisor_environment(token: str) -> dict[str, str]:
    """The token, and the variable by which this interpreter may load its own libraries."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return kept | {descent.TOKEN_VARIABLE: token}
