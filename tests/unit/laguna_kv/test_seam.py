# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gates.vllm_classes import HEAD_SIZE, make_cache
from laguna_kv.contract import Contract
from laguna_kv.errors import ContractError


@pytest.fixture(params=["raw", "canonical"])
def seam(build: Callable[[torch.Tensor], Contract], request: pytest.FixtureRequest) -> Any:
    return getattr(build(make_cache()), request.param)


def test_the_view_expression_of_vllm_is_answered_with_the_stored_pair(seam: Any) -> None:
    assert seam.transpose(1, 2) is seam
    assert seam.transpose(1, 2).split(HEAD_SIZE, dim=-1) is seam.views


@pytest.mark.parametrize(
    "arguments", [(), (1,), (2, 1), (1, 3), (1, 2, 3), (1.5, 2), ("1", "2"), (torch.ones(9), 2), (2**70, 2)]
)
def test_another_transposition_is_refused(seam: Any, arguments: tuple[Any, ...]) -> None:
    seen = "(" + ", ".join(repr(each) if isinstance(each, int) else type(each).__name__ for each in arguments) + ")"
    with pytest.raises(ContractError) as caught:
        seam.transpose(*arguments)
    assert str(caught.value).startswith("layer 7: ")
    assert (caught.value.field, caught.value.expected, caught.value.seen) == ("seam.transpose", "(1, 2)", seen)


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((64,), {"dim": -1}), ((256,), {"dim": -1}), ((HEAD_SIZE,), {}), ((HEAD_SIZE,), {"dim": 3}),
        ((HEAD_SIZE, -1), {}),
        (([HEAD_SIZE, HEAD_SIZE],), {"dim": -1}), ((), {"dim": -1}), ((HEAD_SIZE,), {"axis": -1}),
    ],
)  # fmt: skip
def test_another_split_is_a_drifted_head_size(seam: Any, arguments: Any, keywords: Any) -> None:
    with pytest.raises(ContractError, match=r"layer 7: .* at seam.split: seen \(.*; expected \(128, dim=-1\)"):
        seam.split(*arguments, **keywords)


@pytest.mark.parametrize("name", ["data_ptr", "shape", "stride", "view", "dtype", "unflatten", "device", "new_use"])
def test_any_other_use_of_the_cache_finds_nothing(seam: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(seam, name)
    with pytest.raises(TypeError):
        seam[0]


def test_a_seam_without_views_gives_none(seam: Any) -> None:
    del seam.views
    with pytest.raises(AttributeError, match="views"):
        seam.transpose(1, 2).split(HEAD_SIZE, dim=-1)


@pytest.mark.parametrize("name", ["owner", "head_size"])
def test_the_native_seam_is_made_of_a_pair_and_keeps_its_facts(name: str) -> None:
    from laguna_kv import _contract

    for views in [(), (1,), (1, 2, 3), [1, 2], None]:
        with pytest.raises((TypeError, ValueError)):
            _contract.Seam(views, HEAD_SIZE, "layer 7")  # type: ignore[arg-type]
    seam: Any = _contract.Seam((1, 2), HEAD_SIZE, "layer 7")  # type: ignore[arg-type]
    with pytest.raises((AttributeError, TypeError)):
        setattr(seam, name, 64)
    with pytest.raises(TypeError):
        _contract.Seam.split = None  # type: ignore[assignment, method-assign]
