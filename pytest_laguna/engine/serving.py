# SPDX-License-Identifier: Apache-2.0
"""Environment and engine arguments of an arm's server, as in the exact diagnostic; imports neither torch nor vLLM."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRequest, Planted
from pytest_laguna.evidence.values import Lane


@dataclasses.dataclass(frozen=True, slots=True)
class ServedArm:
    """One configuration to serve.

    Attributes:
        arm: one of the four.
        lane: kind of device.
        target: folder of the target model.
        draft: folder of the draft model; None in the q1 arm and only there.
        tensor_parallel_size: ranks.
        collective_breaks: True to make each all-reduce a separate break.
        max_model_tokens: limit of prompt and answer together, for the suite's longest row.
        executor_backend: vLLM's executor of several ranks; None for its own choice.
    """

    arm: Arm
    lane: Lane
    target: str
    draft: str | None
    tensor_parallel_size: int
    collective_breaks: bool
    max_model_tokens: int
    executor_backend: Literal["mp", "ray"] | None = None

    @property
    def _request(self) -> ArmRequest:
        """The arm's request; prompt and length are placeholders, since the clients of a server choose them."""
        return ArmRequest(
            arm=self.arm,
            lane=self.lane,
            target=self.target,
            draft=self.draft,
            prompt="-",
            tokens=1,
            tensor_parallel_size=self.tensor_parallel_size,
            collective_breaks=self.collective_breaks,
            planted=Planted.NONE,
            profile_samples=0,
        )

    def variables(self) -> dict[str, str]:
        """Environment of the server; its engine is always a separate process."""
        return arm_settings.environment(self._request) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}

    def engine_arguments(self) -> dict[str, Any]:
        """Engine arguments of the server, JSON values only; without an extension that a client could call."""
        arguments = arm_settings.engine_arguments(self._request)
        # A server counts its drafts by default; an option only turns that off.
        del arguments["worker_extension_cls"], arguments["disable_log_stats"]
        lengths = {"max_model_len": self.max_model_tokens, "max_num_batched_tokens": self.max_model_tokens}
        backend = {} if self.executor_backend is None else {"distributed_executor_backend": self.executor_backend}
        return arguments | lengths | backend
