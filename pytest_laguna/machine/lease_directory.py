# SPDX-License-Identifier: Apache-2.0
"""The machine's one directory of leases, with one file a card, which is locked and holds the record.

Its place is the same for every user and depends on no environment: two sessions with different places would each find
a card free. Every user may lock and write its files, and delete none of another's (sticky, as /tmp).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.machine.idle import Token, Utc
from pytest_laguna.evidence.schemas import Schema, parse_model
from pytest_laguna.evidence.values import SchemaName
from pytest_laguna.machine.errors import LeaseError
from pytest_laguna.verdict import UnusableEvidenceError

MACHINE_DIRECTORY = Path("/tmp/pytest-laguna")  # noqa: S108 - checked before it is used
SHARED_DIRECTORY = 0o1777
SHARED_FILE = 0o666

BUSY_SECONDS = 0.05
"""A lock taken only to look lasts microseconds; a lock still there after this is a lease."""

RECORD_BYTES = 4096

REASON_LETTERS = 400
"""Length of a quarantine's reason in the record; the attempt has the rest."""

_END_BYTES = 4 * REASON_LETTERS + 100
"""Room for the record's end: a reason, of at most four bytes a letter, and the time."""

_RETRY_SECONDS = 0.005
_IDENTITY = re.compile(r"[0-9A-Za-z][0-9A-Za-z:._-]{0,199}")
_SUFFIX = ".lease"


class LeaseRecord(Schema):
    """The last record of a card's lease; it outlives its owner.

    Attributes:
        identity: the card's.
        state: ``held`` until the owner changes it; a free lock beside it means that the owner died.
        reason: of a quarantine; empty otherwise.
        token: in the environment of everything that ran under the lease.
        attempt: the owner's attempt directory.
        owner_pid: the controller.
        owner_start_ticks: its start, in clock ticks since the host's.
        boot_id: the host's start in which it was taken, a blank, and the owner's pid namespace.
        taken: start of the lease.
        ended: time of the release or quarantine; None while it is held.
    """

    file_schema: SchemaName[Literal["pytest-laguna-lease-v1"]] = "pytest-laguna-lease-v1"
    identity: str
    state: Literal["held", "released", "quarantined"]
    reason: str
    token: Token
    attempt: str
    owner_pid: pydantic.PositiveInt
    owner_start_ticks: pydantic.NonNegativeInt
    boot_id: str
    taken: Utc
    ended: Utc | None

    @property
    def boot(self) -> str:
        """The host's start in which it was taken; no process outlives that."""
        return self.boot_id.partition(" ")[0]

    @property
    def pid_namespace(self) -> str:
        """Namespace that shows its processes; empty if unknown."""
        return self.boot_id.partition(" ")[2]

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.state}{why} by process {self.owner_pid} since {self.taken} for {self.attempt}"


class LeaseDirectory:
    """Opens the directory once and works relative to it, so that nobody can swap it meanwhile."""

    def __init__(self, path: Path | None = None) -> None:
        """Open it, or make it; the default is the machine's.

        Raises:
            LeaseError: it is a link, not a directory, not open to every user, or locked as a whole.
        """
        self.path: Path = MACHINE_DIRECTORY if path is None else path
        try:
            self._descriptor = self._open_or_make()
        except OSError as error:
            found = f"{self.path}: seen {error.strerror}; expected a directory open to every user"
            raise LeaseError(found, "move away what is there") from error
        if not self._is_shared():
            mode = stat.S_IMODE(os.fstat(self._descriptor).st_mode)
            os.close(self._descriptor)
            found = f"{self.path}: seen mode {mode:04o}; expected {SHARED_DIRECTORY:04o}, every user's"
            raise LeaseError(found, f"chmod {SHARED_DIRECTORY:04o} {self.path}")
        if not self._keep():
            os.close(self._descriptor)
            found = f"{self.path}: seen the whole directory locked by another process; expected locks on its files"
            raise LeaseError(found, f"end the process that lslocks shows for {self.path}")

    def _open_or_make(self) -> int:
        made = False
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=files.PRIVATE_DIRECTORY)
            made = True
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if made:
            os.fchmod(descriptor, SHARED_DIRECTORY)
        return descriptor

    def _is_shared(self) -> bool:
        """True if open to every user; its maker gets ``BUSY_SECONDS`` to open it."""
        deadline = time.monotonic() + BUSY_SECONDS
        while stat.S_IMODE(os.fstat(self._descriptor).st_mode) != SHARED_DIRECTORY:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_RETRY_SECONDS)
        return True

    def _keep(self) -> bool:
        """Share-lock it against cleaners, which spare locked files (systemd, "Using /tmp/ and /var/tmp/ Safely").

        Returns:
            False if another process still keeps us from it after ``BUSY_SECONDS``.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        """Close it; its locks stay."""
        os.close(self._descriptor)

    def lock(self, identity: str) -> int | None:
        """Take a card's lock and return its descriptor, or None if it is taken.

        Raises:
            LeaseError: the identity cannot be a file's name, or the lock file cannot be opened.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            descriptor = self._try_lock(identity, fcntl.LOCK_EX)
            if descriptor is not None or time.monotonic() >= deadline:
                return descriptor
            time.sleep(_RETRY_SECONDS)

    def share(self, identity: str) -> int | None:
        """Keep a card from being taken, as others may too; None if its lock is held."""
        return self._try_lock(identity, fcntl.LOCK_SH)

    def is_held(self, identity: str) -> bool:
        """True if a card's lock is held; its own look obstructs others only for a moment."""
        descriptor = self.share(identity)
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def keeps(self, identity: str, descriptor: int) -> bool:
        """True if this lock still keeps others out: its file and this directory have their names."""
        with contextlib.suppress(OSError):
            named = os.stat(_name(identity), dir_fd=self._descriptor, follow_symlinks=False)
            there = os.path.samestat(os.fstat(self._descriptor), self.path.stat(follow_symlinks=False))
            return there and os.path.samestat(os.fstat(descriptor), named)
        return False

    def _open(self, identity: str, flags: int) -> int:
        """Open a card's file; a pipe, which could block for ever, is refused without waiting for it.

        Raises:
            FileNotFoundError: there is none.
            LeaseError: it is no regular file.
        """
        name = _name(identity)
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(name, flags, dir_fd=self._descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LeaseError(f"{self.path / name}: seen {error.strerror}; expected a lease", "move it away") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise LeaseError(f"{self.path / name}: seen no regular file; expected a lease", "move it away")
        return descriptor

    def _open_or_create(self, identity: str) -> int:
        while True:
            # A kernel with fs.protected_regular lets nobody open another's file in a sticky directory with O_CREAT.
            with contextlib.suppress(FileNotFoundError):
                return self._open(identity, os.O_RDWR)
            self._create(_name(identity))

    def _create(self, name: str) -> None:
        """Make a card's file unless it exists; it gets its name once every user may write it."""
        unnamed = f".{secrets.token_hex(8)}.new"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(unnamed, flags, files.PRIVATE_FILE, dir_fd=self._descriptor)
            try:
                os.fchmod(descriptor, SHARED_FILE)
                with contextlib.suppress(FileExistsError):
                    os.link(unnamed, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
            finally:
                os.close(descriptor)
                os.unlink(unnamed, dir_fd=self._descriptor)
        except OSError as error:
            found = f"{self.path / name}: seen {error.strerror}; expected a new lease"
            raise LeaseError(found, "see its disk") from error

    def _try_lock(self, identity: str, operation: int) -> int | None:
        descriptor = self._open_or_create(identity)
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            # Somebody may have deleted the file since it was opened: a lock on a nameless file keeps nobody out.
            if os.path.samestat(os.fstat(descriptor), os.stat(_name(identity), dir_fd=self._descriptor)):
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None

    def read(self, identity: str, *, patient: bool = True) -> LeaseRecord | None:
        """Return a card's record, or None if it was never leased here; if patient, wait out a writer.

        Raises:
            LeaseError: the record is damaged.
        """
        deadline = time.monotonic() + (BUSY_SECONDS if patient else 0)
        while True:
            try:
                return self._read(identity)
            except UnusableEvidenceError as error:
                if time.monotonic() >= deadline:
                    mend = f"see that no process is left on card {identity}, then delete that file as its owner or root"
                    raise LeaseError(f"{self.path / _name(identity)}: {error}", mend) from error
            time.sleep(_RETRY_SECONDS)

    def _read(self, identity: str) -> LeaseRecord | None:
        name = _name(identity)
        try:
            descriptor = self._open(identity, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as stream:  # noqa: PTH123 - from a descriptor opened with O_NOFOLLOW
            content = stream.read(RECORD_BYTES + 1)
        if not content:
            return None
        record = parse_model(files.parse_json(content, name), LeaseRecord, name)
        if record.identity != identity:
            raise UnusableEvidenceError(f"seen a record of card {record.identity}; expected one of {identity}")
        return record

    def identities(self) -> list[str]:
        """Every card ever locked here, sorted."""
        names = (entry.name.removesuffix(_SUFFIX) for entry in self._leases())
        return sorted(name for name in names if _IDENTITY.fullmatch(name))

    def strays(self) -> list[Path]:
        """Files named like leases, sorted, whose names fit no card: copies, for example; they block nobody."""
        return sorted(entry for entry in self._leases() if not _IDENTITY.fullmatch(entry.name.removesuffix(_SUFFIX)))

    def _leases(self) -> Iterator[Path]:
        return (entry for entry in self.path.iterdir() if entry.name.endswith(_SUFFIX))


def write(descriptor: int, record: LeaseRecord) -> None:
    """Replace the record in a lock file held by this process, whole or not at all.

    A held lease's record leaves room for its end. It is one write of one page over the one before, which no signal
    splits. It is not flushed to the disk, which would take milliseconds: the processes it guards against end with a
    power cut too.

    Raises:
        LeaseError: it does not fit, or could not be written.
    """
    where = f"the lease record of {record.identity}"
    content = files.canonical_json(record.canonical())
    limit = RECORD_BYTES - (_END_BYTES if record.state == "held" else 0)
    if len(content) > limit:
        raise LeaseError(f"{where}: seen {len(content)} bytes; expected at most {limit}", "shorten --sealed-root")
    try:
        written = os.pwrite(descriptor, content.ljust(RECORD_BYTES), 0)
    except OSError as error:
        found = f"{where}: seen {error.strerror}; expected {RECORD_BYTES} bytes written"
        raise LeaseError(found, "make room on its disk") from error
    if written != RECORD_BYTES:
        raise LeaseError(f"{where}: seen {written} bytes written; expected {RECORD_BYTES}", "make room on its disk")


def _name(identity: str) -> str:
    if not _IDENTITY.fullmatch(identity):
        found = f"card identity: seen {identity!r}; expected letters, digits and : . _ - only"
        raise LeaseError(found, "ask for it by its number")
    return f"{identity}{_SUFFIX}"
