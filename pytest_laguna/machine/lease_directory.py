# SPDX-License-Identifier: Apache-2.0
"""Where leases live: one directory for the machine, with one file a card, which is locked and holds the record.

The place is the same for every user and depends on no environment: two sessions that look in different places would
each find a card free. Every user may lock and write the files in it, and delete none of another's (sticky, as /tmp).
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
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.idle import Token, Utc
from pytest_laguna.evidence.schemas import Schema, parse_model
from pytest_laguna.machine.errors import LeaseError
from pytest_laguna.verdict import UnusableEvidenceError

MACHINE_DIRECTORY = Path("/tmp/pytest-laguna")  # noqa: S108 - checked before it is used
SHARED_DIRECTORY = 0o1777
SHARED_FILE = 0o666

BUSY_SECONDS = 0.05
"""Whoever only looks at a lock holds it for microseconds; a lease that is not gone after this is a lease."""

RECORD_BYTES = 4096

REASON_LETTERS = 400
"""Of the line that says why a card is quarantined; the rest is in the attempt."""

_END_BYTES = 4 * REASON_LETTERS + 100
"""What a record may grow by at its end: a reason, of at most four bytes a letter, and the time."""

_RETRY_SECONDS = 0.005
_IDENTITY = re.compile(r"[0-9A-Za-z][0-9A-Za-z:._-]{0,199}")
_SUFFIX = ".lease"


class LeaseRecord(Schema):
    """The last that is known of a card's lease; it outlives its owner.

    Attributes:
        identity: the card's.
        state: ``held`` until the owner says otherwise; a free lock beside it means that the owner died.
        reason: why it is quarantined, and empty otherwise.
        token: in the environment of everything that ran under the lease.
        attempt: the owner's attempt directory.
        owner_pid: the controller.
        owner_start_ticks: when that process started, in clock ticks since the host did.
        boot_id: of the host's start in which it was taken, and after a blank the owner's pid namespace.
        taken: when.
        ended: when it was released or quarantined; None while it is held.
    """

    file_schema: Annotated[Literal["pytest-laguna-lease-v1"], pydantic.Field(alias="schema")] = "pytest-laguna-lease-v1"
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
        """The host's start in which it was taken; nothing outlives that."""
        return self.boot_id.partition(" ")[0]

    @property
    def pid_namespace(self) -> str:
        """From where its processes can be seen; empty where that is not known."""
        return self.boot_id.partition(" ")[2]

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.state}{why} by process {self.owner_pid} since {self.taken} for {self.attempt}"


class LeaseDirectory:
    """Opens the directory once and works relative to it, so that nobody can put another in its place meanwhile."""

    def __init__(self, path: Path | None = None) -> None:
        """Open it, or make it; the default is the machine's.

        Raises:
            LeaseError: it is a link, not a directory, not open to every user, or locked as a whole.
        """
        self.path: Path = MACHINE_DIRECTORY if path is None else path
        try:
            self._descriptor = self._open_or_make()
        except OSError as error:
            found = f"{self.path}: {error.strerror}; expected a directory of every user"
            raise LeaseError(found, "move away what is there") from error
        if not self._is_shared():
            mode = stat.S_IMODE(os.fstat(self._descriptor).st_mode)
            os.close(self._descriptor)
            found = f"{self.path}: mode {mode:04o}; expected {SHARED_DIRECTORY:04o}, every user's"
            raise LeaseError(found, f"chmod {SHARED_DIRECTORY:04o} {self.path}")
        if not self._keep():
            os.close(self._descriptor)
            found = f"{self.path}: another process has locked the directory as a whole; expected locks on its files"
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
        """Whether it is open to every user; whoever is making it now has a moment for that."""
        deadline = time.monotonic() + BUSY_SECONDS
        while stat.S_IMODE(os.fstat(self._descriptor).st_mode) != SHARED_DIRECTORY:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_RETRY_SECONDS)
        return True

    def _keep(self) -> bool:
        """Have cleaners leave it alone, as they do while it is locked (systemd, "Using /tmp/ and /var/tmp/ Safely").

        Returns:
            Whether nobody keeps us from it; a cleaner that is at work has a moment to go on.
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
        """Close it; locks that were taken in it stay."""
        os.close(self._descriptor)

    def lock(self, identity: str) -> int | None:
        """Take a card's lock; returns the descriptor that holds it, or None when somebody else does.

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
        """Keep a card from being taken while others may do the same; None when somebody holds its lock."""
        return self._try_lock(identity, fcntl.LOCK_SH)

    def is_held(self, identity: str) -> bool:
        """Whether somebody holds a card's lock, without being in anybody's way for longer than this takes."""
        descriptor = self.share(identity)
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def keeps(self, identity: str, descriptor: int) -> bool:
        """Whether a lock that was taken here still keeps others out: its file and this directory have their names."""
        with contextlib.suppress(OSError):
            named = os.stat(_name(identity), dir_fd=self._descriptor, follow_symlinks=False)
            there = os.path.samestat(os.fstat(self._descriptor), self.path.stat(follow_symlinks=False))
            return there and os.path.samestat(os.fstat(descriptor), named)
        return False

    def _open(self, identity: str, flags: int) -> int:
        """Open a card's file; a pipe, which could hold us for ever, is refused without waiting for it.

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
            raise LeaseError(f"{self.path / name}: {error.strerror}; expected a lease", "move it away") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise LeaseError(f"{self.path / name}: not a regular file; expected a lease", "move it away")
        return descriptor

    def _open_or_create(self, identity: str) -> int:
        while True:
            # A kernel with fs.protected_regular lets nobody open another's file in a sticky directory with O_CREAT.
            with contextlib.suppress(FileNotFoundError):
                return self._open(identity, os.O_RDWR)
            self._create(_name(identity))

    def _create(self, name: str) -> None:
        """Make a card's file, unless somebody else just did; it gets its name when every user may write it."""
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
            raise LeaseError(f"{self.path / name}: {error.strerror}; expected a new lease", "see its disk") from error

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
        """A card's record; None when it was never leased here.

        Args:
            identity: the card's.
            patient: whether somebody may be writing it at this moment.

        Raises:
            LeaseError: it is damaged.
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
            message = f"a record of card {record.identity}; expected one of {identity}"
            raise UnusableEvidenceError(message)
        return record

    def identities(self) -> list[str]:
        """Every card that was ever locked here, in the order of their names."""
        names = (entry.name.removesuffix(_SUFFIX) for entry in self._leases())
        return sorted(name for name in names if _IDENTITY.fullmatch(name))

    def strays(self) -> list[Path]:
        """What is called a lease and can be no card's, in order: copies, for example; nobody is kept from anything."""
        return sorted(entry for entry in self._leases() if not _IDENTITY.fullmatch(entry.name.removesuffix(_SUFFIX)))

    def _leases(self) -> Iterator[Path]:
        return (entry for entry in self.path.iterdir() if entry.name.endswith(_SUFFIX))


def write(descriptor: int, record: LeaseRecord) -> None:
    """Replace the record in a lock file that this process holds, whole or not at all.

    A record of a lease that is held leaves room for how it will end. It is one write of one page over the one before,
    which a signal does not split. It is not flushed to the disk, which would take milliseconds: the processes that it
    guards against do not survive a power cut either.

    Raises:
        LeaseError: it does not fit, or could not be written.
    """
    where = f"the lease record of {record.identity}"
    content = files.canonical_json(record.canonical())
    limit = RECORD_BYTES - (_END_BYTES if record.state == "held" else 0)
    if len(content) > limit:
        raise LeaseError(f"{where}: {len(content)} bytes; expected at most {limit}", "shorten --sealed-root")
    try:
        written = os.pwrite(descriptor, content.ljust(RECORD_BYTES), 0)
    except OSError as error:
        raise LeaseError(f"{where}: not written ({error.strerror})", "make room on its disk") from error
    if written != RECORD_BYTES:
        raise LeaseError(f"{where}: {written} of {RECORD_BYTES} bytes written", "make room on its disk")


def _name(identity: str) -> str:
    if not _IDENTITY.fullmatch(identity):
        raise LeaseError(f"card {identity!r}: expected letters, digits and : . _ - only", "ask for it by its number")
    return f"{identity}{_SUFFIX}"
