# SPDX-License-Identifier: Apache-2.0
"""Reads the operating system's part for Intel's cards: kernel, driver, packages, device files."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_laguna.evidence.machine.device_runtime import HostRuntime

MODULE = "xe"
"""The kernel's driver of B-series cards."""
_PACKAGES = re.compile(r"(intel-(opencl-icd|ocloc|igc-\S+|level-zero-gpu|gsc|metrics-\S+)|lib(ze\S*|igc\S*|igdgmm\S*)|"
                       r"level-zero\S*|xpu-smi|xpumanager|linux-firmware)")  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class XpuHostFiles:
    """Places of the operating system's files."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    packages: Path = Path("/var/lib/dpkg/status")


def host_runtime(where: XpuHostFiles | None = None) -> HostRuntime:
    """Return the operating system's part of an engine's runtime.

    Raises:
        OSError: the kernel's release cannot be read.
    """
    there = where or XpuHostFiles()
    return HostRuntime(
        kernel=(there.proc / "sys/kernel/osrelease").read_text(encoding="ascii").strip(),
        driver=_module(there.sys / "module" / MODULE),
        packages=dict(_installed(there.packages)),
    )


def closed_nodes(where: XpuHostFiles | None = None) -> list[Path]:
    """Device files for computing that this process may not open; empty also without any.

    Level Zero opens ``renderD*`` for every card, and silently skips files that it may not open.
    """
    nodes = sorted(((where or XpuHostFiles()).dev / "dri").glob("renderD*"))
    return [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]


def _module(place: Path) -> str | None:
    for name in ("version", "srcversion"):
        if (place / name).is_file():
            return (place / name).read_text(encoding="ascii").strip()
    return "built in" if place.is_dir() else None


def _installed(status: Path) -> Iterator[tuple[str, str]]:
    if not status.is_file():
        return
    for entry in status.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.*)$", entry, re.MULTILINE))
        name = fields.get("Package", "")
        if _PACKAGES.fullmatch(name) and fields.get("Status", "").endswith(" installed") and "Version" in fields:
            yield name, fields["Version"]
