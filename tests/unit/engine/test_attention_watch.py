# SPDX-License-Identifier: Apache-2.0
"""The attention digest: over real rows only, in the order of the calls; and the views that a kernel is handed."""

from __future__ import annotations

import hashlib
import types
from typing import Any

import pytest
import torch

from pytest_laguna.engine.attention_watch import AttentionWatch, Signatures, signed


class Implementation:
    """Hands its kernel, which it looks up at each call as vLLM does, the two tensors that it gets as its cache."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels

    def forward(self, *inputs: Any, output: Any) -> Any:
        _layer, query, _key, _value, (keys, values), metadata = inputs
        rows = slice(metadata.num_actual_tokens)
        output[rows] = self.kernels.flash_attn_varlen_func(q=query[rows], k=keys, v=values)
        return output


def kernel_module() -> types.SimpleNamespace:
    def flash_attn_varlen_func(*, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if v is k:
            raise RuntimeError("the kernel failed")
        return q * 2

    return types.SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)


KERNELS = kernel_module()
CACHE = (torch.zeros(4, 2), torch.zeros(4, 2))


def layers(count: int, kernels: Any = KERNELS) -> dict[str, types.SimpleNamespace]:
    return {f"layer {number}": types.SimpleNamespace(impl=Implementation(kernels)) for number in range(count)}


def call(layer: Any, query: torch.Tensor, tokens: int, padding: float, cache: Any = CACHE) -> None:
    output = torch.full_like(query, padding)
    returned = layer.impl.forward(
        layer, query, None, None, cache, types.SimpleNamespace(num_actual_tokens=tokens), output=output
    )
    assert returned is output


QUERY = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


def digest(*calls: tuple[torch.Tensor, int], padding: float = 0.0) -> AttentionWatch:
    watched = layers(1)
    watch = AttentionWatch(watched, KERNELS)
    for query, tokens in calls:
        call(watched["layer 0"], query, tokens, padding)
    return watch


def test_the_digest_is_sha256_over_the_real_rows() -> None:
    watch = digest((QUERY, 3), (QUERY, 1))
    rows = torch.cat([QUERY[:3], QUERY[:1]]) * 2
    assert watch.sha256 == hashlib.sha256(rows.view(torch.uint8).numpy().tobytes()).hexdigest()
    assert (watch.calls, watch.layers) == (2, 1)


def test_padding_rows_do_not_count() -> None:
    assert digest((QUERY, 3), padding=0.0).sha256 == digest((QUERY, 3), padding=5.0).sha256


@pytest.mark.parametrize("bit", [0, 7])
def test_one_bit_changes_the_digest(bit: int) -> None:
    changed = QUERY.clone()
    changed.view(torch.uint8)[2, 1, 3] ^= 1 << bit
    assert digest((changed, 3)).sha256 != digest((QUERY, 3)).sha256
    assert digest((changed, 2)).sha256 == digest((QUERY, 2)).sha256


def test_order_and_number_of_calls_count() -> None:
    other = QUERY + 1
    assert digest((QUERY, 2), (other, 2)).sha256 != digest((other, 2), (QUERY, 2)).sha256
    assert digest((QUERY, 2)).sha256 != digest((QUERY, 2), (QUERY, 2)).sha256


def test_only_the_layers_given_are_watched() -> None:
    watched, other = layers(2), layers(1)
    watch = AttentionWatch(watched, KERNELS)
    call(other["layer 0"], QUERY, 2, 0.0)
    assert (watch.calls, watch.handed) == (0, {})
    for layer in watched.values():
        call(layer, QUERY, 2, 0.0)
    assert (watch.calls, watch.layers) == (2, 2)


def test_rows_that_are_strided_in_memory_are_read_as_they_are() -> None:
    watch, same = AttentionWatch({}, KERNELS), AttentionWatch({}, KERNELS)
    watch.add(QUERY.transpose(0, 1), 2)
    same.add(QUERY.transpose(0, 1).contiguous(), 2)
    assert watch.sha256 == same.sha256


def seen(calls: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[int, int, int]:
    kernels = kernel_module()
    watched = layers(2, kernels)
    watch = AttentionWatch(watched, kernels)
    for cache in calls:
        call(watched["layer 1"], QUERY, 2, 0.0, cache)
    assert watch.handed.keys() == {"layer 1"}
    handed = watch.handed["layer 1"]
    return handed.calls, handed.same_objects, len(handed.geometries)


def test_the_same_two_tensors_are_told_from_equal_ones() -> None:
    key, value = CACHE
    assert seen([CACHE] * 3) == (3, 3, 1)
    assert seen([(key, value), (key, value)]) == (2, 2, 1), "the tensors count, and not what carries them"
    assert seen([CACHE, (key.view(4, 2), value), (key, value.view(4, 2))]) == (3, 1, 1)
    assert seen([(key.view(4, 2), value.view(4, 2)) for _ in range(20)]) == (20, 1, 1), "no identity is used again"


@pytest.mark.parametrize(
    "change",
    [lambda t: t.clone(), lambda t: t[:3], lambda t: t.as_strided((4, 2), (1, 2))],
    ids=["address", "shape", "stride"],
)
@pytest.mark.parametrize("part", [0, 1])
def test_another_address_shape_or_stride_is_another_geometry(change: Any, part: int) -> None:
    other = list(CACHE)
    other[part] = change(other[part])
    assert seen([CACHE, (other[0], other[1]), CACHE]) == (3, 2, 2)


def test_a_kernel_call_that_fails_leaves_no_layer_behind() -> None:
    kernels = kernel_module()
    watched = layers(1, kernels)
    watch = AttentionWatch(watched, kernels)
    with pytest.raises(RuntimeError, match="the kernel failed"):
        call(watched["layer 0"], QUERY, 2, 0.0, (CACHE[0], CACHE[0]))
    kernels.flash_attn_varlen_func(q=QUERY, k=CACHE[0], v=CACHE[1])  # the draft's, or anybody's
    assert (watch.calls, watch.handed["layer 0"].calls) == (0, 1)


def signatures(*calls: dict[str, Any]) -> Signatures:
    taken = Signatures()
    for keywords in calls:
        taken.add((), keywords)
    return taken


ARGUMENTS = {"q": QUERY, "k": CACHE[0], "max_seqlen_k": 9, "window_size": (63, 0), "causal": True, "alibi": None}


@pytest.mark.parametrize(
    ("name", "value", "distinct"),
    [
        ("q", QUERY[:3], 2),
        ("q", QUERY.transpose(0, 1), 2),
        ("q", QUERY.half(), 2),
        ("q", torch.empty(5, 2, 8, dtype=torch.bfloat16)[1:], 2),
        ("max_seqlen_k", 10, 1),
        ("window_size", (62, 0), 1),
        ("causal", False, 1),
        ("alibi", QUERY, 2),
    ],
    ids=["shape", "strides", "type", "offset", "number", "in a tuple", "switch", "none"],
)
def test_another_argument_is_another_signature(name: str, value: Any, distinct: int) -> None:
    same, other = signatures(ARGUMENTS, ARGUMENTS), signatures(ARGUMENTS, ARGUMENTS | {name: value})
    assert (same.calls, len(same.tensors), len(other.tensors)) == (2, 1, distinct)
    assert same.sha256 != other.sha256


def test_addresses_contents_and_the_order_of_names_do_not_sign() -> None:
    moved = {name: ARGUMENTS[name] for name in reversed(ARGUMENTS)} | {"q": QUERY.clone() + 1}
    assert signatures(ARGUMENTS).sha256 == signatures(moved).sha256
    assert signatures(ARGUMENTS, moved).calls == 2


def test_what_is_no_value_signs_by_its_type() -> None:
    assert signed(types.SimpleNamespace(a=1)) == "types.SimpleNamespace"


def test_arguments_by_place_sign_too() -> None:
    taken = Signatures()
    taken.add((QUERY,), {})
    assert taken.sha256 not in {signatures({}).sha256, signatures({"q": QUERY}).sha256}


def test_signatures_are_kept_by_layer() -> None:
    kernels = kernel_module()
    watched = layers(2, kernels)
    watch = AttentionWatch(watched, kernels)
    call(watched["layer 1"], QUERY, 2, 0.0)
    assert {layer: taken.calls for layer, taken in watch.signatures.items()} == {"layer 1": 1}
