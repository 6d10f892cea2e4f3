# SPDX-License-Identifier: Apache-2.0
"""What asks for an event profile, and what may not be asked for beside it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pytest_laguna.evidence import arm_settings

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
    # What puts a tracer into the process: vLLM's and torch's profilers, Level Zero's, CUDA's and NVTX' injection.
    "VLLM_TORCH_PROFILER_*",
    "KINETO_*",
    "ZET_ENABLE_*",
    "ZE_ENABLE_TRACING_LAYER",
    "UNITRACE_*",
    "PTI_*",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
)
"""Variables of other instruments, which would be in the intervals, as shell patterns."""


class EventSettings(NamedTuple):
    """What the environment asks for.

    Attributes:
        root: the directory of the ranks' files.
        order_sha256: of the kinds of segments that a replay must have, in their order.
        rounds: of the instrument's own trial; 0 for none.
        replays: of the sparse profile; 0 for none. With neither the one profile is asked for.
    """

    root: Path
    order_sha256: str
    rounds: int
    replays: int


def settings_from(environment: Mapping[str, str]) -> EventSettings | None:
    """The event profile that the environment asks for; None when no variable does.

    Raises:
        ProfileError: only a part of it is asked for, a value is none, graphs are off, or another instrument is on.
    """
    root, order = environment.get(ROOT), environment.get(ORDER)
    if not {ROOT, ORDER, ROUNDS, REPLAYS} & environment.keys():
        return None
    if root is None or order is None:
        message = f"{ROOT} is {root!r} and {ORDER} is {order!r}; expected both, or none with {ROUNDS} and {REPLAYS}"
        raise ProfileError(message)
    if not re.fullmatch("[0-9a-f]{64}", order):
        message = f"{ORDER} is {order!r}; expected the SHA-256 of the segments' kinds, 64 hexadecimal digits"
        raise ProfileError(message)
    rounds, replays = _number(environment, ROUNDS), _number(environment, REPLAYS)
    if rounds and replays:
        message = f"{ROUNDS} is {rounds} and {REPLAYS} is {replays}; expected one of them at most"
        raise ProfileError(message)
    if environment.get(GRAPHS) != "1":
        message = f"{GRAPHS} is {environment.get(GRAPHS)!r} beside {ROOT}; expected '1': without graphs nothing replays"
        raise ProfileError(message)
    for name in sorted(environment):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in EXCLUDED):
            message = f"{name} is set beside {ROOT}; expected one instrument in a process: unset one of them"
            raise ProfileError(message)
    return EventSettings(Path(root), order, rounds, replays)


def _number(environment: Mapping[str, str], name: str) -> int:
    """A variable's number; 0 where it is unset."""
    value = environment.get(name)
    if value is not None and not re.fullmatch("[1-9][0-9]{0,2}", value):
        message = f"{name} is {value!r}; expected 1 to 999, or unset"
        raise ProfileError(message)
    return int(value or 0)
