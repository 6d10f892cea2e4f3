# SPDX-License-Identifier: Apache-2.0
"""The sealed root: where attempts lie, how one is opened, listed, sealed and compared with its manifest.

``<sealed-root>/<campaign>/<lane>/gate<N>/<attempt>/``. Modes prevent accidents, digests prove: everything is hashed
again on reading, and a lost mode never changes a verdict.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import subprocess
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.schemas import Entry, Manifest
from pytest_laguna.verdict import UnusableEvidenceError

ATTEMPT = "attempt.json"
JOURNAL = "journal.jsonl"
JUNIT = "junit.xml"
MANIFEST = "manifest.json"
EVIDENCE = "evidence"
ANALYSIS = "analysis.json"
RECEIPT = "receipt.json"
IDENTITY = "evidence/identity.json"
CAMPAIGN = "evidence/campaign.toml"

_ATTEMPT_NAME = re.compile(r"[0-9]{4}")


class RootError(Exception):
    """The sealed root cannot be used: one line that says why and what to do."""


def check_root(path: Path) -> None:
    """Refuse a place that evidence must not go to.

    Args:
        path: an absolute path; it may not exist yet.

    Raises:
        RootError: behind a symbolic link, not a directory, another user's, readable by others, or inside a git checkout
            that does not ignore it (it would make the frozen tree dirty).
    """
    if Path(os.path.realpath(path)) != path:
        message = f"sealed root {path}: behind a symbolic link or not normal; expected {os.path.realpath(path)}"
        raise RootError(message)
    if path.exists():
        _check_directory(path)
    _check_ignored(path)


def _check_directory(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        message = f"sealed root {path}: not a directory; name another with --sealed-root"
        raise RootError(message)
    if status.st_uid != os.geteuid():
        message = f"sealed root {path}: owned by user {status.st_uid}; expected {os.geteuid()}, who runs the gate"
        raise RootError(message)
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        message = f"sealed root {path}: mode {mode:04o} lets others in; expected 0700: chmod 700 {path}"
        raise RootError(message)


def _check_ignored(path: Path) -> None:
    existing = path
    while not existing.is_dir():
        existing = existing.parent
    ignored = _git(existing, "check-ignore", "--quiet", "--no-index", "--", f"{path}/x")
    inside = _git(existing, "rev-parse", "--is-inside-work-tree")
    if inside == 0 and ignored != 0:
        message = f"sealed root {path}: inside a git checkout that does not ignore it; add it to .gitignore or move it"
        raise RootError(message)


def _git(directory: Path, *arguments: str) -> int:
    command = ["git", "-c", "safe.directory=*", "-C", str(directory), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(command, check=False, capture_output=True, env=environment, timeout=30).returncode
    except FileNotFoundError:
        return 127  # no git, no checkout whose tree could become dirty


def make_directory(path: Path) -> None:
    """Create a private directory that may exist, and its parents, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=files.PRIVATE_DIRECTORY, exist_ok=True)
    files.sync_directory(path.parent)


def lock(directory: Path) -> int:
    """Take the exclusive hold on a campaign's lane for the life of this process; returns the descriptor that holds it.

    The kernel drops it when the process dies, however it dies.

    Raises:
        RootError: another gate session holds it.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        message = f"{directory}: another gate session is at work there; wait for it to end, then run again"
        raise RootError(message) from error
    return descriptor


def attempt_numbers(gate_directory: Path) -> list[int]:
    """The numbers of a gate's attempts, ascending; empty when the gate has none.

    Raises:
        UnusableEvidenceError: something else lies there.
    """
    if not gate_directory.exists():
        return []
    numbers = []
    for entry in sorted(os.scandir(gate_directory), key=lambda entry: entry.name):
        if not _ATTEMPT_NAME.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
            message = f"{gate_directory.name}/{entry.name}: not an attempt; expected directories 0001, 0002, ..."
            raise UnusableEvidenceError(message)
        numbers.append(int(entry.name))
    return numbers


def attempt_directory(gate_directory: Path, number: int) -> Path:
    """The directory of an attempt."""
    return gate_directory / f"{number:04d}"


def open_attempt(gate_directory: Path, number: int) -> Path:
    """Create the directory of a new attempt.

    Raises:
        RootError: it exists already.
    """
    make_directory(gate_directory)
    directory = attempt_directory(gate_directory, number)
    try:
        directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    except FileExistsError as error:
        message = f"{directory}: exists already; attempts are never reused: run again"
        raise RootError(message) from error
    files.sync_directory(gate_directory)
    (directory / EVIDENCE).mkdir(mode=files.PRIVATE_DIRECTORY)
    return directory


def take_manifest(directory: Path) -> Manifest:
    """List and hash everything in an attempt but the manifest and the receipt.

    Raises:
        UnusableEvidenceError: a symbolic link, a device or anything else that is neither file nor directory, a name
            that is not UTF-8, or a file that cannot be read; it is named.
    """
    entries = []
    for path in sorted(directory.rglob("*")):
        name = _relative_name(path, directory)
        if name in {MANIFEST, RECEIPT}:
            continue
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            entries.append(Entry(path=name, kind="directory"))
        elif stat.S_ISREG(mode):
            entries.append(_file_entry(path, name))
        else:
            message = f"{name}: neither a regular file nor a directory; expected evidence as it was written"
            raise UnusableEvidenceError(message)
    return Manifest(entries=entries)


def _relative_name(path: Path, directory: Path) -> str:
    name = path.relative_to(directory).as_posix()
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"{name.encode('utf-8', 'backslashreplace').decode()}: its name is not UTF-8"
        raise UnusableEvidenceError(message) from error
    return name


def _file_entry(path: Path, name: str) -> Entry:
    try:
        return Entry(path=name, kind="file", size=path.stat().st_size, sha256=files.sha256_file(path))
    except OSError as error:
        message = f"{name}: cannot be read ({error.strerror})"
        raise UnusableEvidenceError(message) from error


def difference(stated: Manifest, found: Manifest) -> str | None:
    """The first difference between a manifest and what is there, in words; None when there is none."""
    before = {entry.path: entry for entry in stated.entries}
    after = {entry.path: entry for entry in found.entries}
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            return f"{path}: missing; the manifest lists it"
        if path not in before:
            return f"{path}: extra; the manifest does not list it"
        if before[path] != after[path]:
            return f"{path}: changed; its bytes are not those that were sealed"
    if stated != found:
        return f"{MANIFEST}: lists an entry twice or out of order"
    return None


def seal(directory: Path) -> None:
    """Take the write bits off an attempt: files 0400, directories 0500, the innermost first."""
    for path in sorted(directory.rglob("*"), reverse=True):
        if not path.is_symlink():
            path.chmod(0o500 if path.is_dir() else 0o400)
    directory.chmod(0o500)
