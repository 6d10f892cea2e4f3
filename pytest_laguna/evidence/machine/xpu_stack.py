# SPDX-License-Identifier: Apache-2.0
"""Matching releases of torch, kernels and vLLM on an XPU, each row with its source.

No package says so itself: the kernels' wheel requires nothing, and vLLM's names no kernels, so pip installs any pair. A
mismatched pair imports, and fails or computes something else later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

TORCH, VLLM, KERNELS, IPEX = "torch", "vllm", "vllm-xpu-kernels", "intel-extension-for-pytorch"


class Stack(NamedTuple):
    """Matching versions.

    Attributes:
        torch: release; its build is ``+xpu``.
        kernels: release of vllm-xpu-kernels; None before its first release.
        ipex: release of Intel's extension, with ``+xpu`` as its build too; None since its end.
    """

    vllm: str
    torch: str
    kernels: str | None
    ipex: str | None
    source: str

    def __str__(self) -> str:
        rest = [f"{name} {version}" for name, version in ((KERNELS, self.kernels), (IPEX, self.ipex)) if version]
        return ", ".join([f"torch {self.torch}+xpu", *rest])


STACKS = (
    Stack("0.33.0", "2.14.0", "0.1.15.4", None, "requirements/xpu.txt of vLLM 0.33.0's source distribution"),
    Stack("0.32.0", "2.14.0", "0.1.15.4", None, "requirements/xpu.txt of vLLM 0.32.0's source distribution"),
    Stack("0.26.0", "2.12.0", "0.1.11.1", None, "requirements/xpu.txt of vLLM 0.26.0's source distribution"),
    Stack("0.11.0", "2.8.0", None, "2.8.10.post0", "requirements/xpu.txt of vLLM 0.11.0's source distribution"),
)
"""Newest first."""


def misfit(installed: Mapping[str, str]) -> str | None:
    """Return the mismatch of an engine's installed packages (version by name), one line with the match, or None."""
    found = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in installed.items()}
    vllm = found.get(VLLM)
    if vllm is None:
        return f"{VLLM} is not installed; expected one of {_releases()}"
    fitting = next((stack for stack in STACKS if stack.vllm == _release(vllm)), None)
    if fitting is None:
        return f"{VLLM} {vllm}: its matching packages are unknown; expected one of {_releases()}"
    wanted = {TORCH: fitting.torch, KERNELS: fitting.kernels, IPEX: fitting.ipex}
    for name, version in wanted.items():
        seen = found.get(name)
        built = name == KERNELS or seen is None or seen.partition("+")[2] == "xpu"
        if (None if seen is None else _release(seen)) != version or not built:
            return f"{name} {seen or 'absent'} does not go with {VLLM} {vllm}; expected {fitting}"
    return None


def _release(version: str) -> str:
    return version.partition("+")[0]


def _releases() -> str:
    return ", ".join(stack.vllm for stack in STACKS)
