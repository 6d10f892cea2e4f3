# SPDX-License-Identifier: Apache-2.0
"""What the legacy Intel stack is; ``make test-legacy`` runs this and the contract's own tests in its environment."""

from __future__ import annotations

import importlib
import importlib.metadata

import pytest
import torch

from laguna_kv.contract import load_validator, python_contract
from laguna_kv.errors import SettingError
from laguna_kv.settings import Validator

EXTENSION = "intel-extension-for-pytorch"


def test_torch_and_the_extension_are_one_release() -> None:
    extension = importlib.import_module("intel_extension_for_pytorch")
    assert torch.__version__.partition("+")[0] == "2.8.0"
    assert extension.__version__.partition("+")[0] == importlib.metadata.version(EXTENSION).partition("+")[0] == "2.8.0"


def test_the_native_check_says_that_it_needs_a_newer_torch() -> None:
    with pytest.raises(SettingError, match=r"or set LAGUNA_KV_VALIDATOR=python$"):
        load_validator(Validator.NATIVE)
    assert load_validator(Validator.PYTHON) is python_contract
