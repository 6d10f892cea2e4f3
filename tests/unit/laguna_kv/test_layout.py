# SPDX-License-Identifier: Apache-2.0
"""Whether torch's memory is laid out as the native contract reads it, and a torch whose memory is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from laguna_kv import _contract, layout
from laguna_kv.layout import Words


def spoilt(change: Callable[[Words], Words]) -> Callable[[torch.Tensor, int], tuple[Any, ...]]:
    return lambda tensor, storage: change(Words(*_contract.read_words(tensor, storage)))


def test_this_torch_is_known() -> None:
    assert layout.find_words(_contract.read_words)


@pytest.mark.parametrize("geometry", layout.GEOMETRIES)
def test_what_is_tried_is_what_no_other_word_says(geometry: Any) -> None:
    tensor = layout._tensor(*geometry)
    assert (tensor.storage_offset(), tuple(tensor.shape), tensor.stride()) == geometry
    assert (tensor.dtype, tensor.device.type, tensor.untyped_storage().nbytes()) == (torch.int16, "cpu", layout.BYTES)


@pytest.mark.parametrize("default", ["cpu", "meta"])
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_it_is_known_wherever_vllm_asks(mode: Callable[[], Any], default: str) -> None:
    with mode(), torch.device(default):
        assert layout.find_words(_contract.read_words)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("storage", 64),
        ("dimensions", 3),
        *(("shape", (*layout.GEOMETRIES[0][1][:i], 9, *layout.GEOMETRIES[0][1][i + 1 :])) for i in range(4)),
        *(("strides", (*layout.GEOMETRIES[0][2][:i], 9, *layout.GEOMETRIES[0][2][i + 1 :])) for i in range(4)),
        ("storage_offset", 0),
        ("data", 0),
        ("storage_bytes", layout.BYTES + 1),
        ("storage_flags", 0),
    ],
)
def test_a_word_that_says_something_else_is_not_known(field: str, wrong: Any) -> None:
    assert not layout.find_words(spoilt(lambda words: words._replace(**{field: wrong})))


@pytest.mark.parametrize("geometry", range(2))
def test_a_word_that_is_right_by_chance_once_is_not_known(geometry: int) -> None:
    offset = layout.GEOMETRIES[geometry][0]
    assert not layout.find_words(spoilt(lambda words: words._replace(storage_offset=offset)))


def test_data_types_that_are_not_told_apart_are_not_known() -> None:
    assert not layout.find_words(spoilt(lambda words: words._replace(kind=layout.CPU)))


@pytest.mark.parametrize("device", [0, 0x01_0000, 0x01_FF01, 0x00_FF00])
def test_a_device_that_is_elsewhere_is_not_known(device: int) -> None:
    assert not layout.find_words(spoilt(lambda words: words._replace(kind=words.kind & 0xFFFF | device << 16)))


@pytest.mark.parametrize("binding", [(0, 0), (1, 0)])
def test_an_object_that_is_bound_elsewhere_is_not_known(binding: tuple[int, int]) -> None:
    assert not layout.find_words(spoilt(lambda words: words._replace(binding=binding)))


def test_words_that_are_not_always_in_one_place_are_not_known() -> None:
    assert not layout.find_words(spoilt(lambda words: words._replace(at=words.at + words.shape[0])))


def test_a_torch_that_does_not_tell_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.UntypedStorage, "_cdata", property(lambda _storage: "no address"))
    assert not layout.find_words(_contract.read_words)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        ((torch.zeros(1), 0), ValueError),
        ((torch.zeros(1), "address"), TypeError),
        ((None, 64), Exception),
        ((torch.zeros(1), 2**70), OverflowError),
    ],
)
def test_what_is_no_tensor_or_no_address_is_refused(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        _contract.read_words(*arguments)
