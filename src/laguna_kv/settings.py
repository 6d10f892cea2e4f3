# SPDX-License-Identifier: Apache-2.0
"""The candidate's three environment variables, read strictly: an invalid value raises."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Mapping

from laguna_kv.errors import SettingError

FLAG = "VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS"
"""The sole treatment of the experiment: unset or ``0`` is off, ``1`` is on."""
LANE = "LAGUNA_KV_LANE"
"""The platform that the engine must run on; unset means ``xpu``, the registered experiment's platform."""
VALIDATOR = "LAGUNA_KV_VALIDATOR"
"""The implementation of the contract; unset means ``native``."""


class Lane(enum.StrEnum):
    """A platform, by vLLM's device type."""

    XPU = "xpu"
    CUDA = "cuda"
    CPU = "cpu"


class Validator(enum.StrEnum):
    """An implementation of the contract; neither ever stands in for the other."""

    NATIVE = "native"
    PYTHON = "python"


def read_flag(environ: Mapping[str, str] = os.environ) -> bool:
    """True if the treatment is on.

    Raises:
        SettingError: the flag is set to anything but ``0`` or ``1``; the empty string and spaces count.
    """
    seen = environ.get(FLAG, "0")
    if seen not in {"0", "1"}:
        raise SettingError(FLAG, "'0' or '1' (or unset, which is off)", seen, "set one of these")
    return seen == "1"


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Lane and validator of the treatment."""

    lane: Lane
    validator: Validator

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read both variables.

        Raises:
            SettingError: a value is not in its variable's list.
        """
        return cls(
            lane=Lane(_one_of(environ, LANE, Lane.XPU, list(Lane))),
            validator=Validator(_one_of(environ, VALIDATOR, Validator.NATIVE, list(Validator))),
        )


def _one_of(environ: Mapping[str, str], variable: str, default: str, allowed: list[str]) -> str:
    seen = environ.get(variable, default)
    if seen not in allowed:
        expected = " or ".join(repr(str(value)) for value in allowed)
        raise SettingError(variable, f"{expected} (unset is {str(default)!r})", seen, "set one of these")
    return seen
