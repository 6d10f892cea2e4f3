# SPDX-License-Identifier: Apache-2.0
"""The environment of an arm: variables admitted by name, private directories, and variables a device gate refuses.

Source: the laboratory's leg protocol (a variable set by accident decided a run), and pyperf's allow-list.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.machine.card_masks import MASK, ORDER

RUNTIME_PREFIXES = (
    "CCL_", "CUDA_", "FI_", "IGC_", "INTEL_", "IPEX_", "I_MPI_", "KMP_", "LAGUNA", "LD_", "MKL_", "NCCL_", "NEO",
    "OMP_", "ONEAPI_", "PSM", "PYTORCH_", "SYCL", "TORCH", "TRITON_", "UR_", "VLLM", "XPU_GRAPH", "ZES_", "ZE_",
)  # fmt: skip
"""Name prefixes of variables that affect an engine, a driver or a communication library."""

MASK_VARIABLES = sorted({"ONEAPI_DEVICE_SELECTOR", *MASK.values(), *(name for name, _ in ORDER.values())})
"""The caller's choice of cards and of their order: not refused, but recorded, and never widened."""

PASSED_ON = ("PATH", "TZ")
FIXED: Mapping[str, str] = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}

PRIVATE_DIRECTORIES: Mapping[str, str] = {
    "HOME": "home",
    "HF_HOME": "cache/huggingface",
    "NUMBA_CACHE_DIR": "cache/numba",
    "SYCL_CACHE_DIR": "cache/sycl",
    "TORCHINDUCTOR_CACHE_DIR": "cache/inductor",
    "TRITON_CACHE_DIR": "cache/triton",
    "VLLM_CACHE_ROOT": "cache/vllm",
    "XDG_CACHE_HOME": "cache/xdg",
    "XDG_CONFIG_HOME": "xdg/config",
    "XDG_DATA_HOME": "xdg/data",
    "XDG_RUNTIME_DIR": "xdg/runtime",
    "XDG_STATE_HOME": "xdg/state",
}
"""Variables and their directories below the arm's own."""

SHORT_DIRECTORIES = ("TMPDIR", "VLLM_RPC_BASE_PATH")
"""Parents of sockets, whose paths must be short; see ``make_short_directory``."""

SOCKET_PATH_BYTES = 107
"""``sockaddr_un.sun_path`` has 108 bytes, the last a zero."""

SOCKET_NAME_BYTES = 36
"""vLLM names a ZMQ socket by a UUID (0.26.0 to 0.33.0); multiprocessing's own listeners need less."""

_SHORT_PREFIX = "laguna-"
_RANDOM_LETTERS = 8
"""Appended by ``tempfile.mkdtemp``."""


class EnvironmentRefusedError(ValueError):
    """No arm may run in this environment; the line has the remedy."""


def inherited_runtime_variables(environ: Mapping[str, str]) -> list[str]:
    """Sorted names of inherited variables that affect an engine, without the masks."""
    return sorted(name for name in environ if name.startswith(RUNTIME_PREFIXES) and name not in MASK_VARIABLES)


def inherited_masks(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's choice of cards by variable, empty masks, which allow no card, included."""
    return {name: environ[name] for name in MASK_VARIABLES if name in environ}


def refuse_inherited(environ: Mapping[str, str], command: Sequence[str]) -> None:
    """Refuse a device gate under inherited runtime variables; ``command`` is its command line, for the remedy.

    Raises:
        EnvironmentRefusedError: the line names each variable, and the command without them.
    """
    names = inherited_runtime_variables(environ)
    if names:
        cure = shlex.join(["env", *(word for name in names for word in ("-u", name)), *command])
        found = f"environment: seen {', '.join(names)} inherited; expected no runtime variable in a device gate"
        raise EnvironmentRefusedError(f"{found}; run {cure}")


def make_short_directory(parent: Path) -> Path:
    """Make an arm's private directory for temporary files and sockets, outside the evidence with its long path.

    Its name is new: the leftovers of a killed controller are in nobody's way. The parent's path is absolute.

    Raises:
        EnvironmentRefusedError: the path of a socket in it would be too long.
    """
    length = len(os.fsencode(parent / _SHORT_PREFIX)) + _RANDOM_LETTERS
    total = length + 1 + SOCKET_NAME_BYTES
    if total > SOCKET_PATH_BYTES:
        message = (
            f"{parent}: seen a socket's path of {length} + 1 + {SOCKET_NAME_BYTES} = {total} bytes in it; "
            f"expected at most {SOCKET_PATH_BYTES}; choose a parent that is {total - SOCKET_PATH_BYTES} bytes shorter"
        )
        raise EnvironmentRefusedError(message)
    return Path(tempfile.mkdtemp(prefix=_SHORT_PREFIX, dir=parent))


def private_environment(
    arm_directory: Path, short_directory: Path, bytecode: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Make the private directories and return an arm's whole environment, before its lane adds to it.

    Python keeps its compiled files in ``bytecode``: outside every source tree, and private to the session. Arms share
    it, since it affects no result and each would compile all of vLLM anew.

    Raises:
        FileExistsError: a private directory exists: another run's cache is never used.
    """
    passed_on = {name: inherited[name] for name in PASSED_ON if name in inherited}
    private = {name: arm_directory / path for name, path in PRIVATE_DIRECTORIES.items()}
    for directory in private.values():
        directory.parent.mkdir(mode=files.PRIVATE_DIRECTORY, exist_ok=True)
        directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    private |= dict.fromkeys(SHORT_DIRECTORIES, short_directory) | {"PYTHONPYCACHEPREFIX": bytecode}
    return passed_on | dict(FIXED) | {name: str(path) for name, path in private.items()}
