# SPDX-License-Identifier: Apache-2.0
"""An engine's counters of its drafts; names seen in vLLM 0.26.0, 0.32.0 and 0.33.0: the same.

0.32.0 and later also count for each request; 0.26.0 does not, but an arm makes only one.
"""

from __future__ import annotations

from typing import Any

from pytest_laguna.evidence.arms.arm_record import Acceptance

_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


def acceptance(engine: Any) -> Acceptance:
    """Proposed and accepted tokens since the engine began.

    Args:
        engine: a ``vllm.LLM`` with a draft and enabled statistics.

    Raises:
        RuntimeError: the engine does not have each counter exactly once.
    """
    metrics = engine.get_metrics()
    return Acceptance(
        drafts=_only(metrics, _DRAFTS).value,
        draft_tokens=_only(metrics, _DRAFT_TOKENS).value,
        accepted=_only(metrics, _ACCEPTED).value,
        accepted_per_position=list(_only(metrics, _PER_POSITION).values),
    )


def _only(metrics: list[Any], name: str) -> Any:
    found = [metric for metric in metrics if metric.name == name]
    if len(found) != 1:
        message = f"vLLM: seen {len(found)} counters {name}; expected one; see what counts its drafts in this version"
        raise RuntimeError(message)
    return found[0]
