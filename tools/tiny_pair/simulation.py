# SPDX-License-Identifier: Apache-2.0
"""What greedy decoding with the draft would do after a prompt, from one pass of each model: no vLLM, and no kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch.nn import functional

from pytest_laguna.engine.tiny_pair import shape

from .model import Weights, draft_forward, target_forward


@dataclasses.dataclass(frozen=True, slots=True)
class Decoding:
    """Greedy decoding of a known continuation.

    Attributes:
        margins: for each generated token, how far its logit is above the highest other one; below zero the target says
            something else there, and what follows is not what it would generate.
        accepted: for each verification, how many of the seven proposals the target agrees with.
    """

    margins: list[float]
    accepted: list[int]

    @property
    def accepted_per_cycle(self) -> float:
        """Mean number of accepted proposals in a verification."""
        return sum(self.accepted) / len(self.accepted)


def decode_greedily(
    target: Weights, draft: Weights, layers: int, prompt: Sequence[int], continuation: Sequence[int]
) -> Decoding:
    """Run both models over a prompt and what the target is known to say after it.

    Args:
        target: weights of the target, on one rank, in the precision to compute in.
        draft: weights of the draft, likewise.
        layers: of the target.
        prompt: token ids.
        continuation: token ids.

    Returns:
        Margins of all of the continuation, and the verifications that it takes.
    """
    token_ids = torch.tensor([[*prompt, *continuation]])
    first, last = len(prompt), token_ids.shape[1] - 1
    with torch.inference_mode():
        logits, taps = target_forward(target, token_ids, layers=range(layers), taps=shape.tap_layers(layers))
        anchors = torch.arange(first, last + 1)[None]
        hidden = draft_forward(draft, target["model.embed_tokens.weight"], token_ids, taps, anchors)
        proposed = functional.linear(hidden, target["lm_head.weight"])[0].argmax(-1)
    before = logits[0, first - 1 : last].float()
    said = torch.tensor(continuation)[:, None]
    others = before.scatter(1, said, -torch.inf).amax(1)
    margins = (before.gather(1, said)[:, 0] - others).tolist()
    return Decoding(margins, _verifications(proposed.tolist(), list(continuation)))


def _verifications(proposed: list[list[int]], continuation: list[int]) -> list[int]:
    """Walk through the continuation: what is accepted is skipped, and the target's own token after it."""
    accepted = []
    anchor = 0
    while anchor < len(continuation) - 1:
        right = 0
        for proposal, token in zip(proposed[anchor], continuation[anchor + 1 :], strict=False):
            if proposal != token:
                break
            right += 1
        accepted.append(right)
        anchor += right + 1
    return accepted
