# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows while a gate runs: one line for each arm, packet or leg, with phase, elapsed and deadline.

The line is rewritten in place on a terminal; elsewhere, and with ``-q``, a plain line tells each change. A phase is
read from what lies in the run's own directory, so that nothing of a measurement has to speak to a terminal. What cannot
be written is left out: a terminal decides nothing.
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
"""Between two looks at a run's directory."""

_CLEAR = "\r\x1b[K"

_LAST = {LEG, RECORD, FAILURE, END, leased_cards.PROCESS}
_LOGS = {"stdout.log", "stderr.log"}

Phase: TypeAlias = str


def phase_of(directory: Path) -> Phase:
    """How far a run is, from the names of what it has written so far.

    Args:
        directory: of an arm, a packet or a leg; it need not exist.
    """
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
    """Writes to the terminal that the session was started at, whatever a test does with standard output.

    Attributes:
        live: whether a line is rewritten in place.
    """

    def __init__(self, write: Callable[[str], None], *, live: bool) -> None:
        """Nothing is shown yet.

        Args:
            write: takes text as it goes to the terminal.
            live: whether it understands being rewritten.
        """
        self.live = live
        self._write = write
        self._fresh = True

    def test_began(self) -> None:
        """pytest may have left its own line unfinished: the next of ours begins with a new one."""
        self._fresh = True

    @contextlib.contextmanager
    def run(self, directory: Path, deadline_seconds: float) -> Iterator[None]:
        """Show a run for as long as the block lasts.

        Args:
            directory: that it writes into; its name is what it is called.
            deadline_seconds: after which it is ended.
        """
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
    """What is said of one run."""

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
    """A run's directory; a number alone is nobody's name."""
    own = directory.name
    return printable(f"{directory.parent.name.removesuffix('s')} {own}" if own.isdecimal() else own)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def open_progress(verbosity: int) -> Progress:
    """The progress of a session on the standard output that it was started with; called before any test captures it.

    Args:
        verbosity: pytest's; below zero a line is not rewritten.
    """
    try:
        descriptor = os.dup(1)
    except OSError:  # it is closed
        return Progress(lambda _text: None, live=False)
    live = os.isatty(descriptor) and verbosity >= 0 and os.environ.get("TERM", "dumb") != "dumb"

    def write(text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(descriptor, text.encode("utf-8", "replace"))

    return Progress(write, live=live)
