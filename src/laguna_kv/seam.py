# SPDX-License-Identifier: Apache-2.0
"""The seam in Python: the stand-in for the cache tensor in vLLM's view expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from laguna_kv.errors import refuse_seam_call

if TYPE_CHECKING:
    import torch


class Seam:
    """Answers ``cache.transpose(1, 2).split(head_size, dim=-1)`` with two stored aliases.

    vLLM's ``FlashAttentionImpl`` uses its cache argument once in each method, in that expression. Any other use finds
    no attribute here and raises, so that a vLLM that does something new with the cache is noticed at once. ``views``
    are a key and a value alias, each [num_blocks, block_size, num_kv_heads, head_size]; ``owner`` is the layer, for
    messages.
    """

    __slots__ = ("head_size", "owner", "views")

    def __init__(self, views: tuple[torch.Tensor, torch.Tensor], head_size: int, owner: str) -> None:
        self.views = views
        self.head_size = head_size
        self.owner = owner

    def transpose(self, *arguments: object) -> Seam:
        """Return the seam itself for ``transpose(1, 2)``.

        Raises:
            ContractError: other dimensions were requested.
        """
        if not _integers(arguments, (1, 2)):
            refuse_seam_call(self.owner, "transpose", "(1, 2)", arguments)
        return self

    def split(self, *arguments: object, **keywords: object) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the stored aliases for ``split(head_size, dim=-1)``.

        Raises:
            ContractError: another width or dimension was requested: the head size drifted.
        """
        given = (*arguments, *keywords.values())
        if tuple(keywords) != ("dim",) or not _integers(given, (self.head_size, -1)):
            expected = f"({self.head_size}, dim=-1)"
            refuse_seam_call(self.owner, "split", expected, given)
        return self.views


def _integers(arguments: Sequence[object], expected: tuple[int, ...]) -> bool:
    """True if the arguments are exactly these integers; a tensor is not compared: the result would be a tensor."""
    return len(arguments) == len(expected) and all(
        type(argument) is int and argument == value for argument, value in zip(arguments, expected, strict=True)
    )
