# SPDX-License-Identifier: Apache-2.0
"""The part of the host's process table visible from here: hidden processes can be neither swept nor proven gone."""

from __future__ import annotations

import os
from pathlib import Path

INITIAL_NAMESPACE = "pid:[4026531836]"
"""The host's own namespace, of fixed number (linux/proc_ns.h); it sees the processes of all others."""

MOUNTS = Path("/proc/self/mountinfo")

_OPEN = frozenset({"0", "off"})
_EVEN_OF_THE_GROUP = frozenset({"4", "ptraceable"})
"""Modes under which ``gid=`` grants no exemption."""


def boot_id() -> str:
    """Id of the host's last start: nothing that ran before it runs now."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def pid_namespace() -> str:
    """This process's pid namespace, as the kernel names it."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - its target is a name and no path


def hidden_by() -> str | None:
    """Mount option that hides other users' processes from this one (``man 5 proc``), or None."""
    if os.geteuid() == 0:
        return None
    options = _proc_options()
    mode = options.get("hidepid", "off")
    in_group = options.get("gid", "") in map(str, {os.getegid(), *os.getgroups()})
    if mode in _OPEN or (in_group and mode not in _EVEN_OF_THE_GROUP):
        return None
    return f"hidepid={mode}"


def _proc_options() -> dict[str, str]:
    """Options by name of the uppermost file system on ``/proc``."""
    found = ""
    for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
        mount, _, device = line.partition(" - ")
        if mount.split()[4:5] == ["/proc"]:
            found = device.split()[-1]
    pairs = (option.partition("=") for option in found.split(","))
    return {name: value for name, _, value in pairs}
