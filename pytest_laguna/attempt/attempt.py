# SPDX-License-Identifier: Apache-2.0
"""One attempt at a gate: from its directory and ``attempt.json`` through the journal to the sealed receipt."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import secrets
from pathlib import Path

from pytest_laguna.attempt.precondition import Gate
from pytest_laguna.campaign import SIZE_LIMIT
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.journal import EventKind, Journal, journal_head
from pytest_laguna.evidence.junit import read_junit
from pytest_laguna.evidence.schemas import Analysis, AttemptStart, Earlier, Identity, Previous
from pytest_laguna.verdict import JSON, UnusableEvidenceError, Verdict
from pytest_laguna.verify import verification

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclasses.dataclass(frozen=True, slots=True)
class Precondition:
    """Facts settled before the attempt, for ``attempt.json``.

    Attributes:
        identity: digests that tie the gates together.
        record: everything else about sources, packages, environment and host; becomes ``evidence/identity.json``.
        previous: passed attempt of the gate before.
        earlier: earlier attempts at this gate.
    """

    identity: Identity
    record: dict[str, JSON]
    previous: Previous | None
    earlier: list[Earlier]


class Attempt:
    """An open attempt.

    The first failing write is kept as ``broken``. Nothing more is written then, and there is no receipt.
    """

    def __init__(self, gate: Gate, precondition: Precondition, *, plugins: list[str], arguments: list[str]) -> None:
        """Create the directory, the identity record, ``attempt.json`` and the journal.

        Raises:
            RootError: the attempt's directory exists already.
            OSError: something could not be written.
        """
        number = len(precondition.earlier) + 1
        self.directory: Path = root.open_attempt(gate.lane_directory / f"gate{gate.options.gate}", number)
        self.broken: str = ""
        record = files.canonical_json(precondition.record)
        files.write_new(self.directory / root.IDENTITY, record)
        files.write_new(self.directory / root.CAMPAIGN, files.read_bytes(gate.options.campaign, limit=SIZE_LIMIT))
        files.write_new(self.directory / root.CAMPAIGN_READ, files.canonical_json(gate.campaign.canonical()))
        self._start = AttemptStart(
            campaign_name=gate.campaign.name,
            lane=gate.lane,
            gate=gate.options.gate,
            attempt=number,
            sealed_root=_as_seen_from_here(gate.options.sealed_root),
            nonce=secrets.token_hex(16),
            clauses=list(gate.clauses.items()),
            plugins=plugins,
            arguments=arguments,
            cards=list(gate.options.cards),
            identity=precondition.identity,
            record=files.sha256_bytes(record),
            previous=precondition.previous,
            earlier=precondition.earlier,
        )
        content = files.canonical_json(self._start.canonical())
        files.write_new(self.directory / root.ATTEMPT, content)
        self._journal = Journal(self.directory / root.JOURNAL, files.sha256_bytes(content))
        self.append("session-started", nonce=self._start.nonce)

    @property
    def identity(self) -> Identity:
        """Digests that bind the attempt."""
        return self._start.identity

    @property
    def previous(self) -> Previous | None:
        """Passed attempt of the gate before; None for gate 1."""
        return self._start.previous

    def append(self, kind: EventKind, **data: JSON) -> None:
        """Write an event to the journal; a failure is kept in ``broken`` instead of raised."""
        if self.broken:
            return
        try:
            self._journal.append(kind, **data)
        except (OSError, UnusableEvidenceError) as error:
            self.break_off(error)

    def record(self, path: Path, content: bytes, *, displaced: Verdict = Verdict.VOID) -> None:
        """Write a record of the harness and bind it in the journal, so that no test can replace it.

        Args:
            path: below the attempt's evidence. Anything there already is moved aside and journalled as a problem.
            content: of the file.
            displaced: verdict of that problem.

        Raises:
            OSError: it could not be written.
        """
        name = self.evidence_name(path)
        if os.path.lexists(path):
            aside = path.with_name(f"found-{secrets.token_hex(4)}-{path.name}")
            path.rename(aside)
            reason = f"{name}: something lay there before it was recorded; moved aside, see {aside.name}"
            self.append("problem", reason=reason, verdict=displaced.value)
        files.write_new(path, content)
        self.append("recorded", path=name, sha256=files.sha256_bytes(content))

    def evidence_name(self, path: Path) -> str:
        """Relative path below the attempt's evidence."""
        evidence = self.directory / root.EVIDENCE
        return str((path.parent.resolve() / path.name).relative_to(evidence.resolve()))

    def break_off(self, error: Exception) -> None:
        """Keep the reason for evidence that can no longer be written or used."""
        reason = error.strerror if isinstance(error, OSError) else str(error)
        cure = "; free the disk and run again" if getattr(error, "errno", None) in _NO_ROOM else ""
        self.broken = f"evidence cannot be written to {self.directory}: {reason}{cure}"

    def clause_directory(self, clause: str) -> Path:
        """A clause's own directory for evidence files."""
        directory = self.directory / root.EVIDENCE / clause
        directory.mkdir(mode=files.PRIVATE_DIRECTORY, exist_ok=True)
        return directory

    def finish(self, exit_status: int) -> Analysis | None:
        """End the journal, derive the verdict, write report and receipt, seal; None if ``broken`` holds the reason."""
        self._restore_journal()
        self.append("session-finished", exit_status=exit_status)
        self._journal.close()
        if self.broken:
            return None
        try:
            return self._seal()
        except (OSError, UnusableEvidenceError) as error:
            self.break_off(error)
            return None

    def _restore_journal(self) -> None:
        """Put back a journal replaced or changed by a test."""
        if self.broken:
            return
        try:
            if self._journal.is_as_written():
                return
            found = f"{root.EVIDENCE}/found-{secrets.token_hex(4)}-{root.JOURNAL}"
            self._journal.write_again(self.directory / found)
        except OSError as error:
            self.break_off(error)
            return
        reason = f"{root.JOURNAL}: replaced or changed by a test; put back as the session wrote it, see {found}"
        self.append("problem", reason=reason, verdict=Verdict.VOID.value)

    def _seal(self) -> Analysis:
        directory = self.directory
        analysis = verification.derive_analysis(directory, self._start)
        files.write_new(directory / root.ANALYSIS, files.canonical_json(analysis.canonical()))
        junit = verification.derive_junit(directory, self._start, analysis)
        files.write_new(directory / root.JUNIT, junit)
        read_junit(files.read_bytes(directory / root.JUNIT, limit=len(junit)))
        manifest = root.take_manifest(directory)
        files.write_new(directory / root.MANIFEST, files.canonical_json(manifest.canonical()))
        receipt = verification.derive_receipt(directory, self._start, analysis, manifest)
        if journal_head(directory / root.JOURNAL) != self._journal.head:
            message = f"{root.JOURNAL}: replaced while the attempt was sealed"
            raise UnusableEvidenceError(message)
        files.write_new(directory / root.RECEIPT, receipt)
        with contextlib.suppress(OSError):  # modes prevent accidents only; the receipt is what binds
            root.seal(directory)
        return analysis


def _as_seen_from_here(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
