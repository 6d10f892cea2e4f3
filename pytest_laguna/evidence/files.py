# SPDX-License-Identifier: Apache-2.0
"""Bytes on disk: exclusive durable writes, digests and canonical JSON."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import rfc8785

from pytest_laguna.verdict import JSON, UnusableEvidenceError

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, and have it on the disk when this returns.

    Raises:
        FileExistsError: ``path`` exists; evidence is never overwritten.
        OSError: the bytes could not be written, for example because the disk is full.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte to an open file and flush it to the disk."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries, so that a new name outlives a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_bytes(content: bytes) -> str:
    """The SHA-256 of bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def canonical_json(value: JSON) -> bytes:
    """RFC 8785 JSON: one byte sequence for one value.

    Raises:
        UnusableEvidenceError: the value has no such form (NaN, an infinity, an integer beyond 2**53, a lone surrogate).
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        message = f"cannot be written as RFC 8785 JSON: {error}; expected finite numbers and valid text"
        raise UnusableEvidenceError(message) from error


def digest_of(value: JSON) -> str:
    """The SHA-256 of a value's canonical JSON."""
    return sha256_bytes(canonical_json(value))


def read_canonical_json(path: Path, *, limit: int = 64 * 1024 * 1024) -> JSON:
    """Read a JSON file that we wrote; any other spelling of the same value (a doubled key, a space) is refused.

    Args:
        path: the file.
        limit: the largest size in bytes that is read.

    Raises:
        UnusableEvidenceError: the file is missing, unreadable, too large, not JSON, or not in canonical form.
    """
    content = read_bytes(path, limit=limit)
    value = parse_json(content, path.name)
    if canonical_json(value) != content:
        message = f"{path.name}: not in canonical form; expected RFC 8785 JSON as it was written"
        raise UnusableEvidenceError(message)
    return value


def parse_json(content: bytes, name: str) -> JSON:
    """Parse JSON text; ``name`` is what an error calls it.

    Raises:
        UnusableEvidenceError: it is not UTF-8 or not JSON.
    """
    try:
        value: JSON = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        message = f"{name}: not JSON ({error}); expected a file as it was written"
        raise UnusableEvidenceError(message) from error
    return value


def read_bytes(path: Path, *, limit: int) -> bytes:
    """Read a regular file of at most ``limit`` bytes, never through a symbolic link.

    Raises:
        UnusableEvidenceError: missing, unreadable, not a regular file, or larger than ``limit``.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as stream:  # noqa: PTH123 - from a descriptor opened with O_NOFOLLOW
            content = stream.read(limit + 1)
    except OSError as error:
        message = f"{path.name}: cannot be read ({error.strerror}); expected a regular file"
        raise UnusableEvidenceError(message) from error
    if len(content) > limit:
        message = f"{path.name}: larger than {limit} bytes; expected a file as it was written"
        raise UnusableEvidenceError(message)
    return content
