# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gates import vllm_classes as support

# isort: split
# After the support module, which imports vLLM with its warnings off.
from laguna_kv.contract import Contract, load_validator
from laguna_kv.settings import Validator
from laguna_kv.views import Views, build_views

MakeContract = Callable[[torch.Tensor, Views, int, str], Contract]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """vLLM runs a model in inference mode, and in-place changes of views are legal only there."""
    with torch.inference_mode():
        yield


@pytest.fixture(params=list(Validator))
def validator(request: pytest.FixtureRequest) -> Validator:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def make_contract(validator: Validator) -> MakeContract:
    return load_validator(validator)


@pytest.fixture
def build(make_contract: MakeContract) -> Callable[[torch.Tensor], Contract]:
    def build(cache: torch.Tensor) -> Contract:
        return make_contract(cache, build_views(cache, support.HEAD_SIZE), support.HEAD_SIZE, "layer 7")

    return build


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> support.Recorded:
    """The registered engine's environment and reference kernels under vLLM's attention classes."""
    support.set_engine_environment(monkeypatch)
    return support.install_kernels(monkeypatch)


@pytest.fixture
def config(engine: support.Recorded) -> Any:
    del engine
    return support.registered_engine()
