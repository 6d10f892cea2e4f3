# SPDX-License-Identifier: Apache-2.0
"""What stands in front of the two kernels sees every call, its two aliases and its operators, and changes nothing."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from pytest_laguna.engine.kernel_watch import ATTENTION, UPDATE, KernelWatch

CACHE = torch.arange(24.0).reshape(2, 3, 4)


def kernel_module() -> types.ModuleType:
    module = types.ModuleType("kernels")

    def flash_attn_varlen_func(*, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q * k.sum(), -1) + v.sum()

    def reshape_and_cache_flash(
        key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
    ) -> None:
        key_cache.copy_(key)
        value_cache.copy_(value)

    vars(module).update({ATTENTION: flash_attn_varlen_func, UPDATE: reshape_and_cache_flash})
    return module


def attend(kernels: Any, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = kernels.flash_attn_varlen_func(q=torch.ones(2), k=key, v=value)
    return result


def test_the_same_two_tensors_are_the_same_and_equal_ones_are_not() -> None:
    kernels = kernel_module()
    watch = KernelWatch(kernels)
    stored = CACHE[:, :1], CACHE[:, 1:]
    with watch.of("on"):
        for _ in range(3):
            attend(kernels, *stored)
    with watch.of("off"):
        for _ in range(3):
            attend(kernels, CACHE[:, :1], CACHE[:, 1:])
    on, off = watch.calls("on", ATTENTION), watch.calls("off", ATTENTION)
    assert (on.calls, on.same_objects, on.places) == (3, 3, 1)
    assert (off.calls, off.same_objects, off.places) == (3, 1, 1)
    assert (on.key, on.value) == (off.key, off.value)
    assert (on.value.shape, on.value.stride, on.value.offset, on.value.dtype) == (
        [2, 2, 4],
        [12, 4, 1],
        4,
        "torch.float32",
    )


def test_one_kept_and_one_new_alias_are_not_the_same() -> None:
    kernels = kernel_module()
    watch = KernelWatch(kernels)
    key = CACHE[:, :1]
    with watch.of("layer"):
        attend(kernels, key, CACHE[:, 1:])
        attend(kernels, key, CACHE[:, 1:])
    assert watch.calls("layer", ATTENTION).same_objects == 1


def test_another_place_is_counted() -> None:
    kernels = kernel_module()
    watch = KernelWatch(kernels)
    with watch.of("layer"):
        attend(kernels, CACHE[:, :1], CACHE[:, 1:])
        attend(kernels, CACHE[:, 1:2], CACHE[:, 1:])
    assert watch.calls("layer", ATTENTION).places == 2


def test_results_and_operators_are_the_kernels_own() -> None:
    kernels = kernel_module()
    expected = attend(kernels, CACHE[0], CACHE[1])
    watch = KernelWatch(kernels)
    with watch.of("layer"):
        assert torch.equal(attend(kernels, CACHE[0], CACHE[1]), expected)
        attend(kernels, CACHE[0], CACHE[1])
    operators = watch.calls("layer", ATTENTION).operators
    assert operators["aten::sum"] == 4
    assert sum(count for name, count in operators.items() if "softmax" in name) >= 2
    assert "aten::copy_" not in operators


def test_the_update_is_seen_by_position() -> None:
    kernels = kernel_module()
    watch = KernelWatch(kernels)
    cache = torch.zeros(2, 2)
    with watch.of("layer"):
        vars(kernels)[UPDATE](torch.ones(2), torch.ones(2) * 2, cache[0], cache[1])
    assert cache.tolist() == [[1, 1], [2, 2]]
    seen = watch.calls("layer", UPDATE)
    assert (seen.key.offset, seen.value.offset, seen.operators) == (0, 2, {"aten::copy_": 2})


def test_a_kernel_that_was_never_called_is_an_error() -> None:
    kernels = kernel_module()
    watch = KernelWatch(kernels)
    with watch.of("layer"):
        attend(kernels, CACHE[0], CACHE[1])
    with pytest.raises(RuntimeError, match="seen no call; expected attention to run through it"):
        watch.calls("layer", UPDATE)
    with pytest.raises(RuntimeError, match="seen no call"):
        watch.calls("another layer", ATTENTION)


def test_a_platform_without_a_kernel_is_an_error() -> None:
    """vLLM's module has the names on some platforms only: the harness defect of the first published attempt."""
    kernels = kernel_module()
    del vars(kernels)[UPDATE]
    with pytest.raises(
        RuntimeError, match="kernels: seen no reshape_and_cache_flash, which vLLM imports for some platforms"
    ):
        KernelWatch(kernels)
