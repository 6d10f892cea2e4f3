# SPDX-License-Identifier: Apache-2.0
"""What stands before vLLM's canonicalisation helper: it answers for what a native contract has just checked."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from gates.vllm_classes import HEAD_SIZE, make_cache

# isort: split
# After the support module, which imports vLLM with its warnings off.
from vllm.v1.attention.backends import flash_attn

from laguna_kv import _contract
from laguna_kv.contract import Contract, load_validator
from laguna_kv.errors import ContractError
from laguna_kv.settings import Validator
from laguna_kv.views import build_views

GEOMETRIES: dict[str, dict[str, Any]] = {
    "record": {"blocks": 256},
    "one local head": {"kv_heads": 1},
    "one block, HND": {"blocks": 1, "layout": "HND"},
}


def native(cache: torch.Tensor) -> Contract:
    return load_validator(Validator.NATIVE)(cache, build_views(cache, HEAD_SIZE), HEAD_SIZE, "layer 7")


class Helper:
    """vLLM's helper as far as the native answer knows it; records what it is asked."""

    def __init__(self) -> None:
        self.asked: list[torch.Tensor] = []

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        self.asked.append(tensor)
        return tensor.as_strided(tensor.shape, tensor.stride())


@pytest.fixture
def helper() -> Helper:
    return Helper()


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_what_a_use_has_checked_is_canonical_without_the_helper_once(geometry: dict[str, Any], helper: Helper) -> None:
    cache = make_cache(**geometry)
    contract = native(cache)
    canonicalize = _contract.Canonicalize(helper)
    for _ in range(2):
        key, value = contract.forward(cache).views
        assert canonicalize(value) is value
        assert canonicalize(key) is key
        assert not helper.asked
    assert canonicalize(key) is not key
    assert helper.asked == [key]


@pytest.mark.parametrize("use", ["none", "update", "refused", "of another layer"])
def test_the_helper_is_asked_for_all_that_no_use_has_checked(use: str, helper: Helper) -> None:
    cache, other = make_cache(kv_heads=1), make_cache(kv_heads=1)
    contract, another = native(cache), native(other)
    canonicalize = _contract.Canonicalize(helper)
    if use == "update":
        contract.update(cache)
    elif use == "refused":
        contract.forward(cache)  # and broken off
        cache.resize_(1, 2, 3, 4)
        with pytest.raises(ContractError):
            contract.forward(cache)
    elif use == "of another layer":
        contract.forward(cache)
        another.forward(other)
    views = [*contract.canonical.views, *contract.raw.views]
    for view in views:
        canonicalize(view)
    assert list(map(id, helper.asked)) == list(map(id, views))


def test_a_raw_alias_with_other_strides_is_canonicalised_by_the_helper(helper: Helper) -> None:
    cache = make_cache(kv_heads=1, layout="HND", blocks=1)
    contract = native(cache)
    contract.forward(cache)
    for alias in contract.raw.views:
        assert _contract.Canonicalize(helper)(alias) is not alias


def test_other_arguments_are_the_helpers_to_refuse(helper: Helper) -> None:
    cache = make_cache()
    key, value = native(cache).forward(cache).views
    canonicalize: Any = _contract.Canonicalize(helper)
    for arguments, named in (((), {}), ((key, value), {}), ((), {"tensor": key, "more": 1})):
        with pytest.raises(TypeError, match="__call__"):
            canonicalize(*arguments, **named)
    assert canonicalize(tensor=key) is not key


@pytest.mark.parametrize("arguments", [(), (3,), (len, len)])
def test_an_answer_stands_before_one_function(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="Canonicalize"):
        _contract.Canonicalize(*arguments)
    with pytest.raises(TypeError, match="seen keyword arguments"):
        _contract.Canonicalize(helper=len)  # type: ignore[call-arg]


def test_a_use_that_was_broken_off_keeps_no_cache_alive() -> None:
    cache = make_cache()
    contract = native(cache)
    gone = [weakref.ref(alias) for alias in contract.forward(cache).views]
    del contract
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_the_answer_stands_before_vllms_helper_once_and_for_the_native_contract_alone(
    monkeypatch: pytest.MonkeyPatch, helper: Helper
) -> None:
    monkeypatch.setattr(flash_attn, "canonicalize_singleton_dim_strides", helper)
    load_validator(Validator.PYTHON)
    assert vars(flash_attn)["canonicalize_singleton_dim_strides"] is helper
    for _ in range(2):
        load_validator(Validator.NATIVE)
        installed = vars(flash_attn)["canonicalize_singleton_dim_strides"]
        assert isinstance(installed, _contract.Canonicalize)
        assert installed.helper is helper
