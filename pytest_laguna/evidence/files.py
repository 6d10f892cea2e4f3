# SPDX-License-Identifier: Apache-2.0
"""Bytes on disk: exclusive durable writes, digests and canonical JSON."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import secrets
import stat
from pathlib import Path

import rfc8785

from pytest_laguna.verdict import JSON, UnusableEvidenceError

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700

NESTING_LIMIT = 100
"""Maximum depth of nested lists and objects, within reach of every JSON reader of the suite."""
SIZE_LIMIT = 64 * 1024 * 1024
"""Largest file to read without a smaller limit, in bytes."""
_TAIL_BYTES = 4096


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, and flush it to the disk.

    The file gets its name only when it is complete: a process killed while it writes leaves no file and no part of one.

    Raises:
        FileExistsError: ``path`` exists; evidence is never overwritten.
        OSError: the bytes could not be written, for example because the disk is full.
    """
    unnamed = path.with_name(f".{secrets.token_hex(8)}.new")
    descriptor = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    named = False
    try:
        try:
            write_all(descriptor, content)
            os.link(unnamed, path)
            named = True
        finally:
            os.close(descriptor)
            unnamed.unlink()
        sync_directory(path.parent)
    except OSError:
        if named:  # the name might not survive a crash
            path.unlink()
        raise


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte to an open file and flush it to the disk."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries: a new name then survives a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a regular file as 64 hexadecimal digits; never follow a symbolic link.

    Raises:
        OSError: missing, unreadable, or not a regular file.
    """
    with _open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading; refuse a pipe or a device at once, without an endless wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return open(descriptor, "rb")  # noqa: PTH123 - from a descriptor opened with O_NOFOLLOW


def sha256_bytes(content: bytes) -> str:
    """SHA-256 of bytes as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def canonical_json(value: JSON, *, nesting: int = NESTING_LIMIT) -> bytes:
    """Return RFC 8785 JSON: one byte sequence for one value.

    ``nesting`` is the maximum depth of lists and objects: less than the limit for a part of a larger value.

    Raises:
        UnusableEvidenceError: the value has no such form (NaN, an infinity, an integer beyond 2**53, a lone surrogate),
            or is nested deeper.
    """
    _check_nesting(value, nesting)
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        message = f"cannot be written as RFC 8785 JSON: {error}; expected finite numbers and valid text"
        raise UnusableEvidenceError(message) from error


def _check_nesting(value: JSON, limit: int) -> None:
    """Refuse deep values level by level: the depth limit of a recursion would depend on its caller."""
    level = [value]
    for _ in range(limit + 1):
        containers = [outer for outer in level if isinstance(outer, dict | list | tuple)]
        if not containers:
            return
        level = [
            inner for outer in containers for inner in (outer.values() if isinstance(outer, dict) else iter(outer))
        ]
    message = f"cannot be written as JSON: nested deeper than {limit} levels; expected at most {limit}"
    raise UnusableEvidenceError(message)


def digest_of(value: JSON) -> str:
    """SHA-256 of a value's canonical JSON."""
    return sha256_bytes(canonical_json(value))


def read_canonical_json(path: Path, *, limit: int = SIZE_LIMIT) -> JSON:
    """Read a JSON file of ours; refuse any other spelling of the same value (a doubled key, a space).

    Raises:
        UnusableEvidenceError: missing, unreadable, larger than ``limit`` bytes, not JSON, or not in canonical form.
    """
    content = read_bytes(path, limit=limit)
    value = parse_json(content, path.name)
    if canonical_json(value) != content:
        raise UnusableEvidenceError(f"{path.name}: not in canonical form; expected RFC 8785 JSON as it was written")
    return value


def parse_json(content: bytes, name: str) -> JSON:
    """Parse JSON text; errors call it ``name``.

    Raises:
        UnusableEvidenceError: it is not UTF-8 or not JSON.
    """
    try:
        value: JSON = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnusableEvidenceError(f"{name}: not JSON ({error}); expected a file as it was written") from error
    return value


def read_bytes(path: Path, *, limit: int) -> bytes:
    """Read a regular file of at most ``limit`` bytes; never follow a symbolic link.

    Raises:
        UnusableEvidenceError: missing, unreadable, not a regular file, or larger than ``limit``.
    """
    try:
        with _open_regular(path) as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        message = f"{path.name}: cannot be read ({error.strerror}); expected a regular file"
        raise UnusableEvidenceError(message) from error
    if len(content) > limit:
        raise UnusableEvidenceError(f"{path.name}: larger than {limit} bytes; expected a file as it was written")
    return content


def read_tail(path: Path) -> list[str]:
    """Return the last lines of a log, at most 4 KiB; none without a log."""
    try:
        with _open_regular(path) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
            return stream.read(_TAIL_BYTES).decode(errors="replace").strip().splitlines()
    except OSError:
        return []


def printable(text: str) -> str:
    """Return text for a terminal: control and format characters become escapes."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )
