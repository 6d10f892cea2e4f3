# SPDX-License-Identifier: Apache-2.0
"""The binaries mapped by the ranks, hashed by the controller and tied to the files on disk."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_laguna.evidence.arms.arm_record import MappedFile
from pytest_laguna.evidence.arms.engine_identity import Binary
from pytest_laguna.identity.source import IdentityError
from pytest_laguna.identity.stamps import digest_all, printable, stamp

MAPS = Path("/proc/self/maps")


def hash_mapped(mapped: Iterable[MappedFile], known: Sequence[Binary]) -> list[Binary]:
    """Add the mapped files on disk to ``known`` by path, and hash the new and changed ones, which get further entries.

    Mapped files that are empty or gone from the disk are left out; the analysis judges their absence.

    Raises:
        IdentityError: a file cannot be read, or changes meanwhile.
    """
    seen = {(binary.path, binary.stamp) for binary in known}
    present = [path for path in {Path(file.path) for file in mapped} if _is_on_disk(path)]
    unknown = [path for path in present if (str(path), stamp(path.lstat())) not in seen]
    new = [
        Binary(path=str(path), device=device, inode=inode, stamp=stamped, sha256=sha256)
        for path, (stamped, sha256) in digest_all(unknown).items()
        for device, inode in [_words_of_the_kernel(path)]
    ]
    return sorted([*known, *new], key=lambda binary: (binary.path, binary.stamp.changed))


def _is_on_disk(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size > 0


def _words_of_the_kernel(path: Path) -> tuple[int, int]:
    """Device and inode of a mapping of this file, as the kernel reports them.

    On some file systems (btrfs, overlayfs) ``stat`` reports others, so a mapping is compared with a mapping.
    """
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 1, mmap.MAP_PRIVATE, mmap.PROT_READ):
        for line in os.fsdecode(MAPS.read_bytes()).split("\n"):
            columns = line.split(maxsplit=5)
            # A line end in a name stands as its octal escape.
            if [name.replace("\\012", "\n") for name in columns[5:]] == [str(path)]:
                major, minor = (int(number, 16) for number in columns[3].split(":"))
                return os.makedev(major, minor), int(columns[4])
    raise IdentityError(f"{printable(path)}: seen no entry in {MAPS}; expected the kernel to list it under this path")
