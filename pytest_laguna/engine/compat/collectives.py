# SPDX-License-Identifier: Apache-2.0
"""Breaks a breakable graph at each all-reduce, on any lane; names read in vLLM 0.26.0, 0.32.0 and 0.33.0: the same.

vLLM keeps its all-reduces inside the graphs; the published topology has a break at each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.compilation import breakable_cudagraph
from vllm.distributed.parallel_state import GroupCoordinator


def break_at_collectives() -> None:
    """Make each all-reduce of a capture a break; called once in a process.

    Every rank's all-reduce goes through its group's ``_all_reduce_out_place``, whichever library sums; a group of one
    rank does not get there. As with vLLM's own breaks, the result lies in the graph's memory and the break refers to it
    weakly: the graph keeps the memory, and later segments may reuse it.

    Raises:
        RuntimeError: vLLM's groups lack the method.
    """
    if not hasattr(GroupCoordinator, "_all_reduce_out_place"):
        raise RuntimeError("GroupCoordinator: seen no _all_reduce_out_place; expected a vLLM of docs/vllm-versions.md")
    all_reduce: Callable[[Any, torch.Tensor], torch.Tensor] = GroupCoordinator._all_reduce_out_place  # noqa: SLF001
    graphs: Any = breakable_cudagraph  # vLLM's breaks look weak_ref_tensor up in this module

    def breaking_all_reduce(self: Any, input_: torch.Tensor) -> torch.Tensor:
        capture = breakable_cudagraph.BreakableCUDAGraphCapture.current()
        if capture is None or not capture._capturing:  # noqa: SLF001
            return all_reduce(self, input_)
        output = torch.empty_like(input_)
        summands, total = (graphs.weak_ref_tensor(tensor) for tensor in (input_, output))

        def collective_break() -> None:  # introspection.COLLECTIVE_BREAK knows a segment by this name
            total.copy_(all_reduce(self, summands))

        capture.add_eager(collective_break)
        return output

    GroupCoordinator._all_reduce_out_place = breaking_all_reduce  # type: ignore[method-assign]  # noqa: SLF001
