# SPDX-License-Identifier: Apache-2.0
"""Environment and engine arguments of a parity packet, from its request alone; imports neither torch nor vLLM.

A packet runs under the candidate arm's configuration, but on one card, the only number that the candidate serves.
"""

from __future__ import annotations

from typing import Any

from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRequest
from pytest_laguna.evidence.arms.parity import PacketRequest

FAILED = "laguna-packet failed: "
"""Start of the line on standard error with the reason for a missing record."""


def environment(request: PacketRequest) -> dict[str, str]:
    """Environment of a packet: the candidate arm's, with the flag off to begin with."""
    return arm_settings.environment(_arm(request)) | {arm_settings.FLAG: "0"}


def engine_arguments(request: PacketRequest) -> dict[str, Any]:
    """Keyword arguments of vLLM's ``EngineArgs``: the candidate arm's, for one card."""
    return arm_settings.engine_arguments(_arm(request))


def _arm(request: PacketRequest) -> ArmRequest:
    """The candidate arm of a packet's configuration; it generates nothing: prompt and length are unused."""
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
