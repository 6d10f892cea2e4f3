# SPDX-License-Identifier: Apache-2.0
"""Checks that engine, layer and cache are the registered experiment's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laguna_kv.errors import EligibilityError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from laguna_kv.settings import Lane

HEAD_SIZE = 128
LOCAL_KV_HEADS = 2
"""Key/value heads on one rank."""
SPECULATIVE_TOKENS = 7
CACHE_RANK = 4
VERIFIED_TOKENS = SPECULATIVE_TOKENS + 1
"""M: the drafted tokens and the one sampled before them."""

ENGINE: Mapping[str, object] = {
    "compilation mode": "NONE",
    "cudagraph mode": "PIECEWISE",
    "cudagraph capture sizes": [VERIFIED_TOKENS],
    "breakable graphs": True,
    "max_num_seqs": 1,
    "pipeline stages": 1,
    "KV transfer": False,
    "speculative method": "dflash",
    "speculative tokens": SPECULATIVE_TOKENS,
    "draft sampling": "greedy",
    "rejection sampling": "standard",
}
"""The engine of the registered experiment.

Rule: preregistration, "Sole treatment"; one pipeline stage because a layer's number tells the drafter's from the
target's.
"""

LAYER: Mapping[str, object] = {
    "attention type": "decoder",
    "head size": HEAD_SIZE,
    "local KV heads": LOCAL_KV_HEADS,
    "shared KV cache of": None,
}
UNQUANTISED = ("auto", "bfloat16")
"""vLLM's names of a cache in the model's own BF16."""


def require_engine(owner: str, seen: Mapping[str, object], lane: Lane) -> None:
    """Refuse any engine but the registered one; ``seen`` has the keys of ``ENGINE``, and ``platform``.

    Raises:
        EligibilityError: lists every field that differs.
    """
    _require(owner, {"platform": str(lane), **ENGINE}, seen)


def require_layer(owner: str, seen: Mapping[str, object], kv_cache_dtype: str) -> None:
    """Refuse any attention layer but the registered one; ``seen`` has the keys of ``LAYER``.

    Raises:
        EligibilityError: lists every field that differs.
    """
    _require(owner, LAYER, seen)
    if kv_cache_dtype not in UNQUANTISED:
        raise EligibilityError(owner, [("KV cache dtype", "auto or bfloat16", kv_cache_dtype)])


def require_cache(owner: str, kv_cache: torch.Tensor, lane: Lane) -> None:
    """Refuse any cache but BF16 in the NHD layout on the lane's device.

    NHD means that a block holds its tokens, a token its heads and a head its key and value, densely:
    [num_blocks, num_kv_heads, block_size, 2 * head_size] with the strides of [block, token, head, element].

    Raises:
        EligibilityError: lists every field that differs.
    """
    shape = tuple(kv_cache.shape)
    content = 2 * HEAD_SIZE
    if len(shape) != CACHE_RANK or shape[1] != LOCAL_KV_HEADS or shape[3] != content:
        expected = f"[num_blocks, {LOCAL_KV_HEADS}, block_size, {content}]"
        raise EligibilityError(owner, [("cache shape", expected, str(list(shape)))])
    by_token = LOCAL_KV_HEADS * content
    expected_fields = {
        "cache dtype": "torch.bfloat16",
        "cache device": str(lane),
        "cache layout (strides of block, head, token, element)": (shape[2] * by_token, content, by_token, 1),
    }
    seen = (str(kv_cache.dtype), kv_cache.device.type, kv_cache.stride())
    _require(owner, expected_fields, dict(zip(expected_fields, seen, strict=True)))


def _require(owner: str, expected: Mapping[str, object], seen: Mapping[str, object]) -> None:
    mismatches = [
        (field, str(value), str(seen.get(field, "nothing")))
        for field, value in expected.items()
        if field not in seen or seen[field] != value
    ]
    if mismatches:
        raise EligibilityError(owner, mismatches)
