# SPDX-License-Identifier: Apache-2.0
"""The journal of an attempt: one canonical JSON line an event, bound to the line before it.

It survives a killed session; a JUnit file, written at the end, does not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.machine.idle import Utc
from pytest_laguna.verdict import JSON, UnusableEvidenceError

SIZE_LIMIT = 256 * 1024 * 1024

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC

EventKind = Literal["session-started", "test-started", "proof", "recorded", "phase", "session-finished", "problem"]


class Event(pydantic.BaseModel):
    """One line of the journal.

    Attributes:
        sequence: 0, 1, 2, ... without a gap.
        previous: SHA-256 of the line before, without its newline; of ``attempt.json`` for the first.
        time: UTC, ISO 8601 with microseconds.
    """

    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    sequence: int
    previous: str
    time: Utc
    kind: EventKind
    data: dict[str, pydantic.JsonValue]


@dataclasses.dataclass(frozen=True, slots=True)
class _State:
    """State of a journal, replaced as a whole: an interrupt sees the old one or the new one.

    Attributes:
        sequence: of the next event.
        size: of the file up to the last line, in bytes.
        pending: a line with its newline, begun behind the last one.
    """

    sequence: int
    head: str
    size: int = 0
    pending: bytes = b""


class Journal:
    """Appends events, from any thread; each is on the disk before ``append`` returns.

    An exception out of a signal handler may end ``append`` anywhere. Blocking signals would not prevent it: another
    thread may take one, and Python then still runs the handler in the main thread. So the journal keeps an unfinished
    line, and the next ``append`` first completes it in the file. It also keeps every line in memory: a test may
    replace the file, even with a good chain, and nothing is lost.
    """

    def __init__(self, path: Path, first_previous: str) -> None:
        """Create the journal file; ``first_previous`` is the digest of ``attempt.json``."""
        self._path = path
        self._descriptor = os.open(path, _APPEND | os.O_CREAT | os.O_EXCL, files.PRIVATE_FILE)
        files.sync_directory(path.parent)
        self._lock = threading.Lock()
        self._state = _State(sequence=0, head=first_previous)
        self._lines: list[bytes] = []

    @property
    def head(self) -> str:
        """SHA-256 of the last line."""
        return self._state.head

    def append(self, kind: EventKind, **data: JSON) -> None:
        """Write one event.

        Raises:
            OSError: it could not be written.
            UnusableEvidenceError: the data has no canonical JSON form.
        """
        with self._lock:
            self._write_pending()
            line = files.canonical_json({
                "sequence": self._state.sequence,
                "previous": self._state.head,
                "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
                "kind": kind,
                "data": dict(data),
            })
            self._state = dataclasses.replace(self._state, pending=line + b"\n")
            self._write_pending()

    def _write_pending(self) -> None:
        state = self._state
        if not state.pending:
            return
        written = os.fstat(self._descriptor).st_size - state.size
        files.write_all(self._descriptor, state.pending[written:])
        head = files.sha256_bytes(state.pending.removesuffix(b"\n"))
        self._lines[state.sequence :] = [state.pending]
        self._state = _State(state.sequence + 1, head, state.size + len(state.pending))

    def is_as_written(self) -> bool:
        """True if the file of the journal's name is still the same file with the same content.

        Raises:
            OSError: an unfinished line could not be completed.
        """
        with self._lock:
            self._write_pending()
            written = files.sha256_bytes(b"".join(self._lines))
            try:
                in_place = os.path.samestat(os.fstat(self._descriptor), self._path.lstat())
                return in_place and files.sha256_file(self._path) == written
            except OSError:
                return False

    def write_again(self, aside: Path) -> None:
        """Restore the journal at its path; a file now in its place moves to ``aside``.

        Raises:
            OSError: one of them could not be written.
        """
        with self._lock:
            with contextlib.suppress(FileNotFoundError):
                self._path.rename(aside)
            files.write_new(self._path, b"".join(self._lines))
            os.close(self._descriptor)
            self._descriptor = os.open(self._path, _APPEND)

    def close(self) -> None:
        """Close the file, for good."""
        os.close(self._descriptor)


def read_journal(path: Path, first_previous: str) -> tuple[Event, ...]:
    """Read a journal and check every link of its chain.

    Raises:
        UnusableEvidenceError: a line is damaged, missing, doubled or out of order; the line is named.
    """
    return tuple(_events(files.read_bytes(path, limit=SIZE_LIMIT), first_previous))


def journal_head(path: Path) -> str:
    """SHA-256 of a journal's last line, without its newline."""
    return files.sha256_bytes(files.read_bytes(path, limit=SIZE_LIMIT).removesuffix(b"\n").rpartition(b"\n")[2])


def _events(content: bytes, previous: str) -> Iterator[Event]:
    lines = content.split(b"\n")
    if lines.pop() != b"":
        message = f"journal.jsonl line {len(lines) + 1}: cut off; expected a newline after every event"
        raise UnusableEvidenceError(message)
    for index, line in enumerate(lines):
        where = f"journal.jsonl line {index + 1}"
        value = files.parse_json(line, where)
        try:
            event = Event.model_validate(value)
        except pydantic.ValidationError as error:
            message = f"{where}: not an event: seen {error.error_count()} wrong fields; expected none"
            raise UnusableEvidenceError(message) from error
        if files.canonical_json(value) != line:
            raise UnusableEvidenceError(f"{where}: not in canonical form; expected RFC 8785 JSON")
        if event.sequence != index or event.previous != previous:
            message = f"{where}: the chain is broken; expected sequence {index} after {previous[:12]}"
            raise UnusableEvidenceError(message)
        previous = files.sha256_bytes(line)
        yield event
