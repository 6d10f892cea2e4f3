# SPDX-License-Identifier: Apache-2.0
"""The maths of target and draft in plain torch: training needs gradients, which vLLM does not give.

Weights are dictionaries with the names of each model's ``model.safetensors``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch.nn import functional

from pytest_laguna.engine.tiny_pair import shape

Weights = Mapping[str, torch.Tensor]
ROPE_HALF = 2


def rms_norm(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Root-mean-square norm over the last dimension."""
    return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + shape.EPSILON) * weight


def rotary_table(positions: int, *, full: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of shape [positions, rotated dimensions] for a full or a sliding layer."""
    rope = shape.FULL_ROPE if full else shape.SLIDING_ROPE
    dimensions = int(shape.HEAD * float(rope["partial_rotary_factor"]))
    exponents = torch.arange(0, dimensions, 2).float() / dimensions
    angles = torch.arange(positions).float()[:, None] / float(rope["rope_theta"]) ** exponents
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(values: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary embedding of the leading dimensions of each head; values [..., positions, head]."""
    cosine, sine = table
    size = cosine.shape[-1]
    rotated, rest = values[..., :size], values[..., size:]
    half = size // ROPE_HALF
    turned = torch.cat([-rotated[..., half:], rotated[..., :half]], -1)
    return torch.cat([rotated * cosine + turned * sine, rest], -1)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Grouped-query attention; query [batch, heads, queries, head], key and value [batch, KV heads, keys, head]."""
    group = query.shape[1] // key.shape[1]
    return functional.scaled_dot_product_attention(
        query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1), attn_mask=mask
    )


def gated_mlp(values: torch.Tensor, weights: Weights, prefix: str) -> torch.Tensor:
    """SiLU-gated MLP with the three projections under a prefix."""
    gate = functional.silu(functional.linear(values, weights[f"{prefix}gate_proj.weight"]))
    up = functional.linear(values, weights[f"{prefix}up_proj.weight"])
    return functional.linear(gate * up, weights[f"{prefix}down_proj.weight"])


def _split_heads(values: torch.Tensor, count: int) -> torch.Tensor:
    return values.view(*values.shape[:-1], count, shape.HEAD).transpose(1, 2)


def _merge_gated(attended: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Softplus gate for every head, then heads side by side; attended [batch, heads, positions, head]."""
    return (attended.transpose(1, 2) * functional.softplus(gate).unsqueeze(-1)).flatten(-2)


def causal_mask(positions: int, window: int | None) -> torch.Tensor:
    """Boolean [positions, positions]: which keys (columns) a query (row) sees."""
    index = torch.arange(positions)
    mask = index[None] <= index[:, None]
    return mask if window is None else mask & (index[:, None] - index[None] < window)


def target_forward(
    weights: Weights,
    token_ids: torch.Tensor,
    *,
    layers: Sequence[int] = range(shape.LAYERS),
    taps: Collection[int] = (),
    disturb: Callable[[int, torch.Tensor], torch.Tensor] = lambda _layer, residual: residual,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits of the target, and its residual stream after the layers in ``taps``.

    Args:
        weights: of the target, in float32.
        token_ids: [batch, positions].
        layers: the layers to run, by their index in the 48.
        taps: those of the layers whose residual stream is kept.
        disturb: called with every layer's index and output; returns the next layer's input.

    Returns:
        Logits [batch, positions, vocabulary], and a residual stream [batch, positions, hidden] for each tap.
    """
    positions = token_ids.shape[1]
    tables = {full: rotary_table(positions, full=full) for full in (True, False)}
    masks = {True: causal_mask(positions, None), False: causal_mask(positions, shape.WINDOW)}
    residual = weights["model.embed_tokens.weight"][token_ids]
    tapped = []
    for layer in layers:
        full = shape.is_full(layer)
        residual = _target_layer(weights, layer, residual, tables[full], masks[full])
        if layer in taps:
            tapped.append(residual)
        residual = disturb(layer, residual)
    logits = functional.linear(rms_norm(residual, weights["model.norm.weight"]), weights["lm_head.weight"])
    return logits, tapped


def _target_layer(
    weights: Weights,
    layer: int,
    residual: torch.Tensor,
    table: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor,
) -> torch.Tensor:
    prefix = f"model.layers.{layer}."
    heads = shape.heads(layer)
    hidden = rms_norm(residual, weights[f"{prefix}input_layernorm.weight"])

    def project(name: str) -> torch.Tensor:
        return functional.linear(hidden, weights[f"{prefix}self_attn.{name}.weight"])

    query = rms_norm(_split_heads(project("q_proj"), heads), weights[f"{prefix}self_attn.q_norm.weight"])
    key = rms_norm(_split_heads(project("k_proj"), shape.KV_HEADS), weights[f"{prefix}self_attn.k_norm.weight"])
    value = _split_heads(project("v_proj"), shape.KV_HEADS)
    attended = attention(rotate(query, table), rotate(key, table), value, mask)
    merged = _merge_gated(attended, project("g_proj"))
    residual = residual + functional.linear(merged, weights[f"{prefix}self_attn.o_proj.weight"])
    hidden = rms_norm(residual, weights[f"{prefix}post_attention_layernorm.weight"])
    if shape.is_dense(layer):
        return residual + gated_mlp(hidden, weights, f"{prefix}mlp.")
    shared = gated_mlp(hidden, weights, f"{prefix}mlp.shared_expert.")
    return residual + shared + _experts(hidden, weights, f"{prefix}mlp.")


def _experts(hidden: torch.Tensor, weights: Weights, prefix: str) -> torch.Tensor:
    """Compute all experts and weight the unrouted ones by zero, which is cheap with four of them."""
    scores = torch.sigmoid(functional.linear(hidden, weights[f"{prefix}gate.weight"]))
    chosen = scores + weights[f"{prefix}experts.e_score_correction_bias"]
    top = chosen.topk(shape.EXPERTS_PER_TOKEN, -1).indices
    routed = scores * torch.zeros_like(scores).scatter_(-1, top, 1.0)
    routed = shape.ROUTED_SCALING * routed / routed.sum(-1, keepdim=True)
    outputs = [gated_mlp(hidden, weights, f"{prefix}experts.{number}.") for number in range(shape.EXPERTS)]
    return torch.einsum("...eh,...e->...h", torch.stack(outputs, -2), routed)


def draft_forward(
    weights: Weights,
    embedding: torch.Tensor,
    token_ids: torch.Tensor,
    taps: Sequence[torch.Tensor],
    anchors: torch.Tensor,
) -> torch.Tensor:
    """Hidden states of the draft's proposals after each anchor, before the target's head.

    A block is the anchor's token and seven masks at the following positions. Its context is the part of the window
    before the anchor; keys and values of the context come from the target's taps.

    Args:
        weights: of the draft, in float32.
        embedding: the target's, [vocabulary, hidden]; includes the row ``MASK_TOKEN``.
        token_ids: [batch, positions].
        taps: for each tap layer, the target's residual stream [batch, positions, hidden].
        anchors: positions [batch, anchors].

    Returns:
        [batch, anchors, 7, hidden].
    """
    batch, positions = token_ids.shape
    block = shape.DRAFT_TOKENS + 1
    queries = anchors.shape[1] * block
    context = _draft_context(weights, taps)
    block_tokens = torch.full((batch, anchors.shape[1], block), shape.MASK_TOKEN)
    block_tokens[:, :, 0] = token_ids.gather(1, anchors)
    residual = embedding[block_tokens.view(batch, queries)]
    block_positions = (anchors[:, :, None] + torch.arange(block)).view(batch, queries)
    mask = _draft_mask(block_positions, anchors.repeat_interleave(block, 1), positions)
    cosine, sine = rotary_table(positions + block, full=False)
    block_table = cosine[block_positions][:, None], sine[block_positions][:, None]
    context_table = cosine[:positions], sine[:positions]
    for layer in range(shape.DRAFT_LAYERS):
        residual = _draft_layer(weights, layer, residual, context, (block_table, context_table), mask)
    hidden = rms_norm(residual, weights["norm.weight"])
    return hidden.view(batch, anchors.shape[1], block, shape.HIDDEN)[:, :, 1:]


def _draft_context(weights: Weights, taps: Sequence[torch.Tensor]) -> torch.Tensor:
    normed = [rms_norm(tap, weights[f"aux_hidden_norms.{number}.weight"]) for number, tap in enumerate(taps)]
    joined = functional.linear(torch.cat(normed, -1), weights["fc.weight"])
    return rms_norm(joined, weights["hidden_norm.weight"])


def _draft_mask(positions: torch.Tensor, anchors: torch.Tensor, context: int) -> torch.Tensor:
    """Boolean [batch, 1, queries, context + queries]: earlier context in the window, and the own block causally."""
    queries = positions.shape[1]
    index = torch.arange(context)
    sees_context = (index < anchors[..., None]) & (positions[..., None] - index < shape.WINDOW)
    number = torch.arange(queries)
    own = number // (shape.DRAFT_TOKENS + 1)
    sees_block = (own[:, None] == own[None]) & (number[None] <= number[:, None])
    return torch.cat([sees_context, sees_block.expand(positions.shape[0], queries, queries)], -1)[:, None]


def _draft_layer(  # noqa: PLR0913, PLR0917
    weights: Weights,
    layer: int,
    residual: torch.Tensor,
    context: torch.Tensor,
    tables: tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    mask: torch.Tensor,
) -> torch.Tensor:
    prefix = f"layers.{layer}."
    block_table, context_table = tables
    input_norm = weights[f"{prefix}input_layernorm.weight"]
    key_norm = weights[f"{prefix}self_attn.k_norm.weight"]
    rows = [shape.SLIDING_HEADS * shape.HEAD, shape.KV_HEADS * shape.HEAD, shape.KV_HEADS * shape.HEAD]
    to_query, to_key, to_value = torch.split(weights[f"{prefix}self_attn.qkv_proj.weight"], rows)
    hidden = rms_norm(residual, input_norm)
    context = rms_norm(context, input_norm)
    query = _split_heads(functional.linear(hidden, to_query), shape.SLIDING_HEADS)
    query = rotate(rms_norm(query, weights[f"{prefix}self_attn.q_norm.weight"]), block_table)
    keys, values = [], []
    for states, table in ((context, context_table), (hidden, block_table)):
        key = rms_norm(_split_heads(functional.linear(states, to_key), shape.KV_HEADS), key_norm)
        keys.append(rotate(key, table))
        values.append(_split_heads(functional.linear(states, to_value), shape.KV_HEADS))
    attended = attention(query, torch.cat(keys, 2), torch.cat(values, 2), mask)
    gate = functional.linear(hidden, weights[f"{prefix}self_attn.g_proj.weight"])
    merged = _merge_gated(attended, gate)
    residual = residual + functional.linear(merged, weights[f"{prefix}self_attn.o_proj.weight"])
    hidden = rms_norm(residual, weights[f"{prefix}post_attention_layernorm.weight"])
    return residual + gated_mlp(hidden, weights, f"{prefix}mlp.")
