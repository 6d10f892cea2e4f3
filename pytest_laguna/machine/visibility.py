# SPDX-License-Identifier: Apache-2.0
"""Which of the host's processes are seen from here: what is not seen is neither swept nor proven to be gone."""

from __future__ import annotations

import os
from pathlib import Path

INITIAL_NAMESPACE = "pid:[4026531836]"
"""The host's own, whose number is fixed (linux/proc_ns.h): every process of every other one is seen from it."""

MOUNTS = Path("/proc/self/mountinfo")

_OPEN = frozenset({"0", "off"})
_EVEN_OF_THE_GROUP = frozenset({"4", "ptraceable"})
"""What ``gid=`` lifts the veil for in the other modes and not in this one."""


def boot_id() -> str:
    """Of the host's start: nothing that ran before it runs now."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def pid_namespace() -> str:
    """This process's, as the kernel names it."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - its target is a name and no path


def hidden_by() -> str | None:
    """The mount option that keeps other users' processes from this one's sight (``man 5 proc``); None without one."""
    if os.geteuid() == 0:
        return None
    options = _proc_options()
    mode = options.get("hidepid", "off")
    in_group = options.get("gid", "") in map(str, {os.getegid(), *os.getgroups()})
    if mode in _OPEN or (in_group and mode not in _EVEN_OF_THE_GROUP):
        return None
    return f"hidepid={mode}"


def _proc_options() -> dict[str, str]:
    """Of the uppermost file system on ``/proc``, by name."""
    found = ""
    for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
        mount, _, device = line.partition(" - ")
        if mount.split()[4:5] == ["/proc"]:
            found = device.split()[-1]
    pairs = (option.partition("=") for option in found.split(","))
    return {name: value for name, _, value in pairs}
