# SPDX-License-Identifier: Apache-2.0
"""Two ranks of vLLM's own communicator for XPUs, over gloo; ``test_lanes.py`` runs this in a process of its own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

RANKS = 2


def of_rank(rank: int, store: str, results: str) -> None:
    """Sum, gather and broadcast what this rank holds, and write what came of it."""
    importlib.import_module("tests.lanes.lane_process")
    from vllm.distributed.device_communicators.xpu_communicator import XpuCommunicator

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    group: Any = dist.new_group(list(range(RANKS)), backend="gloo")
    communicator = XpuCommunicator(group, device=torch.device("cpu"), device_group=group, unique_name="contract")
    held = torch.arange(4, dtype=torch.float32) + 10 * rank
    before = held.clone()
    summed = communicator.all_reduce(held)
    kept = bool(torch.equal(held, before))
    communicator.broadcast(held, src=0)
    torch.save({"sum": summed, "kept": kept, "broadcast": held}, f"{results}/{rank}")
    dist.destroy_process_group()


def test_each_rank_gets_the_sum_and_keeps_its_own(tmp_path: Path) -> None:
    spawn: Any = vars(multiprocessing)["spawn"]
    spawn(of_rank, (str(tmp_path / "store"), str(tmp_path)), nprocs=RANKS)
    for rank in range(RANKS):
        found = torch.load(tmp_path / str(rank))
        assert found["sum"].tolist() == [10.0, 12.0, 14.0, 16.0]
        assert found["kept"], "what is summed is not summed in place: a captured graph reads it again"
        assert found["broadcast"].tolist() == [0.0, 1.0, 2.0, 3.0]
