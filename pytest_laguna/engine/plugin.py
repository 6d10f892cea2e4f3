# SPDX-License-Identifier: Apache-2.0
"""The ``laguna_lane`` entry point of ``vllm.general_plugins``: prepares a vLLM process for its lane.

vLLM swallows exceptions from importing a plugin, but not from calling its function. So the import is light, and every
decision is made in the function.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

from pytest_laguna.evidence.arms import rank_files

LANE = "LAGUNA_LANE"
PLANTED = "LAGUNA_PLANTED"
COLLECTIVE_BREAKS = "LAGUNA_COLLECTIVE_BREAKS"


def register() -> None:
    """Install the lane named by ``LAGUNA_LANE``; if unset, this vLLM process is not ours.

    In our processes ``LAGUNA_COLLECTIVE_BREAKS`` may ask for a break at each all-reduce of a captured graph, and
    ``LAGUNA_PLANTED`` may name a defect to plant in the candidate: a gate's test of itself.

    Raises:
        ValueError: a variable has an unknown value.
        RuntimeError: the CPU lane does not know this vLLM version, or the XPU's compiled attention cannot be loaded.
    """
    lane = os.environ.get(LANE)
    if lane is None:
        return
    if lane not in {"cpu", "cuda", "xpu"}:
        message = f"{LANE}: seen {lane!r}; expected 'cpu', 'cuda', 'xpu' or unset; set it to the lane of this process"
        raise ValueError(message)
    broken = _collective_breaks()
    if lane == "cpu":
        from .compat.version import require_known_vllm  # noqa: PLC0415 - imports vLLM

        require_known_vllm()
        from .compat.cpu_lane import install_cpu_lane  # noqa: PLC0415 - imports vLLM

        install_cpu_lane()
    else:
        from .compat.rendezvous import meet_over_a_file  # noqa: PLC0415 - imports vLLM

        meet_over_a_file()
    if lane == "xpu":
        from .compat.xpu_lane import install_xpu_lane  # noqa: PLC0415 - imports vLLM

        install_xpu_lane()
    if broken:
        from .compat.collectives import break_at_collectives  # noqa: PLC0415 - imports vLLM

        break_at_collectives()
    _plant()
    _write_last_stacks()
    _report_states(lane)
    gc.freeze()  # Imports stay for good, but vLLM would search them for garbage again and again while it starts.


def _collective_breaks() -> bool:
    value = os.environ.get(COLLECTIVE_BREAKS, "0")
    if value not in {"0", "1"}:
        raise ValueError(f"{COLLECTIVE_BREAKS}: seen {value!r}; expected it unset, '0' or '1'")
    return value == "1"


def _report_states(lane: str) -> None:
    """Have each rank of a server write its states, if the leg asks for them."""
    directory = os.environ.get(rank_files.VARIABLE)
    if directory is not None:
        pipes = Path(os.environ[rank_files.PIPES])
        from .compat.start_up import after_start_up  # noqa: PLC0415 - imports vLLM
        from .rank_state import report_from_now_on  # noqa: PLC0415 - imports vLLM

        after_start_up(lane, lambda worker: report_from_now_on(worker, Path(directory), pipes))


def _write_last_stacks() -> None:
    """Have each rank of an arm dump its stacks before the arm is ended, if the launcher asks for it."""
    if rank_files.STACKS in os.environ:
        from .compat.start_up import before_start_up  # noqa: PLC0415 - imports vLLM
        from .last_stack import write_before_the_end  # noqa: PLC0415 - most vLLM processes are not ours

        before_start_up(write_before_the_end)


def _plant() -> None:
    from pytest_laguna.evidence.arms.arm_record import Planted  # noqa: PLC0415 - most vLLM processes are not ours

    planted = Planted(os.environ.get(PLANTED, "none"))
    if planted is not Planted.NONE:
        from .planting import plant  # noqa: PLC0415 - imports the candidate and vLLM

        plant(planted)
