# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import pytest

from laguna_kv.errors import SettingError
from laguna_kv.settings import FLAG, LANE, VALIDATOR, Lane, Settings, Validator, read_flag


@pytest.mark.parametrize(("environ", "expected"), [({}, False), ({FLAG: "0"}, False), ({FLAG: "1"}, True)])
def test_the_flag_is_off_unless_it_is_one(environ: dict[str, str], expected: bool) -> None:
    assert read_flag(environ) is expected


@pytest.mark.parametrize("value", ["", " ", "1 ", "2", "-1", "01", "true", "True", "on", "yes", "off", "1\n", "\uff11"])
def test_any_other_flag_value_raises_and_is_named(value: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_flag({FLAG: value})
    expected = "expected '0' or '1' (or unset, which is off)"
    assert str(caught.value) == f"{FLAG}: seen {value!r}; {expected}; set one of these"


def test_lane_and_validator_have_the_registered_defaults() -> None:
    assert Settings.from_environment({}) == Settings(Lane.XPU, Validator.NATIVE)


@pytest.mark.parametrize("lane", list(Lane))
@pytest.mark.parametrize("validator", list(Validator))
def test_lane_and_validator_are_read(lane: Lane, validator: Validator) -> None:
    assert Settings.from_environment({LANE: lane, VALIDATOR: validator}) == Settings(lane, validator)


@pytest.mark.parametrize("variable", [LANE, VALIDATOR])
@pytest.mark.parametrize("value", ["", "CPU", "auto", "gpu", "c", "0"])
def test_any_other_lane_or_validator_raises_and_is_named(variable: str, value: str) -> None:
    allowed = {
        LANE: "'xpu' or 'cuda' or 'cpu' (unset is 'xpu')",
        VALIDATOR: "'native' or 'python' (unset is 'native')",
    }
    with pytest.raises(SettingError) as caught:
        Settings.from_environment({variable: value})
    assert str(caught.value) == f"{variable}: seen {value!r}; expected {allowed[variable]}; set one of these"


def test_the_plugin_module_imports_neither_torch_nor_vllm() -> None:
    code = "import sys, laguna_kv, laguna_kv.plugin; sys.exit(bool({'torch', 'vllm'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
