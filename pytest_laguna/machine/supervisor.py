# SPDX-License-Identifier: Apache-2.0
"""The program between a controller and one child: it outlives both, and nothing of the child outlives it.

It is a child subreaper, so every orphan below it becomes its own child, whatever sessions and double forks it went
through; once the kernel reports no child, none is left. It starts the child in a session of its own and waits for the
first of these: the child has ended, the controller asks to stop, the deadline or the memory limit is reached, the
controller is gone. All but the last lead to one ladder: interrupt, terminate, kill, each sent to every process of the
tree, the next when its seconds are over and the tree is not empty. When the controller is gone everything is killed at
once: nobody is left to use the child's output.

The memory limit is a polled sum over the tree. ``RLIMIT_AS`` counts address space, of which torch reserves far more
than it uses, and each process by itself; a control group needs rights that containers and CI do not give.

``json``, ``socket``, ``dataclasses`` and ``subprocess`` are not imported: they would double the cost of a start. A
message is one packet of ``marshal``; both ends are the same interpreter.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from pytest_laguna.machine import descent, kernel
from pytest_laguna.machine.descent import Process

TYPE_CHECKING = False  # type checkers take it for true; typing's own would cost as much as ctypes
if TYPE_CHECKING:
    from typing import Any

PACKET_BYTES = 1 << 20
MEMORY_POLL_SECONDS = 0.5
KILL_POLL_SECONDS = 0.02
CHILDREN_POLL_SECONDS = 0.001
EXEC_FAILED = 127

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RESTORED = (
    *_STOP_SIGNALS, signal.SIGQUIT, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD,
)  # fmt: skip
_JOURNAL_TAIL_BYTES = 1 << 16


class Supervisor:
    """One child from its exec to the end of the last process below it."""

    def __init__(self, connection: int, request: Mapping[str, Any], owner: int) -> None:
        """Start the child; ``connection`` is a packet socket to the controller, ``owner`` the controller's pidfd."""
        self._connection = connection
        self._owner = owner
        self._owner_gone = False
        self._stop_requested = False
        self._stopped_by_controller = False
        self._childless = False
        self._status: int | None = None
        self._peak_memory = 0
        self._memory_limit: int | None = request["memory_limit_bytes"]
        self._wakeup = _wake_on_signals()
        self._started_at = time.monotonic()
        self._exec_report: int | None
        self._child, self._exec_report = _start(request)
        self._poll = select.poll()
        for descriptor in (connection, owner, self._wakeup, self._exec_report):
            self._poll.register(descriptor, select.POLLIN)

    def run(self, request: Mapping[str, Any]) -> None:
        """Supervise to the end and send the result."""
        reason = self._watch(request["deadline_seconds"])
        ended_by_itself = reason == "exited"
        if ended_by_itself:
            self._wait_until(
                request["settle_seconds"], lambda: self._childless or self._owner_gone or self._stop_requested
            )
        # A failed child that is stopped while it settles had no time to clean up: only processes that outlast the
        # polite signals count as left behind. A successful child must leave nothing: a signal may be from anybody.
        cut_short = ended_by_itself and self._stopped_by_controller and self._status != 0
        leftovers = _described(self._tree()) if ended_by_itself and not cut_short else []
        *polite, kill_seconds = request["ladder"]
        last_signal = self._ask_tree(polite)
        if not self._childless:
            leftovers = _described(self._tree()) if cut_short else leftovers
            last_signal = int(signal.SIGKILL)
            self._kill_tree(time.monotonic() + kill_seconds)
        self._report_exec()  # a child may end before its exec was noticed
        self._send({
            "reason": "owner-gone" if self._owner_gone else reason,
            "wait_status": self._status,
            "last_signal": last_signal,
            "wall_seconds": time.monotonic() - self._started_at,
            "peak_memory_bytes": None if self._memory_limit is None else self._peak_memory,
            "leftovers": leftovers,
            "survivors": _described(self._tree()),
            "proven_empty": self._childless,
            "last_journal_line": _last_line(request["journal"]),
        })

    def _watch(self, deadline_seconds: float) -> str:
        """Wait while the child runs; return the reason for the end."""
        deadline = self._started_at + deadline_seconds
        while True:
            if self._status is not None:
                return "exited"
            if self._owner_gone or self._stop_requested:
                return "stopped"
            if time.monotonic() >= deadline:
                return "deadline"
            if self._memory_limit is None:
                self._wait(deadline)
                continue
            self._peak_memory = max(self._peak_memory, descent.memory_bytes(self._tree()))
            if self._peak_memory > self._memory_limit:
                return "memory"
            self._wait(min(deadline, time.monotonic() + MEMORY_POLL_SECONDS))

    def _ask_tree(self, polite: Sequence[float]) -> int | None:
        """Go down the ladder's polite rungs until the tree is empty; return the last signal sent, or None."""
        last_signal = None
        for number, seconds in zip((signal.SIGINT, signal.SIGTERM), polite, strict=True):
            if self._childless or self._owner_gone:
                break
            last_signal = int(number)
            self._signal_tree(number)
            self._wait_until(seconds, lambda: self._childless or self._owner_gone)
        return last_signal

    def _kill_tree(self, end: float) -> None:
        """Kill until the kernel reports no child.

        A process may fork before the signal reaches it, and its child do the same. The last of such a chain has become
        our own child, and those are found in much less time than a process lives.
        """
        while not self._childless and time.monotonic() < end:
            self._signal_tree(signal.SIGKILL)
            self._kill_children(min(end, time.monotonic() + KILL_POLL_SECONDS))

    def _kill_children(self, until: float) -> None:
        while not self._childless and time.monotonic() < until:
            for pid in descent.own_children():
                _kill_child(pid)
            self._wait(min(until, time.monotonic() + CHILDREN_POLL_SECONDS))

    def _tree(self) -> list[Process]:
        return [] if self._childless else descent.descendants(os.getpid())

    def _signal_tree(self, number: int) -> None:
        for process in self._tree():
            process.signal(number)

    def _wait_until(self, seconds: float, done: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            self._wait(end)

    def _wait(self, until: float) -> None:
        """Sleep until an event or a moment of the monotonic clock, and record the events."""
        self._reap()
        if self._childless:
            return
        milliseconds = max(0.0, until - time.monotonic()) * 1000
        for descriptor, _ in self._poll.poll(milliseconds):
            if descriptor == self._wakeup:
                received = os.read(self._wakeup, 4096)
                self._stop_requested |= any(number in received for number in _STOP_SIGNALS)
            elif descriptor == self._exec_report:
                self._report_exec()
            elif descriptor == self._connection and self._is_asked():
                self._stop_requested = self._stopped_by_controller = True
            else:
                self._poll.unregister(descriptor)
                self._owner_gone = True
        self._reap()

    def _reap(self) -> None:
        """Collect every ended child, adopted ones included."""
        while not self._childless:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._child:
                self._status = status

    def _report_exec(self) -> None:
        """Report to the controller, once, that the child's program runs, or why it does not."""
        if self._exec_report is None:
            return
        try:
            failure = os.read(self._exec_report, 4096).decode(errors="replace")
        except BlockingIOError:
            failure = "it was not executed before its time was over"
        self._poll.unregister(self._exec_report)
        os.close(self._exec_report)
        self._exec_report = None
        self._send({"failure": failure, "pid": self._child})

    def _is_asked(self) -> bool:
        """True if the controller sent a message, which can only be to stop; False if it hung up."""
        try:
            return os.read(self._connection, PACKET_BYTES) != b""
        except ConnectionResetError:
            return False

    def _send(self, message: dict[str, Any]) -> None:
        try:
            os.write(self._connection, marshal.dumps(message))
        except ConnectionError:
            self._owner_gone = True


def _kill_child(pid: int) -> None:
    """Kill our own child by pid: the pid stays its own until we collect it."""
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:
        return  # it has changed its user: a survivor


def _wake_on_signals() -> int:
    """Return a descriptor that signals make readable; its bytes are their numbers."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    return readable


def _start(request: Mapping[str, Any]) -> tuple[int, int]:
    """Fork and exec the child, tied to us by the kernel; with one thread in this program the fork is safe.

    Returns:
        The child's pid, and a descriptor that closes at the exec, or holds the reason for its failure.
    """
    readable, writable = os.pipe()
    supervisor = os.getpid()
    child = os.fork()
    if child != 0:
        os.close(writable)
        os.set_blocking(readable, False)
        return child, readable
    try:
        kernel.die_with_parent(signal.SIGKILL)
        if os.getppid() != supervisor:  # it ended before the line above
            os._exit(EXEC_FAILED)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in _RESTORED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if request["cores"]:
            os.sched_setaffinity(0, request["cores"])
        argv: list[str] = request["argv"]
        os.execve(argv[0], argv, request["environment"])  # noqa: S606 - no shell is the point
    except BaseException as error:  # noqa: BLE001 - nothing may run on in this copy of the supervisor
        os.write(writable, str(error).encode())
    os._exit(EXEC_FAILED)


def _described(processes: list[Process]) -> list[dict[str, Any]]:
    return [
        {"pid": process.pid, "command": process.command(), "start_ticks": process.start_ticks} for process in processes
    ]


def _last_line(path: str | None) -> str | None:
    """Last whole line of a file, or None without one."""
    if path is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as stream:  # noqa: PTH123 - from a descriptor
        stream.seek(max(0, os.fstat(descriptor).st_size - _JOURNAL_TAIL_BYTES))
        lines = stream.read().rpartition(b"\n")[0].rsplit(b"\n", 1)
    return lines[-1].decode(errors="replace") or None


def main(connection: int) -> None:
    """Supervise over a connection whose first packet is the request; start nothing for a controller already gone."""
    os.set_inheritable(connection, False)  # noqa: FBT003 - it has no other form
    os.umask(0o077)
    packet = os.read(connection, PACKET_BYTES)
    if not packet:
        return
    request = marshal.loads(packet)  # noqa: S302 - from our own parent
    owner = kernel.open_process(request["owner"])
    if os.getppid() != request["owner"]:
        return
    descent.set_mark(request["token"])
    kernel.become_subreaper()
    Supervisor(connection, request, owner).run(request)
    os._exit(0)  # the interpreter's own end would take longer than all of the above


if __name__ == "__main__":
    main(int(sys.argv[1]))
