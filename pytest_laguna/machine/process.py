# SPDX-License-Identifier: Apache-2.0
"""The controller's side of a supervised child: start it, stop it, and learn what became of it and of all below it."""

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
from pytest_laguna.evidence.process_record import ProcessRecord, Reason, exit_words
from pytest_laguna.evidence.schemas import parse_model
from pytest_laguna.machine import descent, supervisor
from pytest_laguna.machine.command import Command, check_token
from pytest_laguna.machine.sweep import sweep
from pytest_laguna.verdict import NotProvenError

START_SECONDS = 60.0
"""How long a supervisor may take from its exec to its child's; it is milliseconds unless the host is stuck."""

MARGIN_SECONDS = 30.0
"""What a supervisor may take beyond the times that it was given, before it counts as lost."""

SWEEP_SECONDS = 10.0

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from pytest_laguna.machine.supervisor import main; main(int(sys.argv[2]))"
)
"""As a module, because a script would be compiled anew at each start; last on the path, so that it shadows nothing."""


class ProcessError(NotProvenError):
    """A child that could not be started, or of whose end nothing is known: what it was to show is missing."""


def run(command: Command, token: str) -> ProcessRecord:
    """Run a child to its end; an interrupt of this process ends it first."""
    with SupervisedProcess(command, token) as process:
        return process.wait()


class SupervisedProcess:
    """A child under a supervisor, for use with ``with``: it starts on entry, and on exit nothing of it is left.

    Leaving the block in whatever way, an interrupt included, stops a child that still runs by its ladder; an interrupt
    of the ladder kills everything at once. A thread waits for the result: a supervisor that is killed is noticed at
    once, whatever the controller does, and every bearer of the token is killed.

    Attributes:
        pid: of the child; of use for looking at it, and not for signalling it.
        supervisor_pid: of its supervisor.
    """

    pid: int
    supervisor_pid: int

    def __init__(self, command: Command, token: str) -> None:
        """Prepare, and start nothing yet.

        Args:
            command: what to run, and within which bounds.
            token: the lease's, from ``new_token``. Should the supervisor be lost, every bearer is killed.

        Raises:
            ValueError: the token is none.
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
        failure = self._failure if heard else f"its supervisor said nothing for {START_SECONDS:g} s"
        if failure:
            self._wait_for_end(MARGIN_SECONDS)
            where = f"{self._command.argv[0]} in {self._command.directory}"
            message = f"{where}: could not be run: {failure}"
            raise ProcessError(message)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the child if it still runs."""
        self.stop()

    def wait(self) -> ProcessRecord:
        """Wait until the child and all below it have ended; its deadline bounds the time."""
        return self._wait(self._longest_seconds())

    def stop(self) -> ProcessRecord:
        """End the child by its ladder, in whatever phase it is; the result if it has ended already."""
        try:
            if not self._ended.is_set():
                self._tell_to_stop()
            return self._wait(self._command.ladder.seconds + MARGIN_SECONDS)
        except BaseException:
            self._abandon()
            raise

    def _stop_start(self) -> None:
        """End a start that did not come to its end in the way that any other phase is ended."""
        if self._thread is None:
            self._connection.close()  # nobody has the request yet: a supervisor that waits for it ends
            self._ended.set()
            return
        with contextlib.suppress(ProcessError):
            self.stop()

    def _launch(self, descriptor: int) -> None:
        """Exec the supervisor and send it the request."""
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
        """The thread: hear the supervisor out, and sweep when it ends without a result."""
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
        """One message; nothing when the supervisor has ended."""
        try:
            packet = self._connection.recv(supervisor.PACKET_BYTES)
        except ConnectionResetError:  # it ended before it read our word to stop, of which the kernel tells first
            packet = self._connection.recv(supervisor.PACKET_BYTES)  # what it had said by then
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
        """The last line that a supervisor wrote before it ended without a word."""
        lines = (self._command.directory / "stderr.log").read_text(errors="replace").splitlines()
        code = self._process.wait()
        how = f", by {exit_words(code)}" if code < 0 else ""
        return f"its supervisor ended at once{how}: {lines[-1] if lines else 'nothing on standard error'}"

    def _longest_seconds(self) -> float:
        command = self._command
        return command.deadline_seconds + command.settle_seconds + command.ladder.seconds + MARGIN_SECONDS

    def _wait(self, seconds: float) -> ProcessRecord:
        """The result, once it is there."""
        self._wait_for_end(seconds)
        if self._record is None:
            message = f"{self._command.argv[0]} in {self._command.directory}: its supervisor gave no usable result"
            raise ProcessError(message)
        return self._record

    def _wait_for_end(self, seconds: float) -> None:
        """Wait; a supervisor that keeps us waiting longer is stuck: it is killed, and the thread sweeps."""
        if not self._ended.wait(seconds):
            self._process.kill()
            self._ended.wait(SWEEP_SECONDS + MARGIN_SECONDS)

    def _tell_to_stop(self) -> None:
        with contextlib.suppress(OSError):  # it has ended in this moment
            self._connection.send(b"stop")

    def _abandon(self, patience_seconds: float | None = None) -> None:
        """Hang up, which has the supervisor kill everything at once, and wait for that."""
        with contextlib.suppress(OSError):  # it has ended in this moment
            self._connection.shutdown(socket.SHUT_WR)
        self._wait_for_end(self._command.ladder.kill_seconds if patience_seconds is None else patience_seconds)


def _supervisor_environment(token: str) -> dict[str, str]:
    """The token, and what this interpreter itself may need to load its own libraries."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return kept | {descent.TOKEN_VARIABLE: token}
