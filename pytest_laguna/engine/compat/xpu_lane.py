# SPDX-License-Identifier: Apache-2.0
"""The xpu lane's checks of a vLLM process; they change no results.

Names read in vLLM 0.26.0, 0.32.0 and 0.33.0, and in vllm-xpu-kernels 0.1.12.3 and 0.1.16.2.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import torch

from pytest_laguna.engine.compat import attention_layers
from pytest_laguna.engine.compat.start_up import after_start_up

INTERFACE = "vllm_xpu_kernels.flash_attn_interface"
COMMUNICATOR = "XpuCommunicator"
BACKEND = "xccl"
GRAPHS = "VLLM_USE_BREAKABLE_CUDAGRAPH"


@functools.cache
def install_xpu_lane() -> None:
    """Make attention in plain torch an error in this process, and check its worker after start-up; runs once.

    The kernels' package hides why its compiled attention cannot be loaded. For cases it was not compiled for it goes on
    in plain torch with a warning: "falling back to PyTorch reference attention". No arm, packet or server may do so.

    Raises:
        RuntimeError: the kernels' package, or its compiled attention, cannot be loaded.
    """
    try:
        interface = importlib.import_module(INTERFACE)
    except ImportError as error:
        message = f"xpu: seen no {INTERFACE} ({error}); expected vllm-xpu-kernels; run laguna doctor"
        raise RuntimeError(message) from error
    if not interface.FA2_AVAILABLE:
        reason = getattr(interface, "FA2_UNAVAILABLE_REASON", "no reason given")  # 0.1.12.3 has none
        raise RuntimeError(f"xpu: seen no compiled attention ({reason}); expected _vllm_fa2_C; run laguna doctor")
    attention_layers.forbid_fallbacks("xpu")
    after_start_up("xpu", require_xpu_worker)


def require_xpu_worker(worker: Any) -> None:
    """Require a worker to run on an XPU, with the graphs and the communication of its arm.

    vLLM's XPU runner replaces ``torch.cuda``'s graph classes with ``torch.xpu``'s, and a breakable capture looks them
    up there. If torch has no such graphs, vLLM goes on without any.

    Raises:
        RuntimeError: one of them is another; it is named.
    """
    accelerator = torch.accelerator.current_accelerator()
    seen = (worker.device.type, None if accelerator is None else accelerator.type)
    if seen != ("xpu", "xpu"):
        message = f"xpu: seen worker and accelerator on {seen}; expected the XPU for both; see which torch is installed"
        raise RuntimeError(message)
    if os.environ.get(GRAPHS) == "1":
        _require_graphs(worker)
    if worker.vllm_config.parallel_config.world_size > 1:
        _require_communication()


def _require_graphs(worker: Any) -> None:
    mode = worker.vllm_config.compilation_config.cudagraph_mode.name
    if mode != "PIECEWISE":
        raise RuntimeError(f"xpu: seen graph mode {mode}; expected PIECEWISE; vLLM's log says what torch lacks")
    used: Any = torch.cuda.CUDAGraph
    if used is not torch.xpu.XPUGraph:
        raise RuntimeError(f"xpu: seen captures by {used.__module__}; expected torch.xpu.XPUGraph in its place")


def _require_communication() -> None:
    from vllm.distributed import get_tp_group  # noqa: PLC0415 - there is a group once a worker has started

    group = get_tp_group()
    communicator = type(group.device_communicator).__name__
    backend = torch.distributed.get_backend(group.device_group)
    if (communicator, backend) != (COMMUNICATOR, BACKEND):
        message = f"xpu: seen {communicator} over {backend} between ranks; expected {COMMUNICATOR} over {BACKEND}"
        raise RuntimeError(message)
