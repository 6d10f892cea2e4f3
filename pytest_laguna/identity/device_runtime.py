# SPDX-License-Identifier: Apache-2.0
"""Resolves the libraries that an XPU engine's kernels would load, without loading them."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_laguna.evidence.arms.engine_identity import EngineState
from pytest_laguna.evidence.machine.closure import AbsentLibrary, Closure
from pytest_laguna.evidence.machine.xpu_stack import KERNELS, TORCH
from pytest_laguna.identity.closure import libraries_below, resolve_closure, system_directories

PACKAGE = "vllm_xpu_kernels"
DRIVER = "libze_intel_gpu.so.1"
"""Opened by name by Level Zero's loader, so that no library asks the linker for it (source: level-zero, its loader)."""


def kernel_closure(state: EngineState, system: tuple[Path, ...] | None = None) -> Closure:
    """Return the libraries of the kernels' package, with torch's and the runtime's as torch finds them.

    Raises:
        IdentityError: a library cannot be read.
    """
    package = _beside(state, KERNELS, PACKAGE)
    torch = _beside(state, TORCH, "torch/lib")
    if package is None or not package.is_dir():
        return Closure(libraries=[], absent=[AbsentLibrary(name=PACKAGE, needed_by=state.interpreter, renamed=None)])
    # pip puts the runtime into the environment's own lib, which torch's libraries search.
    search = [place for place in (torch, Path(state.prefix) / "lib") if place is not None]
    places = system_directories() if system is None else system
    drivers = [place / DRIVER for place in places if (place / DRIVER).is_file()]
    closure = resolve_closure([*libraries_below(package), *drivers[:1]], search)
    if drivers:
        return closure
    absent = AbsentLibrary(name=DRIVER, needed_by="Level Zero's loader", renamed=None)
    return closure.model_copy(update={"absent": [*closure.absent, absent]})


def _beside(state: EngineState, name: str, below: str) -> Path | None:
    named = (found for found in state.distributions if re.sub(r"[-_.]+", "-", found.name).lower() == name)
    return next((Path(found.metadata).parent / below for found in named), None)
