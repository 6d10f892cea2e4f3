# SPDX-License-Identifier: Apache-2.0
"""Finds the file system and disk of a path in the kernel's files.

Sources: ``proc_pid_mountinfo(5)``; Linux ``Documentation/ABI/testing/sysfs-devices-removable`` and
``Documentation/ABI/testing/sysfs-block``.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_laguna.campaign import LaneSettings, ModelFolders
from pytest_laguna.evidence.machine.placement import BlockDevice, Place, Purpose
from pytest_laguna.machine.errors import CardError

_REMOVABLE = frozenset({"1", "removable"})
"""``1`` is a disk's value, ``removable`` a PCI or USB device's."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Mount:
    """One line of mountinfo, as far as it is used."""

    point: str
    device: str
    file_system: str
    source: str


def used_places(settings: LaneSettings, sealed_root: Path, project: Path) -> dict[Purpose, Path]:
    """Paths by purpose on which a campaign may set a storage rule; generated models lie among the temporary files."""
    places: dict[Purpose, Path] = {"evidence": sealed_root, "temporary": Path(tempfile.gettempdir())}
    model = None if settings.engine is None else settings.engine.model
    if isinstance(model, ModelFolders):
        places |= {"target": project / model.target, "draft": project / model.draft}
    return places


def find_place(
    purpose: Purpose, path: Path, *, sys: Path = Path("/sys"), mounts: Path = Path("/proc/self/mountinfo")
) -> Place:
    """Return the file system and disk of a path, which need not exist yet.

    Raises:
        CardError: the list of mounts cannot be read, or has no mount for the path.
    """
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a link must stay one
    real = next(place for place in (absolute, *absolute.parents) if place.exists()).resolve()
    try:
        listed = [_mount(line) for line in mounts.read_text(errors="surrogateescape").splitlines()]
    except (OSError, ValueError) as error:
        raise CardError(f"{mounts}: seen {error}; expected the kernel's list of mounts", "mount /proc") from error
    holding = [mount for mount in listed if real.is_relative_to(mount.point)]
    if not holding:
        raise CardError(f"{mounts}: seen no mount that holds {real}; expected one", "compare with findmnt")
    deepest = max(len(Path(mount.point).parts) for mount in holding)
    mount = [mount for mount in holding if len(Path(mount.point).parts) == deepest][-1]  # it covers those before it
    return Place(
        purpose=purpose,
        path=str(absolute),
        real=str(real),
        file_system=mount.file_system,
        source=mount.source,
        device=mount.device,
        hardware=sorted(_hardware(sys, sys / "dev" / "block" / mount.device), key=lambda device: device.path),
    )


def _mount(line: str) -> _Mount:
    before, _, after = line.partition(" - ")
    _, _, device, _, point, *_ = before.split(" ")
    file_system, source, *_ = after.split(" ")
    return _Mount(_unescaped(point), device, file_system, _unescaped(source))


def _unescaped(text: str) -> str:
    """Undo the octal escapes of mountinfo: blanks, tabs, line feeds and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _hardware(sys: Path, entry: Path) -> Iterator[BlockDevice]:
    """Yield the disks under a block device: a volume or a mirror lists its parts."""
    if not entry.exists():
        return
    device = entry.resolve()
    parts = sorted((device / "slaves").iterdir()) if (device / "slaves").is_dir() else []
    for part in parts:
        yield from _hardware(sys, part)
    if not parts:
        yield BlockDevice(path=f"/{device.relative_to(sys.resolve())}", removable=_removable(sys.resolve(), device))


def _removable(sys: Path, device: Path) -> bool:
    above = [place for place in (device, *device.parents) if place.is_relative_to(sys)]
    return any(_text(place / "removable") in _REMOVABLE for place in above)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
