# SPDX-License-Identifier: Apache-2.0
"""Makes this process the lane's that ``LANE_UNDER_TEST`` names; imported before anything that imports vLLM.

On the scripted XPU vLLM finds its own platform for XPUs, by its own plugin, and the kernels of ``LANE_KERNELS``.
``LANE_COMPILED=0`` has these say that attention was not compiled for what it is asked.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, cast

from pytest_laguna.evidence.values import Lane
from tests.lanes import scripted_kernels, scripted_xpu

LANE = cast("Lane", os.environ["LANE_UNDER_TEST"])
HELD = contextlib.ExitStack()
"""What lasts as long as the process."""
LIBRARIES: list[Any] = []


def _be_an_xpu() -> None:
    HELD.enter_context(scripted_xpu.installed())
    compiled = os.environ.get("LANE_COMPILED", "1") == "1"
    LIBRARIES.extend(scripted_kernels.install(Path(os.environ["LANE_KERNELS"]), compiled=compiled))
    import vllm.platforms
    from vllm.platforms import xpu_platform_plugin
    from vllm.utils.import_utils import resolve_obj_by_qualname

    name = xpu_platform_plugin()
    assert name == "vllm.platforms.xpu.XPUPlatform"
    found = resolve_obj_by_qualname(name)()
    type(found).dispatch_key = "CPU"  # where the scripted device has its tensors, and vLLM its operators for them
    vars(vllm.platforms).update(current_platform=found, _current_platform=found)
    # A class that vLLM knows by name alone is looked at in a process of its own, which would have no such device.
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.laguna import LagunaForCausalLM
    from vllm.model_executor.models.laguna_dflash import DFlashLagunaForCausalLM

    for model in (LagunaForCausalLM, DFlashLagunaForCausalLM):
        ModelRegistry.register_model(model.__name__, model)


if LANE == "xpu":
    _be_an_xpu()
