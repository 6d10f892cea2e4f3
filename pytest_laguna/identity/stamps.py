# SPDX-License-Identifier: Apache-2.0
"""The file system's stamp of a file, and the digest of an unchanging file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.engine_identity import FileStamp
from pytest_laguna.identity.source import IdentityError

_NANOSECONDS = 10**9


def stamp(status: os.stat_result) -> FileStamp:
    """Return a file's stamp from its ``stat``."""
    seconds, nanoseconds = divmod(status.st_ctime_ns, _NANOSECONDS)
    return FileStamp(
        device=f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}",
        inode=str(status.st_ino),
        size=status.st_size,
        changed=f"{seconds}.{nanoseconds:09d}",
    )


def digest_stamped(path: Path) -> tuple[FileStamp, str]:
    """Return stamp and SHA-256 of a regular file.

    Raises:
        IdentityError: it cannot be read, is no regular file, or changed while it was read.
    """
    try:
        before = stamp(path.lstat())
        digest = files.sha256_file(path)
        after = stamp(path.lstat())
    except OSError as error:
        raise IdentityError(f"{printable(path)}: seen {error.strerror}; expected a readable regular file") from error
    if before != after:
        message = f"{printable(path)}: seen {after} after hashing; expected {before}; let nothing write to it"
        raise IdentityError(message)
    return after, digest


def digest_all(paths: Iterable[Path]) -> dict[Path, tuple[FileStamp, str]]:
    """``digest_stamped`` of several files in parallel: hashing releases the interpreter's lock."""
    distinct = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip(distinct, pool.map(digest_stamped, distinct), strict=True))


def printable(path: Path | str) -> str:
    """A path for a message of one line."""
    return files.printable(os.fspath(path))
