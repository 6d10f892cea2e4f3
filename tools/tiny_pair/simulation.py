# SPDX-License-Identifier: Apache-2.0
"""Simulates greedy decoding with the draft after a prompt, by one pass of each model, without vLLM or its kernels."""

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
        margins: for each token, its logit minus the highest other one; if negative, the target would generate another
            token, and the rest is meaningless.
        accepted: for each verification, number of the seven proposals accepted by the target.
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
    """Run both models over a prompt and the target's known continuation.

    Args:
        target: weights of the target, on one rank, in the precision of the computation.
        draft: weights of the draft, likewise.
        layers: of the target.
        prompt: token ids.
        continuation: token ids.

    Returns:
        Margins and verifications of the whole continuation.
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
    """Proposals accepted in each verification; a step skips them and the target's own token after them."""
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
