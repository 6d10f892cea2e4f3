# SPDX-License-Identifier: Apache-2.0
"""An all-reduce of a capture is a break. Graphs are stood in for; test_compat_other_vllm.py runs this again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gates import vllm_classes  # noqa: F401

# isort: split
# After the support module, which imports vLLM with its warnings off.
from vllm.compilation import breakable_cudagraph
from vllm.distributed.parallel_state import GroupCoordinator

from pytest_laguna.engine.compat import collectives, introspection


class Graph:
    """A graph that records when it is captured and replayed, and nothing else."""

    told: list[str]

    def capture_begin(self, pool: object = None) -> None:
        del pool
        self.told.append("begin")

    def capture_end(self) -> None:
        self.told.append("end")

    def replay(self) -> None:
        self.told.append("replay")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order; the all-reduce doubles, out of place, as if two ranks held the same."""
    told: list[str] = []

    def all_reduce(_self: object, tensor: torch.Tensor) -> torch.Tensor:
        told.append(f"sum {tensor.tolist()}")
        return tensor * 2

    def weakly(tensor: torch.Tensor) -> torch.Tensor:
        told.append("weakly")
        return tensor

    monkeypatch.setattr(Graph, "told", told, raising=False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(breakable_cudagraph, "weak_ref_tensor", weakly)
    monkeypatch.setattr(GroupCoordinator, "_all_reduce_out_place", all_reduce)
    return told


def group(world_size: int) -> Any:
    made = object.__new__(GroupCoordinator)
    made.world_size, made.use_custom_op_call = world_size, False
    return made


def test_an_all_reduce_of_a_capture_is_a_break_and_is_run_at_each_replay(told: list[str]) -> None:
    collectives.break_at_collectives()
    summands = torch.ones(2)
    with breakable_cudagraph.BreakableCUDAGraphCapture() as capture:
        total = group(2).all_reduce(summands)
    assert told == ["begin", "weakly", "weakly", "end", "sum [1.0, 1.0]", "begin", "end"]
    kinds = [introspection.segment_kind(segment) for segment in capture.segments]
    assert kinds == ["graph", "collective", "graph"]
    assert (total.tolist(), summands.tolist()) == ([2.0, 2.0], [1.0, 1.0])
    told.clear()
    summands.fill_(3.0)
    capture.replay()
    assert told == ["replay", "sum [3.0, 3.0]", "replay"]
    assert total.tolist() == [6.0, 6.0]


def test_outside_a_capture_and_between_its_segments_an_all_reduce_is_vllms_own(told: list[str]) -> None:
    collectives.break_at_collectives()
    assert group(2).all_reduce(torch.ones(1)).tolist() == [2.0]
    with breakable_cudagraph.BreakableCUDAGraphCapture() as capture:
        capture.add_eager(lambda: group(2).all_reduce(torch.ones(1)))
    assert told == ["sum [1.0]", "begin", "end", "sum [1.0]", "begin", "end"]


def test_one_rank_has_nothing_to_sum(told: list[str]) -> None:
    collectives.break_at_collectives()
    with breakable_cudagraph.BreakableCUDAGraphCapture():
        group(1).all_reduce(torch.ones(1))
    assert told == ["begin", "end"]


def test_a_vllm_whose_groups_reduce_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(GroupCoordinator, "_all_reduce_out_place")
    with pytest.raises(RuntimeError, match="GroupCoordinator: seen no _all_reduce_out_place"):
        collectives.break_at_collectives()
