# SPDX-License-Identifier: Apache-2.0
"""Torch kernels for gaps and errors of vLLM's CPU build, under the signatures by which vLLM calls them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

_UNQUANTIZED = {"auto", "bfloat16", "float16", "float32"}


def reshape_and_cache_flash(  # noqa: PLR0913, PLR0917 - vLLM's signature
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,  # noqa: ARG001 - scales belong to quantized caches
    v_scale: torch.Tensor,  # noqa: ARG001
) -> None:
    """Write each token's key and value into its slot of the paged cache, with shapes independent of data.

    Args:
        key: [tokens or more, KV heads, head]; rows beyond ``slot_mapping`` are padding.
        value: like ``key``.
        key_cache: [blocks, tokens of a block, KV heads, head], any strides.
        value_cache: like ``key_cache``.
        slot_mapping: [tokens], int64; a token with a negative slot is not kept.
        kv_cache_dtype: vLLM's name of the cache's type.
        k_scale: unused.
        v_scale: unused.

    Raises:
        NotImplementedError: the cache is quantized.
    """
    if kv_cache_dtype not in _UNQUANTIZED:
        raise NotImplementedError(f"kv_cache_dtype: seen {kv_cache_dtype!r}; expected an unquantized cache")
    tokens = slot_mapping.shape[0]
    block_tokens = key_cache.shape[1]
    # A boolean mask has a data-dependent shape, which no graph can hold. So a token that is not kept rewrites the
    # content of slot 0, in vLLM's `null_block`, which no request owns.
    kept = (slot_mapping >= 0)[:, None, None]
    slots = slot_mapping.clamp(min=0)
    where = (slots // block_tokens, slots % block_tokens)
    for cache, new in ((key_cache, key), (value_cache, value)):
        cache.index_put_(where, torch.where(kept, new[:tokens], cache[where]))


def flash_attn_varlen_func(  # noqa: PLR0913 - vLLM's signature
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,  # noqa: ARG001 - sizes a launch on a device
    seqused_k: torch.Tensor,
    max_seqlen_k: int,  # noqa: ARG001
    softmax_scale: float,
    causal: bool,
    block_table: torch.Tensor,
    window_size: Sequence[int] | None = None,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float = 0.0,
    scheduler_metadata: torch.Tensor | None = None,
    fa_version: int = 2,
    q_descale: torch.Tensor | None = None,  # noqa: ARG001 - scales belong to quantized caches
    k_descale: torch.Tensor | None = None,  # noqa: ARG001
    v_descale: torch.Tensor | None = None,  # noqa: ARG001
    dynamic_causal: torch.Tensor | None = None,
    num_splits: int = 0,  # noqa: ARG001 - how a device divides the keys
    s_aux: torch.Tensor | None = None,
    mask_mod: object = None,
    aux_tensors: object = None,
) -> torch.Tensor:
    """Attention over a paged cache, one sequence after another, in float32.

    Args:
        q: [tokens, query heads, head]; the sequences' newest tokens, one sequence after another.
        k: key cache [blocks, tokens of a block, KV heads, head], any strides.
        v: value cache, like ``k``.
        out: [tokens, query heads, head]; written in place.
        cu_seqlens_q: [sequences + 1], int32; where each sequence begins in ``q``.
        max_seqlen_q: unused.
        seqused_k: [sequences], int32; tokens of each sequence in the cache, the newest included.
        max_seqlen_k: unused.
        softmax_scale: factor on the scores.
        causal: True if a query sees no later key.
        block_table: [sequences, blocks], int32; the blocks of each sequence, in order.
        window_size: number of keys before and after its own position that a query sees; negative means all.
        alibi_slopes: must be None, as must every following argument for an unsupported feature.
        softcap: must be 0.
        scheduler_metadata: must be None.
        fa_version: must be 2.
        q_descale: unused.
        k_descale: unused.
        v_descale: unused.
        dynamic_causal: must be None.
        num_splits: unused.
        s_aux: must be None.
        mask_mod: must be None.
        aux_tensors: must be None.

    Returns:
        ``out``.

    Raises:
        NotImplementedError: an unsupported feature was asked for.
    """
    unsupported = {
        "alibi_slopes": alibi_slopes is not None,
        "softcap": softcap != 0.0,
        "scheduler_metadata": scheduler_metadata is not None,
        "fa_version": fa_version != 2,  # noqa: PLR2004 - FlashAttention 2
        "dynamic_causal": dynamic_causal is not None,
        "s_aux": s_aux is not None,
        "mask_mod": mask_mod is not None,
        "aux_tensors": aux_tensors is not None,
    }
    if any(unsupported.values()):
        names = ", ".join(name for name, asked in unsupported.items() if asked)
        message = (
            f"flash_attn_varlen_func: seen {names}; expected plain FlashAttention 2, the reference kernel has no more"
        )
        raise NotImplementedError(message)
    before, after = (-1, -1) if window_size is None else window_size
    if causal:
        after = 0
    starts = cu_seqlens_q.tolist()
    lengths = seqused_k.tolist()
    for sequence, (start, end) in enumerate(itertools.pairwise(starts)):
        if end > start:
            rows = _attend(q[start:end], k, v, block_table[sequence], lengths[sequence], softmax_scale, before, after)
            out[start:end] = rows.to(out.dtype)
    return out


def _attend(  # noqa: PLR0913, PLR0917 - one sequence's share of the arguments above
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: torch.Tensor,
    length: int,
    scale: float,
    before: int,
    after: int,
) -> torch.Tensor:
    """Attention of one sequence's newest tokens, [tokens, query heads, head] in float32."""
    tokens, query_heads, head = query.shape
    block_tokens, kv_heads = key_cache.shape[1:3]
    # Blocks before the window may have been given to other requests: they are not read at all.
    first_block = max(0, length - tokens - before) // block_tokens if before >= 0 else 0
    first = first_block * block_tokens
    table = blocks[first_block : -(-length // block_tokens)].long()
    key = key_cache[table].flatten(0, 1)[: length - first].float()
    value = value_cache[table].flatten(0, 1)[: length - first].float()
    query = query.float().view(tokens, kv_heads, query_heads // kv_heads, head)
    scores = torch.einsum("tkgd,skd->kgts", query, key) * scale
    distance = torch.arange(first, length)[None] - torch.arange(length - tokens, length)[:, None]
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if before >= 0:
        hidden |= distance < -before
    if after >= 0:
        hidden |= distance > after
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("kgts,skd->tkgd", weights, value).flatten(1, 2)


def sigmoid_top_k(
    router_logits: torch.Tensor,
    top_k: int,
    *,
    renormalize: bool,
    routed_scaling_factor: float,
    correction_bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Laguna's routing: the correction bias affects the choice of experts, but not their weights.

    Args:
        router_logits: [tokens, experts].
        top_k: experts for each token.
        renormalize: True to make a token's weights add up to one before scaling.
        routed_scaling_factor: factor on the weights.
        correction_bias: [experts], or None.

    Returns:
        Weights [tokens, top_k] in float32 and expert numbers [tokens, top_k] in int32, both contiguous.
    """
    scores = router_logits.float().sigmoid()
    ranked = scores if correction_bias is None else scores + correction_bias
    experts = ranked.topk(top_k, dim=-1).indices
    weights = scores.gather(-1, experts)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return (weights * routed_scaling_factor).contiguous(), experts.to(torch.int32).contiguous()


RmsNorm = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None", float], None]


def stacked_rms_norm(one_layer: RmsNorm) -> RmsNorm:
    """Make ``rms_norm(out, input, weight, epsilon)`` support the weights of several layers, [layers, hidden].

    vLLM 0.32.0's CPU kernel applies the first layer's weight to all of them, and reads past the input's first layer if
    that is expanded over the layers. DFlash calls it both ways, and its drafts would be noise.
    """

    def rms_norm(out: torch.Tensor, input_: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> None:
        if weight is None or weight.dim() == 1:
            one_layer(out, input_, weight, epsilon)
            return
        for layer in range(weight.shape[0]):
            one_layer(out[layer], input_[layer].contiguous(), weight[layer].contiguous(), epsilon)

    return rms_norm
