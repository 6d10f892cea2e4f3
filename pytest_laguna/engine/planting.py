# SPDX-License-Identifier: Apache-2.0
"""Defects planted into the candidate's code on purpose, to test that a gate catches each, and in the right place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from laguna_kv import state, views
from laguna_kv.contract import Contract
from laguna_kv.seam import Seam
from pytest_laguna.evidence.arms.arm_record import Planted

Distort = Callable[[torch.Tensor], torch.Tensor]


def plant(planted: Planted) -> None:
    """Plant a defect in this process, before the candidate's first use."""
    distort = _DISTORTIONS.get(planted)
    if distort is None:
        return
    if planted in {Planted.WRONG_OFFSET, Planted.WRONG_STRIDE}:
        _before_the_contract(distort)
    else:
        _behind_the_contract(distort)


def _late_by_one_element(key: torch.Tensor) -> torch.Tensor:
    return key.as_strided(key.shape, key.stride(), key.storage_offset() + 1)


def _token_stride_too_large(key: torch.Tensor) -> torch.Tensor:
    block, token, head, element = key.stride()
    return key.as_strided(key.shape, (block, token + 1, head, element), key.storage_offset())


_DISTORTIONS = {
    Planted.WRONG_OFFSET: _late_by_one_element,
    Planted.WRONG_STRIDE: _token_stride_too_large,
    Planted.UNCHECKED_WRONG_OFFSET: _late_by_one_element,
    Planted.UNCHECKED_WRONG_STRIDE: _token_stride_too_large,
}


def _before_the_contract(distort: Distort) -> None:
    """Give every state a wrong canonical key, for the contract to refuse."""
    build_views = views.build_views

    def build_wrong_views(kv_cache: torch.Tensor, head_size: int) -> views.Views:
        built = build_views(kv_cache, head_size)
        return built._replace(canonical_key=distort(built.canonical_key))

    views.build_views = build_wrong_views


def _behind_the_contract(distort: Distort) -> None:
    """Give the attention kernel a wrong key, although every state is right and checked."""
    build = state.ViewState.build

    def build_betrayed(self: state.ViewState, kv_cache: torch.Tensor, head_size: int) -> Contract:
        contract = build(self, kv_cache, head_size)
        key, value = contract.canonical.views
        betrayed: Any = _Betrayed(contract, Seam((distort(key), value), head_size, self.owner))
        self.contract = betrayed
        return self.contract

    state.ViewState.build = build_betrayed  # type: ignore[method-assign]


class _Betrayed:
    """A contract with correct checks and another key in its forward."""

    def __init__(self, contract: Contract, wrong: Seam) -> None:
        self._contract = contract
        self._wrong = wrong

    def __getattr__(self, name: str) -> Any:
        return getattr(self._contract, name)

    def forward(self, source: torch.Tensor, /) -> Seam:
        self._contract.forward(source)
        return self._wrong
