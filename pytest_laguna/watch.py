# SPDX-License-Identifier: Apache-2.0
"""The watcher: a parent of the gate session, so that the exit code is the verdict whatever happens to the session.

A test that calls ``os._exit(0)`` makes pytest itself return 0, and a session that the kernel kills returns nothing at
all. The session reports its verdict to the watcher after its receipt is sealed; without that report there is none.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from pytest_laguna.verdict import USAGE_EXIT_CODE, Verdict

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Line:
    """The session's line to its watcher."""

    def __init__(self, descriptor: int) -> None:
        """Take over the writing end of the pipe."""
        self._descriptor = descriptor

    def attempt(self, directory: Path) -> None:
        """Tell the watcher where the evidence goes."""
        self._write(f"attempt {directory}")

    def verdict(self, verdict: Verdict) -> None:
        """Tell the watcher the verdict of a sealed attempt."""
        self._write(f"verdict {verdict}")

    def _write(self, text: str) -> None:
        os.write(self._descriptor, f"{text}\n".encode())


def run_watched(begin: Callable[[Line], None], last_words: Callable[[Path], str]) -> int | None:
    """Fork; in the child call ``begin`` and return None, in the parent wait and return the exit code.

    Called before pytest has configured itself: there are no threads yet, and no accelerator runtime is loaded.

    Args:
        begin: gets the line to the watcher.
        last_words: for an attempt's directory, one line on where its session ended.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    watcher = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setpgid(0, 0)  # signals reach the session through its watcher, once
        _die_with(watcher)
        begin(Line(writing))
        return None
    os.close(writing)
    with _forwarding(child):
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code, message = _conclude(status, _read_line(reading), last_words)
    if message:
        sys.stderr.write(f"{message}\n")
    return code


def _die_with(watcher: int) -> None:
    """Have the kernel kill this process when the watcher dies; at once if it is dead already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != watcher:
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _forwarding(child: int) -> Iterator[None]:
    """While waiting, pass each request to stop on to the session as an interrupt, which it ends with a receipt."""

    def forward(_number: int, _frame: FrameType | None) -> None:
        os.kill(child, signal.SIGINT)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read_line(descriptor: int) -> dict[str, str]:
    """What the session said; without waiting, since a survivor of it may still hold the other end."""
    os.set_blocking(descriptor, False)
    with open(descriptor, "rb", buffering=0) as stream:
        content = stream.read(64 * 1024) or b""
    pairs = (line.partition(" ") for line in content.decode("utf-8", "surrogateescape").splitlines())
    return {kind: value for kind, _, value in pairs}


def _conclude(status: int, said: dict[str, str], last_words: Callable[[Path], str]) -> tuple[int, str]:
    """Exit code and message from how the session ended and what it said."""
    ended = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    if "verdict" in said:
        verdict = Verdict(said["verdict"])
        if status == verdict.exit_code:
            return status, ""
        reason = f"the session sealed {verdict} but ended with {ended}; its root is as laguna verify says"
        return Verdict.VOID.exit_code, f"VOID: {reason}"
    if status == USAGE_EXIT_CODE and "attempt" not in said:
        return status, ""
    if "attempt" not in said:
        return (
            Verdict.NOT_PROVEN.exit_code,
            f"NOT_PROVEN: the session ended with {ended} before it opened an attempt",
        )
    directory = Path(said["attempt"])
    reason = f"{last_words(directory)} with {ended}, without a receipt; what it wrote is in {directory}"
    return Verdict.NOT_PROVEN.exit_code, f"NOT_PROVEN: {reason}"
