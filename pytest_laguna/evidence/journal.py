# SPDX-License-Identifier: Apache-2.0
"""The journal of an attempt: one canonical JSON line an event, each bound to the one before it.

It is what a session that is killed leaves behind, which a JUnit file, written at the end, is not.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.verdict import JSON, UnusableEvidenceError

SIZE_LIMIT = 256 * 1024 * 1024

EventKind = Literal["session-started", "test-started", "proof", "phase", "session-finished", "problem"]


class Event(pydantic.BaseModel):
    """One line of the journal.

    Attributes:
        sequence: 0, 1, 2, ... without a gap.
        previous: SHA-256 of the line before, without its newline; of ``attempt.json`` for the first.
        time: UTC, ISO 8601 with microseconds.
        kind: what happened.
        data: what belongs to it.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    sequence: int
    previous: str
    time: str
    kind: EventKind
    data: dict[str, pydantic.JsonValue]


class Journal:
    """Appends events; each is on the disk before ``append`` returns."""

    def __init__(self, path: Path, first_previous: str) -> None:
        """Create the journal file; ``first_previous`` is the digest of ``attempt.json``."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, files.PRIVATE_FILE)
        files.sync_directory(path.parent)
        self._sequence = 0
        self._head = first_previous

    @property
    def head(self) -> str:
        """SHA-256 of the last line."""
        return self._head

    def append(self, kind: EventKind, **data: JSON) -> None:
        """Write one event.

        Raises:
            OSError: it could not be written.
            UnusableEvidenceError: the data has no canonical JSON form.
        """
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        line = files.canonical_json({
            "sequence": self._sequence,
            "previous": self._head,
            "time": now,
            "kind": kind,
            "data": dict(data),
        })
        files.write_all(self._descriptor, line + b"\n")
        self._sequence += 1
        self._head = files.sha256_bytes(line)

    def close(self) -> None:
        """Close the file; nothing may be appended afterwards."""
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
        message = f"journal.jsonl line {len(lines) + 1}: cut off; expected a newline at the end of every event"
        raise UnusableEvidenceError(message)
    for index, line in enumerate(lines):
        where = f"journal.jsonl line {index + 1}"
        value = files.parse_json(line, where)
        try:
            event = Event.model_validate(value)
        except pydantic.ValidationError as error:
            message = f"{where}: not an event ({error.error_count()} fields are wrong)"
            raise UnusableEvidenceError(message) from error
        if files.canonical_json(value) != line:
            message = f"{where}: not in canonical form; expected the line as it was written"
            raise UnusableEvidenceError(message)
        if event.sequence != index or event.previous != previous:
            message = f"{where}: the chain is broken; expected sequence {index} after {previous[:12]}"
            raise UnusableEvidenceError(message)
        previous = files.sha256_bytes(line)
        yield event
