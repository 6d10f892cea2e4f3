# SPDX-License-Identifier: Apache-2.0
"""Places of a gate's files: file system and hardware, and the campaign's rule for them.

Source: the published campaigns, whose models, evidence, caches and temporary files had to lie on an internal ext4 NVMe
disk: a disk on a cable comes and goes, and decides how fast an engine starts.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence.schemas import Schema

_BUS = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_CABLE = re.compile(r"(usb|thunderbolt|session)\d+")

Purpose = Literal["evidence", "temporary", "target", "draft"]


class BlockDevice(Schema):
    """A piece of hardware under a file system.

    Attributes:
        path: of the device below sysfs, such as ``/devices/pci0000:00/.../nvme/nvme0/nvme0n1/nvme0n1p2``.
        removable: True if the kernel calls it, or a device above it, removable.
    """

    path: Annotated[str, pydantic.Field(pattern=r"^/")]
    removable: bool


class Place(Schema):
    """A place with its file system and its hardware.

    Attributes:
        purpose: of the files; caches of arms lie with the evidence while the arms run.
        real: without links; for an absent path, its nearest existing directory.
        source: the mounted device or volume.
        device: major and minor number of the mount, in decimal.
        hardware: devices below all volumes and mirrors; empty if the kernel knows none.
    """

    purpose: Purpose
    path: Annotated[str, pydantic.Field(pattern=r"^/")]
    real: Annotated[str, pydantic.Field(pattern=r"^/")]
    file_system: str
    source: str
    device: Annotated[str, pydantic.Field(pattern=r"^[0-9]+:[0-9]+$")]
    hardware: list[BlockDevice]


class StorageRule(Schema, strict=True):
    """The campaign's disks for models, evidence and temporary files.

    Attributes:
        file_systems: the kernel's names, such as ``ext4``.
        drivers: of the disks, as in the names of their devices, such as ``nvme``.
    """

    file_systems: Annotated[list[str], pydantic.Field(min_length=1)]
    drivers: Annotated[list[str], pydantic.Field(min_length=1)]


def misplaced(place: Place, rule: StorageRule) -> str | None:
    """Return the breach of the rule by a place, as one line, or None."""
    where = f"{place.purpose} {place.path}"
    if place.real != place.path:
        where += f" (in fact {place.real})"
    on = f"{where} lies on {place.source} ({place.file_system}, {place.device})"
    if place.file_system not in rule.file_systems:
        return f"{on}; expected one of {', '.join(rule.file_systems)}; move it to an internal disk"
    if not place.hardware:
        return f"{on}, of which the kernel knows no disk; expected an internal one; move it to one"
    for device in place.hardware:
        reason = _not_internal(device, rule)
        if reason is not None:
            return f"{on}, that is {device.path}: {reason}; move it to an internal disk"
    return None


def _not_internal(device: BlockDevice, rule: StorageRule) -> str | None:
    parts = device.path.strip("/").split("/")
    if device.removable:
        return "removable; expected a disk that stays"
    if any(_CABLE.fullmatch(part) for part in parts):
        return "on a cable or a network; expected a disk of this host"
    if not any(_BUS.fullmatch(part) for part in parts):
        return "on no bus of this host; expected a disk of this host"
    if not any(re.fullmatch(rf"{re.escape(driver)}\d+", part) for part in parts for driver in rule.drivers):
        return f"driven by none of {', '.join(rule.drivers)}; expected one of them"
    return None
