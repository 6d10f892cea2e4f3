# SPDX-License-Identifier: Apache-2.0
"""Environment variables of the event profile, and the variables that exclude it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pytest_laguna.evidence.arms import arm_settings

from . import profile_directory
from .profile_directory import ProfileError

ROOT = arm_settings.EVENT_ROOT
ORDER = arm_settings.EVENT_ORDER
ROUNDS = arm_settings.EVENT_ROUNDS
REPLAYS = arm_settings.EVENT_REPLAYS
GRAPHS = "VLLM_USE_BREAKABLE_CUDAGRAPH"

EXCLUDED = (
    profile_directory.ROOT,
    profile_directory.SAMPLES,
    # Published names: raw evidence, trace sessions and attention captured in graphs.
    "VLLM_XPU_LAGUNA_M8_EVIDENCE*",
    "VLLM_XPU_LAGUNA_REPLAY_*",
    "VLLM_XPU_LAGUNA_M8_CAPTURE_*",
    # Tracers inside the process: vLLM's and torch's profilers, Level Zero's, CUDA's and NVTX' injection.
    "VLLM_TORCH_PROFILER_*",
    "KINETO_*",
    "ZET_ENABLE_*",
    "ZE_ENABLE_TRACING_LAYER",
    "UNITRACE_*",
    "PTI_*",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
)
"""Shell patterns for variables of other instruments, whose work would be measured too."""


class EventSettings(NamedTuple):
    """Event profile asked for by the environment.

    Attributes:
        root: directory of the ranks' files.
        order_sha256: of the expected kinds of a replay's segments, in order.
        rounds: of the instrument's own trial; 0 for none.
        replays: of the sparse profile; 0 for none. If both are 0, one whole replay is profiled.
    """

    root: Path
    order_sha256: str
    rounds: int
    replays: int


def settings_from(environment: Mapping[str, str]) -> EventSettings | None:
    """Read the settings; None if no variable is set.

    Raises:
        ProfileError: a variable is missing or malformed, graphs are off, or another instrument is on.
    """
    root, order = environment.get(ROOT), environment.get(ORDER)
    if not {ROOT, ORDER, ROUNDS, REPLAYS} & environment.keys():
        return None
    if root is None or order is None:
        message = f"{ROOT}, {ORDER}: seen {root!r}, {order!r}; expected both, or none with {ROUNDS} and {REPLAYS}"
        raise ProfileError(message)
    if not re.fullmatch("[0-9a-f]{64}", order):
        message = f"{ORDER}: seen {order!r}; expected the SHA-256 of the segments' kinds, 64 hexadecimal digits"
        raise ProfileError(message)
    rounds, replays = _number(environment, ROUNDS), _number(environment, REPLAYS)
    if rounds and replays:
        raise ProfileError(f"{ROUNDS}, {REPLAYS}: seen {rounds}, {replays}; expected at most one of them")
    if environment.get(GRAPHS) != "1":
        message = f"{GRAPHS}: seen {environment.get(GRAPHS)!r}; expected '1' with {ROOT}, since only graphs replay"
        raise ProfileError(message)
    for name in sorted(environment):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in EXCLUDED):
            message = f"{name}: seen set beside {ROOT}; expected one instrument in a process; unset one of them"
            raise ProfileError(message)
    return EventSettings(Path(root), order, rounds, replays)


def _number(environment: Mapping[str, str], name: str) -> int:
    """Number in a variable; 0 if it is unset."""
    value = environment.get(name)
    if value is not None and not re.fullmatch("[1-9][0-9]{0,2}", value):
        raise ProfileError(f"{name}: seen {value!r}; expected 1 to 999, or unset")
    return int(value or 0)
