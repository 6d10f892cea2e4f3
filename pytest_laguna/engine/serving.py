# SPDX-License-Identifier: Apache-2.0
"""What a server of an arm is: the arm's environment and engine arguments, as the exact diagnostic has them.

Imports neither torch nor vLLM.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from pytest_laguna.evidence.arm_record import Arm, ArmRequest, Planted
from pytest_laguna.evidence.values import Lane

from . import arms


@dataclasses.dataclass(frozen=True, slots=True)
class ServedArm:
    """One configuration to serve.

    Attributes:
        arm: which of the four.
        lane: where it runs.
        target: folder of the target model.
        draft: folder of the draft model; None in the q1 arm and only there.
        tensor_parallel_size: ranks.
        collective_breaks: whether each all-reduce is a break of its own.
        max_model_tokens: prompt and answer together, for the suite's longest row.
        executor_backend: vLLM's way of running several ranks; None for its own choice.
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
        """The arm's own request; what it continues, and for how long, is a server's clients' to say."""
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
        """The variables that decide what the server computes. Its engine is always a process of its own."""
        return arms.environment(self._request) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}

    def engine_arguments(self) -> dict[str, Any]:
        """Engine arguments of the server, JSON values only; nothing in it can be called from outside."""
        arguments = arms.engine_arguments(self._request)
        # A server counts its drafts unless it is told not to, and has an option for that alone.
        del arguments["worker_extension_cls"], arguments["disable_log_stats"]
        lengths = {"max_model_len": self.max_model_tokens, "max_num_batched_tokens": self.max_model_tokens}
        backend = {} if self.executor_backend is None else {"distributed_executor_backend": self.executor_backend}
        return arguments | lengths | backend
