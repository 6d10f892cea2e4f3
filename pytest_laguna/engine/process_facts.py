# SPDX-License-Identifier: Apache-2.0
"""Facts about this process, from the kernel and from its packages."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from pytest_laguna.evidence.arms.arm_record import MappedFile, RankProcess


def this_process() -> RankProcess:
    """Pid and start time of this process."""
    # The name, in parentheses, may contain anything; the start time is the 20th word after it. Source: proc(5).
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return RankProcess(pid=os.getpid(), start_ticks=int(fields[19]))


def versions() -> dict[str, str]:
    """Versions of Python and of the engine's packages."""
    import torch  # noqa: PLC0415 - after the environment has been checked
    import transformers  # noqa: PLC0415
    import vllm  # noqa: PLC0415

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "vllm": vllm.__version__,
    }


def mapped_files() -> list[MappedFile]:
    """Every file mapped as executable into this process, once, in the order of paths."""
    return executable_files(Path("/proc/self/maps").read_text())


def executable_files(maps: str) -> list[MappedFile]:
    """Executable files from the text of ``/proc/<pid>/maps``."""
    found: dict[tuple[str, str, str], MappedFile] = {}
    for line in filter(None, maps.split("\n")):  # splitlines would split at further characters
        _addresses, permissions, _offset, device, inode, *path = line.split(maxsplit=5)
        if "x" in permissions and path and path[0].startswith("/"):
            # The kernel escapes a line end in a name as octal.
            name = path[0].replace("\\012", "\n")
            found.setdefault((name, device, inode), _mapped(name, device, int(inode)))
    return [found[key] for key in sorted(found)]


def _mapped(path: str, device: str, inode: int) -> MappedFile:
    """Device and inode as in the map: on a layered file system ``stat`` gives others."""
    major, minor = (int(number, 16) for number in device.split(":"))
    try:
        size = Path(path).stat().st_size
    except OSError:
        size = None
    return MappedFile(path=path, device=os.makedev(major, minor), inode=inode, size=size)
