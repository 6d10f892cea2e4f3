# SPDX-License-Identifier: Apache-2.0
"""The sealed root: the place of all attempts, and how one is opened, listed, sealed and compared with its manifest.

``<sealed-root>/<campaign>/<lane>/gate<N>/<attempt>/``. Modes prevent accidents, digests prove: every read hashes
everything again, and a lost mode never changes a verdict.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.git import git
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
CAMPAIGN_READ = "evidence/campaign.json"
"""The campaign with every default, as canonical JSON: its SHA-256 is the campaign digest."""

GATES = ("gate1", "gate2", "gate3")

_ATTEMPT_NAME = re.compile(r"(?!0000)[0-9]{4}")

# One name for each kind of file in an attempt: a pattern may ignore only some of them.
_PROBES = tuple(
    f"campaign/cpu/gate1/0001/{name}"
    for name in (
        ATTEMPT, JOURNAL, JUNIT, MANIFEST, ANALYSIS, RECEIPT, IDENTITY, CAMPAIGN, CAMPAIGN_READ,
        "evidence/clause/arm.log",
    )
)  # fmt: skip


class RootError(Exception):
    """The sealed root cannot be used; one line with the reason and the remedy."""


def check_root(path: Path) -> None:
    """Refuse an unsuitable place for evidence, an absolute path with or without a directory.

    Raises:
        RootError: behind a symbolic link, not a directory, another user's, open to others, or inside a git checkout
            that does not ignore it (it would make the frozen tree dirty).
    """
    where = f"sealed root {path}"
    if Path(os.path.realpath(path)) != path:
        raise RootError(f"{where}: behind a symbolic link or not normal; expected {os.path.realpath(path)}")
    try:
        _check_directory(path, where)
        _check_ignored(path)
    except OSError as error:
        raise RootError(f"{where}: cannot be read ({error.strerror}); choose a directory of its own") from error


def check_tree(sealed_root: Path, lane_directory: Path) -> None:
    """Refuse unsuitable directories of the campaign, of its lane (``lane_directory``) and of the gates, if they exist.

    Raises:
        RootError: one of them is a symbolic link, not a directory, another user's or open to others.
    """
    for directory in (lane_directory.parent, lane_directory, *(lane_directory / gate for gate in GATES)):
        where = f"sealed root {sealed_root}: {directory.relative_to(sealed_root)}"
        try:
            _check_directory(directory, where)
        except OSError as error:
            message = f"{where}: cannot be read ({error.strerror}); name another root with --sealed-root"
            raise RootError(message) from error


def _check_directory(path: Path, where: str) -> None:
    """Require a directory of the user, closed to others; an absent one is well."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        raise RootError(f"{where}: not a directory or a link to one; name another root with --sealed-root")
    if status.st_uid != os.geteuid():
        raise RootError(f"{where}: owned by user {status.st_uid}; expected {os.geteuid()}, who runs the gate")
    if mode & 0o077:
        # Not "chmod": it may be a home or a project, and a gate must not close a shared directory.
        message = f"{where}: mode {mode:04o} lets others in; expected 0700; choose a directory of its own for evidence"
        raise RootError(message)


def _check_ignored(path: Path) -> None:
    existing = path
    while not existing.is_dir():
        existing = existing.parent
    inside = git(existing, "rev-parse", "--is-inside-work-tree")
    if inside is None or "not a git repository" in inside.stderr:
        return  # no git, no checkout whose tree could become dirty
    if inside.returncode != 0:
        reason = " ".join(inside.stderr.split())
        message = f"sealed root {path}: git cannot say whether it is inside a checkout ({reason}); fix git or move it"
        raise RootError(message)
    if inside.stdout.strip() != "true":
        return  # inside a bare repository or a .git directory
    probes = [f"{path}/{name}" for name in _PROBES]
    ignored = git(existing, "check-ignore", "--no-index", "--", *probes)  # prints a line for each that it ignores
    if ignored is None or ignored.stdout.count("\n") != len(probes):
        message = f"sealed root {path}: inside a git checkout that does not ignore it; add it to .gitignore or move it"
        raise RootError(message)


def make_directory(path: Path) -> None:
    """Create a private directory and its parents durably; existing ones stay."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=files.PRIVATE_DIRECTORY, exist_ok=True)
    files.sync_directory(path.parent)


def lock(directory: Path) -> int:
    """Lock a campaign's lane for the life of this process; return the descriptor of the lock.

    The kernel drops the lock with the process, however it dies.

    Raises:
        RootError: another gate session holds it.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RootError(f"{directory}: another gate session runs there; wait for its end, then run again") from error
    return descriptor


def attempt_numbers(gate_directory: Path) -> list[int]:
    """Return the numbers of a gate's attempts, ascending; none without an attempt.

    Raises:
        UnusableEvidenceError: something else lies there, or it cannot be listed.
    """
    name = gate_directory.name
    numbers = []
    try:
        if not stat.S_ISDIR(gate_directory.lstat().st_mode):
            raise UnusableEvidenceError(f"{name}: not a directory or a link to one; expected a directory with attempts")
        for entry in sorted(os.scandir(gate_directory), key=lambda entry: entry.name):
            if not _ATTEMPT_NAME.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                message = f"{name}/{entry.name}: not an attempt; expected directories 0001, 0002, ..."
                raise UnusableEvidenceError(message)
            numbers.append(int(entry.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"{name}: cannot be listed ({error.strerror}); expected a directory with attempts"
        raise UnusableEvidenceError(message) from error
    return numbers


def attempt_directory(gate_directory: Path, number: int) -> Path:
    """Directory of an attempt."""
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
        raise RootError(f"{directory}: exists already; expected a new attempt; run again") from error
    files.sync_directory(gate_directory)
    (directory / EVIDENCE).mkdir(mode=files.PRIVATE_DIRECTORY)
    return directory


def take_manifest(directory: Path) -> Manifest:
    """List and hash everything in an attempt but the manifest and the receipt.

    Raises:
        UnusableEvidenceError: as ``take_tree``.
    """
    return sealed_part(take_tree(directory))


def sealed_part(tree: Manifest) -> Manifest:
    """Return the tree without the manifest and the receipt, both written after it."""
    return Manifest(entries=[entry for entry in tree.entries if entry.path not in {MANIFEST, RECEIPT}])


def take_tree(directory: Path) -> Manifest:
    """List and hash everything in an attempt, on all cores.

    Raises:
        UnusableEvidenceError: neither file nor directory (a symbolic link, a device), a name outside UTF-8, or an
            unreadable file or directory; it is named.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # hashing leaves the interpreter's lock
        return Manifest(entries=list(pool.map(lambda found: _entry(directory, *found), _below(directory))))


def _entry(directory: Path, path: Path, mode: int) -> Entry:
    name = path.relative_to(directory).as_posix()
    if stat.S_ISDIR(mode):
        return Entry(path=name, kind="directory")
    if stat.S_ISREG(mode):
        return _file_entry(path, name)
    raise UnusableEvidenceError(f"{name}: neither a regular file nor a directory; expected evidence as it was written")


def file_names(directory: Path) -> list[str]:
    """Return the sorted paths of an attempt's files, relative to its directory.

    Raises:
        UnusableEvidenceError: a directory cannot be read, or a name is not UTF-8; it is named.
    """
    return [path.relative_to(directory).as_posix() for path, mode in _below(directory) if stat.S_ISREG(mode)]


def _below(directory: Path) -> list[tuple[Path, int]]:
    """Return everything below a directory with its ``st_mode``, a directory before its content.

    Unlike ``Path.rglob``, which skips unreadable directories, this raises.

    Raises:
        UnusableEvidenceError: a directory cannot be read, or a name is not UTF-8; it is named.
    """
    found: list[tuple[Path, int]] = []
    waiting = [directory]
    while waiting:
        parent = waiting.pop()
        try:
            entries = [(Path(entry), entry.stat(follow_symlinks=False).st_mode) for entry in os.scandir(parent)]
        except OSError as error:
            name = files.printable(parent.relative_to(directory).as_posix())
            message = f"{name}: cannot be read ({error.strerror}); expected a directory as it was written"
            raise UnusableEvidenceError(message) from error
        for path, mode in entries:
            _check_name(path.relative_to(directory).as_posix())
            if stat.S_ISDIR(mode):
                waiting.append(path)
        found += entries
    return sorted(found)


def _check_name(name: str) -> None:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"{name.encode('utf-8', 'backslashreplace').decode()}: its name is not UTF-8"
        raise UnusableEvidenceError(message) from error


def _file_entry(path: Path, name: str) -> Entry:
    try:
        return Entry(path=name, kind="file", size=path.stat().st_size, sha256=files.sha256_file(path))
    except OSError as error:
        message = f"{name}: cannot be read ({error.strerror}); expected a file as it was written"
        raise UnusableEvidenceError(message) from error


def difference(stated: Manifest, found: Manifest) -> str | None:
    """Return the first difference between a manifest and the files, in words, or None."""
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
    """Remove the write bits of an attempt, the innermost first: files become 0400 and directories 0500.

    No bit is added: an unreadable file, in no manifest, does not become readable.

    Raises:
        UnusableEvidenceError: a directory cannot be read.
    """
    for path, mode in [(directory, directory.stat().st_mode), *_below(directory)][::-1]:
        if not stat.S_ISLNK(mode):
            path.chmod(mode & (0o500 if stat.S_ISDIR(mode) else 0o400))
