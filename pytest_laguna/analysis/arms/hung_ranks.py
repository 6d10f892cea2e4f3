# SPDX-License-Identifier: Apache-2.0
"""The rank delaying the others, from each rank's stack before its arm was ended.

A waiting rank is in a collective, or waits for its device, perhaps delayed by another's, or for its next step from the
engine. A rank that does none of these while another does keeps that one waiting. If all are alike, no rank is named.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from pytest_laguna.evidence.arms.rank_stacks import Frame, Stack
from pytest_laguna.evidence.reading import Missing, Stacks


class _Waits(enum.IntEnum):
    """Kind of a rank's wait; the rank with the lowest is the most waited for."""

    FOR_NOTHING = 0
    FOR_THE_ENGINE = 1
    FOR_RANKS = 2


_FOR_THE_ENGINE: Final = re.compile(
    r"/vllm/distributed/(?:device_communicators/shm_broadcast\.py|utils\.py sched_yield$)"
)
"""Calls that wait for the next step, as seen in vLLM 0.26.0, 0.32.0 and 0.33.0."""
_FOR_RANKS: Final = re.compile(
    r"/(?:torch|vllm)/distributed/.* \S+"  # a collective
    r"|/pytest_laguna/engine/tape_graph\.py and_wait"  # one on a tape
    r"|/torch/(?:accelerator|cuda|xpu)/.* synchronize"
    # ``torch.Event.synchronize`` is no call of Python's; these are its callers, and do little else.
    r"|/vllm/v1/worker/gpu_model_runner\.py"
    r" (?:_to_list|get_output|_get_draft_token_ids_cpu|_get_valid_sampled_token_count|synchronize_input_prep)$"
)
"""Calls that wait for other ranks or for the device, as seen in vLLM 0.26.0, 0.32.0 and 0.33.0."""
_SAYS_NOTHING: Final = re.compile(
    r"<frozen |.*/lib(?:64)?/python3\.\d+/(?!(?:site|dist)-packages/)"
    r"|.*/torch/_ops\.py$"
    r"|.*/zmq/sugar/poll\.py$"
)
"""Files of calls without a purpose of their own.

Python's own, torch's way into an operator, and the poll in which vLLM's queue waits after a second without a message.
"""


def hung_ranks(stacks: Stacks, ranks: int) -> str | None:
    """Describe the ranks without an answer and one that waited for them; None if they cannot be told apart."""
    seen = {rank: stack for rank, stack in sorted(stacks.items()) if not isinstance(stack, Missing)}
    waits = {rank: _waits(stack) for rank, stack in seen.items()}
    if not seen:
        return None
    waited = max(seen, key=lambda rank: waits[rank])
    silent = [rank for rank in range(ranks) if rank not in stacks]
    hung = [rank for rank in seen if waits[rank] < waits[waited]]
    told = [f"rank {rank} left no stack: it was stopped, had ended or had not begun" for rank in silent]
    told += [f"rank {rank} was in {_innermost(seen[rank])}" for rank in hung]
    if told or ranks == 1:
        word = "waited" if waits[waited] else "was"
        return "; ".join([*told, f"rank {waited} {word} in {_innermost(seen[waited])}"])
    return None


def _waits(stack: Stack) -> _Waits:
    frame = _innermost(stack)
    place = f"{frame.file} {frame.function}"
    if _FOR_THE_ENGINE.search(place):
        return _Waits.FOR_THE_ENGINE
    return _Waits.FOR_RANKS if _FOR_RANKS.search(place) else _Waits.FOR_NOTHING


def _innermost(stack: Stack) -> Frame:
    """Return the innermost call with a purpose of its own."""
    own = (frame for frame in stack if not _SAYS_NOTHING.match(frame.file))
    return next(own, stack[0])
