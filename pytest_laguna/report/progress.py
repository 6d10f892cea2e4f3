# SPDX-License-Identifier: Apache-2.0
"""Progress of a gate on the terminal: one line for each arm, packet or leg, with phase, elapsed time and deadline.

A terminal's line is rewritten in place; elsewhere, and with ``-q``, each change is a plain line. The phase comes from
the files of the run, so that no measurement speaks to a terminal. Failing writes are ignored.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from pytest_laguna.evidence.endpoint.reader import END, LEG
from pytest_laguna.evidence.files import printable
from pytest_laguna.evidence.machine import leased_cards
from pytest_laguna.evidence.reading import FAILURE, RECORD, names_in

_SECONDS = 1.0
"""Between two checks of a run's directory."""

_CLEAR = "\r\x1b[K"

_LAST = {LEG, RECORD, FAILURE, END, leased_cards.PROCESS}
_LOGS = {"stdout.log", "stderr.log"}

Phase: TypeAlias = str


def phase_of(directory: Path) -> Phase:
    """Phase of a run, from the names of the files so far in its directory, which need not exist."""
    names = set(names_in(directory))
    rows = sum(name.startswith("row-") and name.endswith(".request.json") for name in names)
    reached: tuple[tuple[bool, Phase], ...] = (
        (bool(names & _LAST), "ends"),
        ("metrics-after-suite.prom" in names, "server stops"),
        (rows > 0, f"row {rows}"),
        ("metrics-before-suite.prom" in names, "server is ready"),
        (any("captured" in name for name in names_in(directory / "ranks")), "graphs are captured"),
        (bool(names_in(directory / "profile")), "replays are profiled"),
        (bool(names & _LOGS), "runs"),
    )
    return next((phase for is_so, phase in reached if is_so), "starts")


class Progress:
    """Writes to the session's terminal, past any capture of standard output.

    Attributes:
        live: True if a line is rewritten in place.
    """

    def __init__(self, write: Callable[[str], None], *, live: bool) -> None:
        """Show nothing yet; ``write`` takes text for the terminal."""
        self.live = live
        self._write = write
        self._fresh = True

    def test_began(self) -> None:
        """Begin the next line anew, since pytest may have left its own unfinished."""
        self._fresh = True

    @contextlib.contextmanager
    def run(self, directory: Path, deadline_seconds: float) -> Iterator[None]:
        """Show a run under its directory's name for as long as the block lasts."""
        line = _Line(_name(directory), directory, time.monotonic(), deadline_seconds)
        if self._fresh:
            self._write("\n")
            self._fresh = False
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(line, over), name="laguna-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            self._write(f"{_CLEAR if self.live else ''}{line.end()}\n")

    def _watch(self, line: _Line, over: threading.Event) -> None:
        told = None
        while True:
            phase = phase_of(line.directory)
            if self.live:
                self._write(f"{_CLEAR}{line.now(phase)}")
            elif phase != told:
                self._write(f"{line.now(phase)}\n")
            told = phase
            if over.wait(_SECONDS):
                return


class _Line:
    """Line of one run."""

    def __init__(self, name: str, directory: Path, began: float, deadline_seconds: float) -> None:
        self.directory = directory
        self._name = name
        self._began = began
        self._deadline = deadline_seconds

    def now(self, phase: Phase) -> str:
        return f"  {self._name:<16} {phase:<20} {self._elapsed()} of {_clock(self._deadline)}"

    def end(self) -> str:
        return f"  {self._name:<16} {'ended':<20} {self._elapsed()}"

    def _elapsed(self) -> str:
        return _clock(time.monotonic() - self._began)


def _name(directory: Path) -> str:
    """Name of a run's directory, with its parent's if it is a number alone."""
    own = directory.name
    return printable(f"{directory.parent.name.removesuffix('s')} {own}" if own.isdecimal() else own)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def open_progress(verbosity: int) -> Progress:
    """Progress on the session's standard output, before any test captures that; rewrites lines unless ``-q``."""
    try:
        descriptor = os.dup(1)
    except OSError:  # it is closed
        return Progress(lambda _text: None, live=False)
    live = os.isatty(descriptor) and verbosity >= 0 and os.environ.get("TERM", "dumb") != "dumb"

    def write(text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(descriptor, text.encode("utf-8", "replace"))

    return Progress(write, live=live)
