# SPDX-License-Identifier: Apache-2.0
"""The watcher: a parent process of the gate session, which makes the exit code the verdict whatever the session does.

A test can call ``os._exit(0)``, and the kernel can kill the session. So the session names its attempt before the first
test. When it has ended, the watcher kills its leftovers and verifies the attempt from its files; later messages of the
session do not count.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.machine.process import FoundProcess
from pytest_laguna.machine import descent
from pytest_laguna.machine.sweep import POLL_SECONDS, describe
from pytest_laguna.verdict import USAGE_EXIT_CODE, Verdict

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_OF_THE_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)
_REFUSED = "refused"
_SURVIVOR_SECONDS = 10.0
"""Time limit for leftovers to end after SIGKILL; one stuck in the kernel does not."""

_COMMAND_SHOWN = 200

LEFT_RUNNING = "left-running.json"
"""Record of leftover processes, added to their attempt; being extra, it makes a sealed attempt VOID.

A sealed STOP or FAIL stays untouched: nothing may open the campaign again.
"""

_Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int | signal.Handlers | None"

Verify = Callable[[Path], tuple[Verdict, str]]
"""Verdict and reason of an attempt, from its directory."""


class Line:
    """The session's pipe to its watcher; only the first message counts."""

    def __init__(self, descriptor: int) -> None:
        """Take over the writing end of the pipe."""
        self._descriptor = descriptor

    def attempt(self, directory: Path) -> None:
        """Tell the watcher the attempt's directory, before the first test."""
        os.write(self._descriptor, os.fsencode(directory) + b"\0")

    def refused(self) -> None:
        """Tell the watcher of a refusal: pytest prints the reason, and no attempt follows."""
        os.write(self._descriptor, _REFUSED.encode() + b"\0")


def run_watched(begin: Callable[[Line], None], verify: Verify) -> int | None:
    """Fork; in the child call ``begin`` and return None, in the parent wait, ``verify`` and return the exit code.

    Called before pytest has configured itself: there are no threads yet, and no accelerator runtime is loaded.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # a test's orphans become the watcher's children; the session looks there
    watcher = os.getpid()
    forward_to: list[int] = []
    before = _forward(forward_to)
    child = os.fork()
    if child != 0:
        forward_to.append(child)
        os.close(writing)
        _wait(child)
        _ignore_requests(forward_to)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        code, message = _conclude(status, _first_word(reading), _end_orphans(), verify)
        if message:
            sys.stderr.write(f"{message}\n")
        return code
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # our parent may ignore it, but every request comes as SIGINT
    os.close(reading)
    _become_session(watcher)
    begin(Line(writing))
    return None


def _become_session(watcher: int) -> None:
    """Take signals from the watcher only, die with it, and never wait for a terminal."""
    os.setpgid(0, 0)
    for number in _OF_THE_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != watcher:
        os.kill(os.getpid(), signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value)


def _forward(forward_to: list[int]) -> Mapping[signal.Signals, _Handler]:
    """Pass each request to stop on to the session as an interrupt, so that it ends with a receipt.

    Signals ignored by our parent, as under nohup or in a script's background, stay ignored.
    Returns the earlier handlers, for the session itself.
    """

    def forward(_number: int, _frame: FrameType | None) -> None:
        for child in forward_to:
            os.kill(child, signal.SIGINT)

    heard = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, forward) for number in heard}


def _wait(child: int) -> None:
    """Wait for the session's end without reaping it: a signal on its way must not hit a reused pid."""
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)


def _ignore_requests(forward_to: list[int]) -> None:
    """Ignore requests to stop: the session is over, and an interrupt could only displace its verdict."""
    for number in _FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    forward_to.clear()


def _end_orphans() -> list[FoundProcess]:
    """Kill the session's leftovers until the kernel reports none, and return them.

    Every orphan becomes the watcher's child; an unreaped child keeps its pid, so no other process is hit.
    """
    found: dict[tuple[int, int], FoundProcess] = {}
    end = time.monotonic() + _SURVIVOR_SECONDS
    while not _collect() and time.monotonic() < end:
        children = [process for pid in _children() if (process := descent.find(pid)) is not None]
        for process in children:
            found.setdefault((process.pid, process.start_ticks), describe(process))
            with contextlib.suppress(PermissionError):  # it changed its user: a survivor
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS if children else 0)
    return list(found.values())


def _children() -> list[int]:
    """The watcher's children, also on a kernel that does not list them."""
    own = os.getpid()
    return descent.own_children() or [process.pid for process in descent.live_processes() if process.parent == own]


def _collect() -> bool:
    """Reap every ended child; True if none is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return True
    return False


def _first_word(descriptor: int) -> str:
    """The session's first message, without waiting: a leftover may still hold the other end."""
    os.set_blocking(descriptor, False)
    with open(descriptor, "rb", buffering=0) as stream:
        content = stream.read(64 * 1024) or b""
    return os.fsdecode(content.partition(b"\0")[0])


def _conclude(status: int, said: str, orphans: list[FoundProcess], verify: Verify) -> tuple[int, str]:
    """Exit code and message, from the session's end, message, leftovers and attempt."""
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
    if said in {"", _REFUSED}:
        if status == USAGE_EXIT_CODE and said:
            return status, ""
        reason = f"NOT_PROVEN: the session {ended} before it opened an attempt"
        return Verdict.NOT_PROVEN.exit_code, reason
    verdict, reason = verify(Path(said))
    if orphans and not verdict.closes:
        _mark(Path(said), orphans)
        command = files.printable(orphans[0].command[:_COMMAND_SHOWN])
        left = f"process {orphans[0].pid} was left running by the session: {command}"
        if (Path(said) / root.RECEIPT).exists():
            return Verdict.VOID.exit_code, f"VOID: {left}; its evidence is in {said}"
        reason = f"{reason}; {left}"
    if status == verdict.exit_code:
        return status, ""
    if verdict is Verdict.NOT_PROVEN:
        return verdict.exit_code, f"NOT_PROVEN: the session {ended}: {reason}; its evidence is in {said}"
    reason = f"the session {ended}, but its attempt verifies as {verdict}: {reason}"
    return Verdict.VOID.exit_code, f"VOID: {reason}; its evidence is in {said}"


def _mark(attempt: Path, orphans: list[FoundProcess]) -> None:
    """Record the leftovers in the attempt itself, since a later verifier does not see the exit code."""
    with contextlib.suppress(OSError):  # full disk or deleted attempt: verification finds either
        sealed = (attempt / root.RECEIPT).exists()
        attempt.chmod(files.PRIVATE_DIRECTORY)
        files.write_new(attempt / LEFT_RUNNING, files.canonical_json([orphan.canonical() for orphan in orphans]))
        if sealed:
            root.seal(attempt)
