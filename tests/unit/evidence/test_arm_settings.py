# SPDX-License-Identifier: Apache-2.0
"""What an arm is, value by value: the engine is given these, and the analysis holds what it recorded against them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.evidence.arms import arm_settings, rank_files
from pytest_laguna.evidence.arms.arm_record import Arm, Planted
from tests.unit.engine import support

ORDER = "e5" * 32
VARIABLES = {
    "VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS": "0",
    "LAGUNA_LANE": "xpu",
    "LAGUNA_KV_LANE": "xpu",
    "LAGUNA_PLANTED": "none",
    "LAGUNA_COLLECTIVE_BREAKS": "0",
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "1",
    "VLLM_KV_CACHE_LAYOUT": "NHD",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
GRAPHS = {"mode": 0, "cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [8], "max_cudagraph_capture_size": 8}


@pytest.mark.parametrize(
    ("changes", "variables"),
    [
        ({}, {}),
        ({"arm": Arm.EAGER}, {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}),
        ({"arm": Arm.Q1, "draft": None}, {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}),
        ({"arm": Arm.GRAPH_CANDIDATE}, {"VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS": "1"}),
        ({"arm": Arm.GRAPH_CANDIDATE, "null": True}, {}),
        (
            {"arm": Arm.GRAPH_CANDIDATE, "planted": Planted.WRONG_OFFSET},
            {"VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS": "1", "LAGUNA_PLANTED": "wrong-offset"},
        ),
        ({"collective_breaks": True}, {"LAGUNA_COLLECTIVE_BREAKS": "1"}),
        ({"tensor_parallel_size": 4}, {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
    ],
    ids=["graph-control", "eager", "q1", "graph-candidate", "null", "planted", "collective-breaks", "ranks"],
)
def test_the_variables_of_an_arm(changes: dict[str, Any], variables: dict[str, str]) -> None:
    assert arm_settings.environment(support.request(lane="xpu", **changes)) == VARIABLES | variables


@pytest.mark.parametrize("lane", ["cpu", "cuda"])
def test_a_lane_adds_its_own_variables(lane: str) -> None:
    variables = arm_settings.environment(support.request(lane=lane, tensor_parallel_size=2))
    assert variables["LAGUNA_LANE"] == variables["LAGUNA_KV_LANE"] == lane
    assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == {"cpu": "0", "cuda": "1"}[lane]
    assert VARIABLES.keys() < variables.keys()


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({}, {}),
        ({"arm": Arm.GRAPH_CANDIDATE}, {}),
        ({"arm": Arm.EAGER}, {"compilation_config": {"mode": 0, "cudagraph_mode": "NONE"}}),
        ({"tensor_parallel_size": 4}, {"tensor_parallel_size": 4}),
    ],
)
def test_the_engine_arguments_of_an_arm(changes: dict[str, Any], arguments: dict[str, Any]) -> None:
    expected = {
        "model": "/models/target",
        "dtype": "bfloat16",
        "seed": 1,
        "max_model_len": 512,
        "max_num_batched_tokens": 512,
        "max_num_seqs": 1,
        "block_size": 64,
        "kv_cache_memory_bytes": 1 << 27,
        "enable_prefix_caching": False,
        "tensor_parallel_size": 1,
        "disable_custom_all_reduce": True,
        "compilation_config": GRAPHS,
        "worker_extension_cls": "pytest_laguna.engine.probe.RankProbe",
        "disable_log_stats": False,
        "speculative_config": {"method": "dflash", "model": "/models/draft", "num_speculative_tokens": 7},
    }
    assert arm_settings.engine_arguments(support.request(**changes)) == expected | arguments
    teacher = arm_settings.engine_arguments(support.request(arm=Arm.Q1, draft=None))
    assert teacher.keys() == expected.keys() - {"speculative_config"}


@pytest.mark.parametrize(
    ("changes", "variables"),
    [
        ({}, {}),
        (
            {"profile_samples": 31},
            {"LAGUNA_REPLAY_PROFILE_ROOT": "/arm/profile", "LAGUNA_REPLAY_PROFILE_SAMPLES": "31"},
        ),
        (
            {"event_profile": ORDER, "event_fitness_rounds": 9},
            {
                "LAGUNA_EVENT_PROFILE_ROOT": "/arm/profile",
                "LAGUNA_EVENT_PROFILE_ORDER": ORDER,
                "LAGUNA_EVENT_FITNESS_ROUNDS": "9",
            },
        ),
        (
            {"event_profile": ORDER, "event_sparse_replays": 40},
            {
                "LAGUNA_EVENT_PROFILE_ROOT": "/arm/profile",
                "LAGUNA_EVENT_PROFILE_ORDER": ORDER,
                "LAGUNA_EVENT_SPARSE_REPLAYS": "40",
            },
        ),
    ],
    ids=["none", "replay", "fitness", "sparse"],
)
def test_the_variables_that_ask_for_a_profile(changes: dict[str, Any], variables: dict[str, str]) -> None:
    assert arm_settings.profile(support.request(**changes), Path("/arm")) == variables


def test_the_variables_of_the_last_stacks() -> None:
    expected = {rank_files.STACKS: "/arm", rank_files.STACKS_BEFORE: "12.5"}
    assert arm_settings.last_stacks(Path("/arm"), 12.5) == expected
