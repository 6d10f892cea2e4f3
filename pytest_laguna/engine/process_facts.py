# SPDX-License-Identifier: Apache-2.0
"""What a process can say of itself, read from the kernel."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_laguna.evidence.arm_record import MappedFile, RankProcess


def this_process() -> RankProcess:
    """The calling process."""
    # The name, the second field, may hold anything, parentheses included.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return RankProcess(pid=os.getpid(), start_ticks=int(fields[19]))


def mapped_files() -> list[MappedFile]:
    """Every file of which this process has a part mapped as executable, once, in the order of their paths."""
    return executable_files(Path("/proc/self/maps").read_text())


def executable_files(maps: str) -> list[MappedFile]:
    """The same from the text of a ``/proc/<pid>/maps``."""
    found: dict[tuple[str, str, str], MappedFile] = {}
    for line in filter(None, maps.split("\n")):  # and not at what else Python takes for a line end
        _addresses, permissions, _offset, device, inode, *path = line.split(maxsplit=5)
        if "x" in permissions and path and path[0].startswith("/"):
            # A line end in a name stands as its octal escape.
            name = path[0].replace("\\012", "\n")
            found.setdefault((name, device, inode), _mapped(name, device, int(inode)))
    return [found[key] for key in sorted(found)]


def _mapped(path: str, device: str, inode: int) -> MappedFile:
    """Device and inode as the map has them: on a layered file system ``stat`` says others."""
    major, minor = (int(number, 16) for number in device.split(":"))
    try:
        size = Path(path).stat().st_size
    except OSError:
        size = None
    return MappedFile(path=path, device=os.makedev(major, minor), inode=inode, size=size)
