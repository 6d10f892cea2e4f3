# SPDX-License-Identifier: Apache-2.0
"""What an engine counted of its drafts. Names seen in vLLM 0.26.0, 0.32.0 and 0.33.0, where they are the same.

0.32.0 and later also count for each request; 0.26.0 does not, and an arm makes one request.
"""

from __future__ import annotations

from typing import Any

from pytest_laguna.evidence.arm_record import Acceptance

_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


def acceptance(engine: Any) -> Acceptance:
    """Everything that was proposed and accepted since the engine began.

    Args:
        engine: a ``vllm.LLM`` that speculates, and was told not to disable its statistics.

    Raises:
        RuntimeError: it does not tell each of the counters exactly once.
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
        message = f"vLLM tells {len(found)} counters {name}; expected one; see what counts its drafts in this version"
        raise RuntimeError(message)
    return found[0]
