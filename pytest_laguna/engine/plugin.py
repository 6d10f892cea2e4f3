# SPDX-License-Identifier: Apache-2.0
"""The ``laguna_lane`` entry point of ``vllm.general_plugins``: readies a vLLM process for the lane that it is told of.

vLLM swallows an exception raised while a plugin is imported and passes on one raised by the plugin's function: nothing
heavy is imported here, and everything is decided in the function.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

from pytest_laguna.evidence import rank_files

LANE = "LAGUNA_LANE"
PLANTED = "LAGUNA_PLANTED"
COLLECTIVE_BREAKS = "LAGUNA_COLLECTIVE_BREAKS"


def register() -> None:
    """Install the lane named by ``LAGUNA_LANE``; unset means that this vLLM process is none of ours.

    In a process that is ours, ``LAGUNA_COLLECTIVE_BREAKS`` may ask for a break at each all-reduce of a captured graph,
    and ``LAGUNA_PLANTED`` name a defect to plant in the candidate: a gate's test of itself.

    Raises:
        ValueError: ``LAGUNA_LANE`` names no lane, ``LAGUNA_PLANTED`` no defect, or ``LAGUNA_COLLECTIVE_BREAKS`` is
            neither unset, '0' nor '1'.
        RuntimeError: the CPU lane meets a vLLM version that it was not written against, or the XPU's compiled attention
            cannot be loaded.
    """
    lane = os.environ.get(LANE)
    if lane is None:
        return
    if lane not in {"cpu", "cuda", "xpu"}:
        message = f"{LANE} is {lane!r}; expected it unset, 'cpu', 'cuda' or 'xpu'; set it to the lane of this process"
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
    gc.freeze()  # What is imported by now stays: vLLM searches for garbage again and again while it starts.


def _collective_breaks() -> bool:
    value = os.environ.get(COLLECTIVE_BREAKS, "0")
    if value not in {"0", "1"}:
        message = f"{COLLECTIVE_BREAKS} is {value!r}; expected it unset, '0' or '1'"
        raise ValueError(message)
    return value == "1"


def _report_states(lane: str) -> None:
    """Have each rank of a server say what it captured, where the leg wants to know."""
    directory = os.environ.get(rank_files.VARIABLE)
    if directory is not None:
        pipes = Path(os.environ[rank_files.PIPES])
        from .compat.start_up import after_start_up  # noqa: PLC0415 - imports vLLM
        from .rank_state import report_from_now_on  # noqa: PLC0415 - imports vLLM

        after_start_up(lane, lambda worker: report_from_now_on(worker, Path(directory), pipes))


def _write_last_stacks() -> None:
    """Have each rank of an arm write where it is before the arm is ended, where its launcher wants to know."""
    if rank_files.STACKS in os.environ:
        from .compat.start_up import before_start_up  # noqa: PLC0415 - imports vLLM
        from .last_stack import write_before_the_end  # noqa: PLC0415 - most vLLM processes are none of ours

        before_start_up(write_before_the_end)


def _plant() -> None:
    from pytest_laguna.evidence.arm_record import Planted  # noqa: PLC0415 - most vLLM processes are none of ours

    planted = Planted(os.environ.get(PLANTED, "none"))
    if planted is not Planted.NONE:
        from .planting import plant  # noqa: PLC0415 - imports the candidate and vLLM

        plant(planted)
