# SPDX-License-Identifier: Apache-2.0
"""Why something may not lie where it does, word for word: the operator acts on it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_laguna.evidence.machine.placement import BlockDevice, Place, StorageRule, misplaced

RULE = StorageRule(file_systems=["ext4", "xfs"], drivers=["nvme", "ata"])
INSIDE = "/devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1"


def place(path: str = INSIDE, *, removable: bool = False, **changes: Any) -> Place:
    values = {
        "purpose": "evidence", "path": "/run", "real": "/run", "file_system": "ext4", "source": "/dev/x",
        "device": "8:1", "hardware": [BlockDevice(path=path, removable=removable)],
    }  # fmt: skip
    return Place.model_validate(values | changes)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (place(), None),
        (place(file_system="nfs"), "(nfs, 8:1); expected one of ext4, xfs; move it to an internal disk"),
        (
            place(hardware=[]),
            "8:1), of which the kernel knows no disk; expected an internal one; move it to one",
        ),
        (
            place(removable=True),
            f"{INSIDE}: removable; expected a disk that stays; move it to an internal disk",
        ),
        (
            place("/devices/pci0000:00/0000:00:14.0/usb1/1-1"),
            "1-1: on a cable or a network; expected a disk of this host; move it to an internal disk",
        ),
        (
            place("/devices/virtual/block/loop0"),
            "loop0: on no bus of this host; expected a disk of this host; move it to an internal disk",
        ),
        (
            place("/devices/pci0000:00/0000:00:01.0/virtio1/block/vda"),
            "vda: driven by none of nvme, ata; expected one of them; move it to an internal disk",
        ),
    ],
)
def test_what_lies_elsewhere_is_told_with_where_it_may_lie(found: Place, reason: str | None) -> None:
    told = misplaced(found, RULE)
    if reason is None:
        assert told is None
        return
    assert told is not None
    assert told.startswith("evidence /run lies on /dev/x (")
    assert told.endswith(reason)


def test_a_place_behind_a_link_is_told_with_what_it_is() -> None:
    told = misplaced(place(real="/mnt", hardware=[]), RULE)
    assert told is not None
    assert told.startswith("evidence /run (in fact /mnt) lies on /dev/x (ext4, 8:1), ")
