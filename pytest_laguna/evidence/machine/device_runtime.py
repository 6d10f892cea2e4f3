# SPDX-License-Identifier: Apache-2.0
"""Base of an XPU's engine below Python: kernel, driver, Level Zero, and every library."""

from __future__ import annotations

from pytest_laguna.evidence.machine.closure import Closure
from pytest_laguna.evidence.schemas import Schema


class HostRuntime(Schema):
    """Kernel, driver and packages of the operating system.

    Attributes:
        kernel: its release.
        driver: version of the xe module, or its source version if it is built into the kernel; None if it is not
            loaded.
        packages: version by name of the installed packages for the card; empty without dpkg.
    """

    kernel: str
    driver: str | None
    packages: dict[str, str]


class DeviceRuntime(Schema):
    """The operating system's part and the libraries.

    Attributes:
        closure: every library of the kernels' package, with the Level Zero loader and its driver; the name of the file
            behind the links gives each version.
    """

    host: HostRuntime
    closure: Closure
