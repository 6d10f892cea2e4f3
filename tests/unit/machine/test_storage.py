# SPDX-License-Identifier: Apache-2.0
"""Where something lies, from a kernel's files made here, and whether a campaign allows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.evidence.machine.placement import Place, StorageRule, misplaced
from pytest_laguna.machine.errors import CardError
from pytest_laguna.machine.storage import find_place

RULE = StorageRule(file_systems=["ext4"], drivers=["nvme"])
NVME = "devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1"


class Kernel:
    """A kernel's view of its disks: sysfs, and what is mounted."""

    def __init__(self, folder: Path) -> None:
        self.sys, self.mounts = folder / "sys", folder / "mountinfo"
        self.root = folder / "root"
        (self.sys / "dev" / "block").mkdir(parents=True)
        self.root.mkdir()
        self.mounts.write_text("22 1 0:5 / / rw - tmpfs tmpfs rw\n")

    def disk(self, number: str, path: str, *, removable: str = "0", parts: tuple[str, ...] = ()) -> None:
        """A block device, and which others it is made of."""
        device = self.sys / path
        device.mkdir(parents=True)
        (device / "removable").write_text(f"{removable}\n")
        (self.sys / "dev" / "block" / number).symlink_to(device)
        for part in parts:
            (device / "slaves").mkdir(exist_ok=True)
            (device / "slaves" / Path(part).name).symlink_to(self.sys / part)

    def mount(self, number: str, folder: str, file_system: str = "ext4", source: str = "/dev/nvme0n1p2") -> Path:
        """Something mounted below the root; returns the folder."""
        place = self.root / folder
        place.mkdir(exist_ok=True)
        escaped = str(place).replace(" ", "\\040")
        with self.mounts.open("a") as stream:
            stream.write(f"30 22 {number} / {escaped} rw,relatime shared:1 - {file_system} {source} rw\n")
        return place

    def place(self, path: Path) -> Place:
        return find_place("evidence", path, sys=self.sys, mounts=self.mounts)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_an_internal_disk_is_allowed(kernel: Kernel) -> None:
    kernel.disk("259:2", f"{NVME}/nvme0n1p2")
    place = kernel.place(kernel.mount("259:2", "fast"))
    assert (place.file_system, place.device, place.source) == ("ext4", "259:2", "/dev/nvme0n1p2")
    assert [device.path for device in place.hardware] == [f"/{NVME}/nvme0n1p2"]
    assert misplaced(place, RULE) is None


def test_what_is_not_there_yet_lies_where_it_will_be_made(kernel: Kernel) -> None:
    kernel.disk("259:2", f"{NVME}/nvme0n1p2")
    folder = kernel.mount("259:2", "fast")
    place = kernel.place(folder / "sealed" / "new")
    assert (place.path, place.real, place.device) == (str(folder / "sealed" / "new"), str(folder), "259:2")


def test_the_deepest_mount_counts_and_of_two_the_later(kernel: Kernel) -> None:
    kernel.disk("259:2", f"{NVME}/nvme0n1p2")
    kernel.mount("0:9", "fast", "overlay", "overlay")
    folder = kernel.mount("259:2", "fast")
    assert kernel.place(folder / "x").device == "259:2"
    inner = kernel.mount("0:7", "fast/over", "nfs4", "server:/x")
    assert kernel.place(inner).file_system == "nfs4"


def test_a_link_is_followed_and_told(kernel: Kernel) -> None:
    kernel.disk("259:2", f"{NVME}/nvme0n1p2")
    kernel.mount("259:2", "fast")
    usb = kernel.mount("8:1", "usb", source="/dev/sda1")
    kernel.disk("8:1", "devices/pci0000:00/0000:00:14.0/usb2/2-1/host6/block/sda/sda1")
    link = kernel.root / "fast" / "link"
    link.symlink_to(usb)
    reason = misplaced(kernel.place(link), RULE)
    assert reason is not None
    assert reason.startswith(f"evidence {link} (in fact {usb}) lies on /dev/sda1 (ext4, 8:1), that is /devices/")


def test_names_with_blanks_are_read(kernel: Kernel) -> None:
    kernel.disk("259:2", f"{NVME}/nvme0n1p2")
    assert kernel.place(kernel.mount("259:2", "two words")).device == "259:2"


def test_a_mirror_is_its_disks(kernel: Kernel) -> None:
    usb = "devices/pci0000:00/0000:00:14.0/usb2/2-1/host6/block/sda"
    kernel.disk("259:2", NVME)
    kernel.disk("8:0", usb)
    kernel.disk("9:0", "devices/virtual/block/md0", parts=(NVME,))
    kernel.disk("253:0", "devices/virtual/block/dm-0", parts=("devices/virtual/block/md0", usb))
    good, bad = kernel.place(kernel.mount("9:0", "good")), kernel.place(kernel.mount("253:0", "bad"))
    assert misplaced(good, RULE) is None
    assert [device.path for device in bad.hardware] == [f"/{usb}", f"/{NVME}"]
    assert "on a cable or a network; expected a disk of this host" in str(misplaced(bad, RULE))


def _usb(kernel: Kernel) -> None:
    kernel.disk("259:2", "devices/pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/block/sda/sda1")


def _removable(kernel: Kernel) -> None:
    kernel.disk("259:2", f"{NVME}/nvme0n1p2")
    (kernel.sys / "devices/pci0000:00/0000:01:00.0/removable").write_text("removable\n")


def _fabric(kernel: Kernel) -> None:
    kernel.disk("259:2", "devices/virtual/nvme-fabrics/ctl/nvme0/nvme0n1")


def _iscsi(kernel: Kernel) -> None:
    kernel.disk("259:2", "devices/pci0000:00/0000:01:00.0/host3/session1/target3:0:0/block/sdb")


def _sata(kernel: Kernel) -> None:
    kernel.disk("259:2", "devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda/sda1")


def _unknown(kernel: Kernel) -> None:
    del kernel


@pytest.mark.parametrize(
    ("make", "file_system", "reason"),
    [
        (_usb, "ext4", "on a cable or a network"),
        (_removable, "ext4", "removable; expected a disk that stays"),
        (_fabric, "ext4", "on no bus of this host"),
        (_iscsi, "ext4", "on a cable or a network"),
        (_sata, "ext4", "driven by none of nvme; expected one of them"),
        (_unknown, "ext4", "of which the kernel knows no disk"),
        (_unknown, "nfs4", "expected one of ext4; move it to an internal disk"),
        (_unknown, "ntfs3", "expected one of ext4; move it to an internal disk"),
    ],
)
def test_everything_else_is_refused(
    make: Callable[[Kernel], None], file_system: str, reason: str, kernel: Kernel
) -> None:
    make(kernel)
    found = misplaced(kernel.place(kernel.mount("259:2", "elsewhere", file_system)), RULE)
    assert found is not None
    assert reason in found
    assert "\n" not in found


def test_a_list_of_mounts_that_cannot_be_used_is_an_error(kernel: Kernel) -> None:
    with pytest.raises(CardError, match=r"none: seen .*; expected the kernel"):
        find_place("evidence", kernel.root, sys=kernel.sys, mounts=kernel.root / "none")
    kernel.mounts.write_text("30 22 0:5 / /elsewhere rw - tmpfs tmpfs rw\n")
    with pytest.raises(CardError, match="seen no mount that holds"):
        kernel.place(kernel.root)
    kernel.mounts.write_text("damaged\n")
    with pytest.raises(CardError, match="expected the kernel's list of mounts"):
        kernel.place(kernel.root)


def test_the_real_kernels_files_are_read() -> None:
    place = find_place("temporary", Path("/tmp"))  # noqa: S108 - where it really lies
    assert place.file_system
    assert place.device.count(":") == 1
