# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from pytest_laguna.machine import descent, visibility

NOBODY = 65534
_CLONE_NEWNS = 0x00020000  # linux/sched.h
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18  # linux/mount.h


def test_the_hosts_start_and_the_namespace_are_the_kernels() -> None:
    assert len(visibility.boot_id()) == 36
    assert visibility.pid_namespace().startswith("pid:[")


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ("rw", None),
        ("rw,hidepid=0", None),
        ("rw,hidepid=off", None),
        ("rw,hidepid=1", "hidepid=1"),
        ("rw,hidepid=noaccess", "hidepid=noaccess"),
        ("rw,hidepid=invisible", "hidepid=invisible"),
        ("rw,gid=7,hidepid=invisible", "hidepid=invisible"),
        ("rw,gid={own},hidepid=invisible", None),
        ("rw,gid={own},hidepid=ptraceable", "hidepid=ptraceable"),
    ],
)
def test_a_mount_that_hides_other_users_processes_is_known(
    options: str, hidden: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    below = "1 0 0:1 / / rw - ext4 /dev/sda rw,hidepid=2\n2 1 0:2 / /proc rw - proc proc rw,hidepid=4\n"
    mounts.write_text(f"{below}3 2 0:3 / /proc rw shared:1 - proc proc {options.format(own=os.getegid())}\n")
    monkeypatch.setattr(visibility, "MOUNTS", mounts)
    monkeypatch.setattr(os, "getgroups", list)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert visibility.hidden_by() == hidden
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert visibility.hidden_by() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_so_it_is_on_a_real_mount() -> None:
    """In a child with mounts of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "no mounts"
        libc = ctypes.CDLL(None, use_errno=True)
        own = libc.unshare(_CLONE_NEWNS) == 0 and libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        if own and libc.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=2") == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            said = f"{visibility.hidden_by()} {descent.find(1)}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as stream:  # noqa: PTH123 - a pipe
        said = stream.read()
    os.waitpid(child, 0)
    if said == "no mounts":
        pytest.skip("this host gives root no mounts of its own")
    assert said in {"hidepid=2 None", "hidepid=invisible None"}
