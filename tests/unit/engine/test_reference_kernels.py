# SPDX-License-Identifier: Apache-2.0
"""The reference kernels against torch's own attention and against plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from pytest_laguna.engine.reference_kernels import (
    flash_attn_varlen_func,
    reshape_and_cache_flash,
    sigmoid_top_k,
    stacked_rms_norm,
)

BLOCK = 4
HEAD = 16
SCALE = HEAD**-0.5


def paged_cache(blocks: int, heads: int, seed: int = 0) -> torch.Tensor:
    """As vLLM lays it out: [blocks, heads, tokens of a block, key and value], tokens before heads in memory."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(blocks, BLOCK, heads, 2 * HEAD, generator=generator).transpose(1, 2)


def views(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    key, value = cache.transpose(1, 2).split(HEAD, dim=-1)
    return key, value


def attend(q: torch.Tensor, cache: torch.Tensor, tables: list[list[int]], lengths: list[int], **more: Any) -> Any:
    """One sequence for each table; all sequences have as many query tokens."""
    key, value = views(cache)
    each = q.shape[0] // len(tables)
    arguments: dict[str, Any] = {
        "q": q,
        "k": key,
        "v": value,
        "out": torch.empty_like(q),
        "cu_seqlens_q": torch.arange(len(tables) + 1, dtype=torch.int32) * each,
        "max_seqlen_q": each,
        "seqused_k": torch.tensor(lengths, dtype=torch.int32),
        "max_seqlen_k": max(lengths),
        "softmax_scale": SCALE,
        "causal": True,
        "block_table": torch.tensor(tables, dtype=torch.int32),
    }
    return flash_attn_varlen_func(**(arguments | more))


def dense(cache: torch.Tensor, table: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one sequence, [heads, tokens, head]."""
    rows = [cache[table[token // BLOCK], :, token % BLOCK] for token in range(length)]
    key, value = torch.stack(rows, 1).split(HEAD, -1)
    return key, value


def expected(q: torch.Tensor, cache: torch.Tensor, table: list[int], length: int, hidden: torch.Tensor) -> torch.Tensor:
    key, value = dense(cache, table, length)
    group = q.shape[1] // key.shape[0]
    attended = functional.scaled_dot_product_attention(
        q.transpose(0, 1), key.repeat_interleave(group, 0), value.repeat_interleave(group, 0), ~hidden, scale=SCALE
    )
    return attended.transpose(0, 1)


def hidden_keys(queries: int, length: int, before: int, after: int) -> torch.Tensor:
    hidden = torch.zeros(queries, length, dtype=torch.bool)
    for row in range(queries):
        position = length - queries + row
        for key in range(length):
            hidden[row, key] = (before >= 0 and key < position - before) or (after >= 0 and key > position + after)
    return hidden


@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (6, 2), (3, 1)])
@pytest.mark.parametrize("tokens", [(1, 1), (1, 11), (8, 11), (8, 8), (13, 13)])
@pytest.mark.parametrize(
    ("asked", "hides"),
    [
        ({"causal": True, "window_size": None}, (-1, 0)),
        ({"causal": False, "window_size": None}, (-1, -1)),
        ({"causal": True, "window_size": [5, 0]}, (5, 0)),
        ({"causal": True, "window_size": [3, 3]}, (3, 0)),
        ({"causal": False, "window_size": [2, 1]}, (2, 1)),
        ({"causal": False, "window_size": [-1, 0]}, (-1, 0)),
    ],
)
def test_attention_is_torchs_own(
    heads: tuple[int, int], tokens: tuple[int, int], asked: dict[str, Any], hides: tuple[int, int]
) -> None:
    query_heads, kv_heads = heads
    queries, length = tokens
    cache = paged_cache(9, kv_heads)
    table = [7, 2, 5, 1]
    q = torch.randn(queries, query_heads, HEAD, generator=torch.Generator().manual_seed(1))
    seen = attend(q, cache, [table], [length], **asked)
    wanted = expected(q, cache, table, length, hidden_keys(queries, length, *hides))
    torch.testing.assert_close(seen, wanted, rtol=1e-5, atol=1e-5)


def test_each_sequence_has_its_own_blocks_and_length() -> None:
    cache = paged_cache(9, 2)
    q = torch.randn(6, 4, HEAD, generator=torch.Generator().manual_seed(2))
    tables, lengths = [[3, 1, 0], [8, 4, 6]], [5, 12]
    seen = attend(q, cache, tables, lengths)
    for number, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        rows = slice(3 * number, 3 * number + 3)
        wanted = expected(q[rows], cache, table, length, hidden_keys(3, length, -1, 0))
        torch.testing.assert_close(seen[rows], wanted, rtol=1e-5, atol=1e-5)


def test_blocks_that_the_window_has_left_are_not_read() -> None:
    cache = paged_cache(9, 2)
    q = torch.randn(2, 4, HEAD, generator=torch.Generator().manual_seed(3))
    before = attend(q, cache, [[7, 2, 5, 1]], [14], window_size=[4, 0])
    cache[[7, 0]] = torch.nan
    after = attend(q, cache, [[0, 2, 5, 1]], [14], window_size=[4, 0])
    assert torch.equal(before, after)


def test_output_is_written_in_place_in_the_outputs_type_and_padding_is_left_alone() -> None:
    cache = paged_cache(9, 2).to(torch.bfloat16)
    q = torch.randn(5, 4, HEAD).to(torch.bfloat16)
    out = torch.full((8, 4, HEAD), 7.0, dtype=torch.bfloat16)
    returned = attend(q, cache, [[1, 2]], [6], out=out[:5])
    assert returned.data_ptr() == out.data_ptr()
    assert bool((out[5:] == 7.0).all())
    wanted = expected(q.float(), cache.float(), [1, 2], 6, hidden_keys(5, 6, -1, 0))
    torch.testing.assert_close(out[:5].float(), wanted, rtol=1e-2, atol=1e-2)


def test_a_view_of_wrong_offset_or_stride_gives_other_output() -> None:
    cache = paged_cache(9, 2)
    q = torch.randn(1, 4, HEAD)
    key, _ = views(cache)
    right = attend(q, cache, [[1, 2]], [6])
    late = key.as_strided(key.shape, key.stride(), key.storage_offset() + 1)
    block, token, head, element = key.stride()
    skewed = key.as_strided(key.shape, (block, token + 1, head, element), key.storage_offset())
    for wrong in (late, skewed):
        assert not torch.equal(attend(q, cache, [[1, 2]], [6], k=wrong), right)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alibi_slopes", torch.ones(1)),
        ("softcap", 30.0),
        ("scheduler_metadata", torch.ones(1)),
        ("fa_version", 3),
        ("dynamic_causal", torch.ones(1)),
        ("s_aux", torch.ones(1)),
        ("mask_mod", print),
        ("aux_tensors", [torch.ones(1)]),
    ],
)
def test_what_the_kernel_does_not_do_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(NotImplementedError, match=name):
        attend(torch.randn(1, 2, HEAD), paged_cache(2, 2), [[1]], [1], **{name: value})


def write(cache: torch.Tensor, new: torch.Tensor, slots: list[int], kv_cache_dtype: str = "auto") -> None:
    key, value = views(cache)
    one = torch.ones(1)
    reshape_and_cache_flash(new[..., :HEAD], new[..., HEAD:], key, value, torch.tensor(slots), kv_cache_dtype, one, one)


def test_tokens_land_in_their_slots_and_nothing_else_changes() -> None:
    cache = paged_cache(5, 2)
    new = torch.randn(4, 2, 2 * HEAD)
    wanted = cache.clone()
    for row, slot in enumerate([9, 4, 19]):
        wanted[slot // BLOCK, :, slot % BLOCK] = new[row]
    write(cache, new, [9, 4, 19])  # the fourth row is padding
    assert torch.equal(cache, wanted)


def test_a_token_without_a_slot_changes_nothing() -> None:
    cache = paged_cache(5, 2)
    new = torch.randn(4, 2, 2 * HEAD)
    wanted = cache.clone()
    wanted[2, :, 1] = new[1]
    write(cache, new, [-1, 9, -1, -1])
    assert torch.equal(cache, wanted)


def test_a_quantized_cache_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="'fp8'"):
        write(paged_cache(2, 2), torch.randn(1, 2, 2 * HEAD), [1], "fp8")


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_sigmoid_routing(renormalize: bool, biased: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(6, 5, generator=generator).to(torch.bfloat16)
    bias = torch.randn(5, generator=generator) if biased else None
    weights, experts = sigmoid_top_k(
        logits, 2, renormalize=renormalize, routed_scaling_factor=2.5, correction_bias=bias
    )
    assert (weights.dtype, experts.dtype) == (torch.float32, torch.int32)
    assert weights.is_contiguous()
    assert experts.is_contiguous()
    for row, chosen in enumerate(experts.tolist()):
        scores = [float(score) for score in logits[row].float().sigmoid()]
        ranked = [score + (float(bias[expert]) if bias is not None else 0) for expert, score in enumerate(scores)]
        assert set(chosen) == set(sorted(range(5), key=lambda expert: -ranked[expert])[:2])
        total = sum(scores[expert] for expert in chosen) if renormalize else 1.0
        wanted = [2.5 * scores[expert] / total for expert in chosen]
        assert weights[row].tolist() == pytest.approx(wanted, rel=1e-6)


def rms_norm_of_one_layer(out: torch.Tensor, input_: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> None:
    """Like the CPU kernel: it reads rows one after another in memory, and one weight."""
    assert input_.is_contiguous()
    normed = input_ * torch.rsqrt(input_.pow(2).mean(-1, keepdim=True) + epsilon)
    out.copy_(normed if weight is None else normed * weight.flatten()[: input_.shape[-1]])


def test_stacked_norms_honour_each_layers_weight_and_an_expanded_input() -> None:
    states = torch.randn(5, 8)
    weight = torch.rand(3, 8) + 1.0
    out = torch.empty(3, 5, 8)
    stacked_rms_norm(rms_norm_of_one_layer)(out, states.unsqueeze(0).expand(3, -1, -1), weight, 1e-6)
    for layer in range(3):
        wanted = functional.rms_norm(states, (8,), weight[layer], 1e-6)
        torch.testing.assert_close(out[layer], wanted)


@pytest.mark.parametrize("weight", [None, torch.rand(8)])
def test_other_norms_go_to_the_kernel_as_they_are(weight: torch.Tensor | None) -> None:
    states, out = torch.randn(5, 8), torch.empty(5, 8)
    stacked_rms_norm(rms_norm_of_one_layer)(out, states, weight, 1e-6)
    torch.testing.assert_close(out, functional.rms_norm(states, (8,), weight, 1e-6))
