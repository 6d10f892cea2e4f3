# SPDX-License-Identifier: Apache-2.0
"""The attention digest: over real rows only, in the order of the calls."""

from __future__ import annotations

import hashlib
import types
from typing import Any

import pytest
import torch

from pytest_laguna.engine.attention_watch import AttentionWatch


class Implementation:
    def forward(self, *inputs: Any, output: Any) -> Any:
        _layer, query, _key, _value, _kv_cache, metadata = inputs
        output[: metadata.num_actual_tokens] = query[: metadata.num_actual_tokens] * 2
        return output


def layers(count: int) -> list[types.SimpleNamespace]:
    return [types.SimpleNamespace(impl=Implementation()) for _ in range(count)]


def call(layer: Any, query: torch.Tensor, tokens: int, padding: float) -> None:
    output = torch.full_like(query, padding)
    returned = layer.impl.forward(
        layer, query, None, None, None, types.SimpleNamespace(num_actual_tokens=tokens), output=output
    )
    assert returned is output


QUERY = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


def digest(*calls: tuple[torch.Tensor, int], padding: float = 0.0) -> AttentionWatch:
    watched = layers(1)
    watch = AttentionWatch(watched)
    for query, tokens in calls:
        call(watched[0], query, tokens, padding)
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
    watch = AttentionWatch(watched)
    call(other[0], QUERY, 2, 0.0)
    assert watch.calls == 0
    for layer in watched:
        call(layer, QUERY, 2, 0.0)
    assert (watch.calls, watch.layers) == (2, 2)


def test_rows_that_are_strided_in_memory_are_read_as_they_are() -> None:
    watch, same = AttentionWatch([]), AttentionWatch([])
    watch.add(QUERY.transpose(0, 1), 2)
    same.add(QUERY.transpose(0, 1).contiguous(), 2)
    assert watch.sha256 == same.sha256
