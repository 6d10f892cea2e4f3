# SPDX-License-Identifier: Apache-2.0
"""Requests and records for the tests of the engine."""

from __future__ import annotations

from typing import Any

from pytest_laguna.evidence.arms.arm_record import (
    Acceptance,
    Arm,
    ArmRecord,
    ArmRequest,
    AttentionDigest,
    CapturedGraph,
    KernelSignatures,
    KernelViews,
    MappedFile,
    Planted,
    RankProcess,
    RankReport,
    token_digest,
)

DIGEST = "0" * 64


def request(**changes: Any) -> ArmRequest:
    values: dict[str, Any] = {
        "arm": Arm.GRAPH_CONTROL,
        "lane": "cpu",
        "target": "/models/target",
        "draft": "/models/draft",
        "prompt": "nova\n",
        "tokens": 3,
        "tensor_parallel_size": 1,
        "collective_breaks": False,
        "planted": Planted.NONE,
        "profile_samples": 0,
    }
    return ArmRequest(**(values | changes))


def rank_report(**changes: Any) -> RankReport:
    layer = "model.layers.0.self_attn.attn"
    graph = CapturedGraph(
        model="target",
        descriptor="8 tokens",
        graphs=2,
        breaks=1,
        kinds={"graph": 2, "attention": 1},
        order_sha256=DIGEST,
    )
    values: dict[str, Any] = {
        "rank": 0,
        "world_size": 1,
        "tensor_parallel_rank": 0,
        "process": RankProcess(pid=7, start_ticks=100),
        "model_runner": "vllm.Runner",
        "graphs": [graph],
        "attention": AttentionDigest(sha256=DIGEST, calls=2, layers=1),
        "kernel_views": {layer: KernelViews(calls=2, same_objects=1, geometries=1)},
        "kernel_signatures": {layer: KernelSignatures(calls=2, distinct=1, sha256=DIGEST)},
        "allocations": [3, 3],
        "profile": None,
        "event_profile": None,
        "sampled_token_ids": [5, 6, 7],
        "mapped": [MappedFile(path="/usr/bin/python3", device=1, inode=2, size=3)],
        "candidate": {"flag": False},
    }
    return RankReport(**(values | changes))


def record(**changes: Any) -> ArmRecord:
    tokens = [5, 6, 7]
    values: dict[str, Any] = {
        "request": request(),
        "token_ids": tokens,
        "token_sha256": token_digest(tokens),
        "text_sha256": DIGEST,
        "finish_reason": "length",
        "prompt_tokens": 5,
        "prompt_token_sha256": DIGEST,
        "cached_tokens": 0,
        "generation_seconds": 0.5,
        "start_seconds": 9.5,
        "acceptance": Acceptance(drafts=1, draft_tokens=7, accepted=2, accepted_per_position=[1, 1, 0, 0, 0, 0, 0]),
        "ranks": [rank_report()],
        "versions": {"torch": "2"},
        "configuration": {"arguments": {"seed": 1}},
        "environment": {"LAGUNA_LANE": "cpu"},
        "network": None,
    }
    return ArmRecord(**(values | changes))
