# SPDX-License-Identifier: Apache-2.0
"""What an XPU's engine stands on, below Python: kernel, driver, Level Zero, and every library that it would load."""

from __future__ import annotations

from pytest_laguna.evidence.machine.closure import Closure
from pytest_laguna.evidence.schemas import Schema


class HostRuntime(Schema):
    """The operating system's part.

    Attributes:
        kernel: its release.
        driver: version of the xe module, or its source version where it is built in with the kernel; None when it is
            not loaded.
        packages: version by name of the installed packages that serve the card; empty where the host has no dpkg.
    """

    kernel: str
    driver: str | None
    packages: dict[str, str]


class DeviceRuntime(Schema):
    """All of it.

    Attributes:
        host: the operating system's part.
        closure: what the kernels' package would load, the Level Zero loader and its driver among it; the version of
            each stands in the name of the file behind its links.
    """

    host: HostRuntime
    closure: Closure
