# SPDX-License-Identifier: Apache-2.0
"""What a parity packet is: environment and engine arguments, from its request alone. Imports neither torch nor vLLM.

A packet runs under the candidate arm's own configuration, on one card, because the candidate serves no other.
"""

from __future__ import annotations

from typing import Any

from pytest_laguna.evidence.arm_record import Arm, ArmRequest
from pytest_laguna.evidence.parity import PacketRequest

from . import arms

FAILED = "laguna-packet failed: "
"""How the one line begins in which a packet says on standard error why it left no record."""


def environment(request: PacketRequest) -> dict[str, str]:
    """The variables that decide what a packet computes: the candidate arm's, with the flag off to begin with."""
    return arms.environment(_arm(request)) | {arms.FLAG: "0"}


def engine_arguments(request: PacketRequest) -> dict[str, Any]:
    """Keyword arguments of vLLM's ``EngineArgs``: the candidate arm's, for one card."""
    return arms.engine_arguments(_arm(request))


def _arm(request: PacketRequest) -> ArmRequest:
    """The candidate arm whose configuration a packet runs under. It generates nothing: prompt and length are unused."""
    return ArmRequest.model_validate({
        "arm": Arm.GRAPH_CANDIDATE,
        "lane": request.lane,
        "target": request.target,
        "draft": request.draft,
        "prompt": "unused",
        "tokens": 1,
        "tensor_parallel_size": 1,
        "collective_breaks": False,
        "profile_samples": 0,
        "planted": request.planted,
    })
