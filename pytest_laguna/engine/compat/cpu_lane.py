# SPDX-License-Identifier: Apache-2.0
"""The CPU lane's changes to vLLM; all names were seen in vLLM 0.32.0, the only supported version.

``install_cpu_lane`` gives vLLM's CPU build two features of its CUDA build: the FlashAttention backend, over reference
kernels, and breakable graphs, over tapes. vLLM's own code for both runs unchanged: backend, metadata builder, graph
capture, wrapper, dispatcher and model runner.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Self
from unittest import mock

import torch
from vllm import _custom_ops as custom_ops
from vllm.compilation import breakable_cudagraph
from vllm.config import CUDAGraphMode
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.laguna import LagunaForCausalLM
from vllm.model_executor.models.laguna_dflash import DFlashLagunaForCausalLM
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends import fa_utils, flash_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from pytest_laguna.engine import reference_kernels, tape_graph
from pytest_laguna.engine.compat.version import VLLM_VERSION

_START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
_BETWEEN_LOOKS_SECONDS = 0.0005


@functools.cache
def install_cpu_lane() -> None:
    """Change this process's vLLM, once, after ``require_known_vllm``; raises RuntimeError if a name has moved."""
    _serve_flash_attention()
    _route_with_sigmoid()
    _norm_stacked_weights()
    _allow_static_graphs()
    _wait_without_spinning()
    _capture_on_tapes()
    _capture_at_start_up()
    _register_models()


def _replace(owner: Any, name: str, value: object) -> None:
    """Set an existing attribute; a name that has moved is an error, as setting it would have no effect."""
    if not hasattr(owner, name):
        message = f"{owner.__name__}: seen no {name}; expected that of vLLM {VLLM_VERSION}, the CPU lane's version"
        raise RuntimeError(message)
    setattr(owner, name, value)


def _serve_flash_attention() -> None:
    """In vLLM 0.32.0 the CPU platform ignores the selected backend, and both modules lack the kernels' names there."""

    def get_attn_backend_cls(_cls: object, /, *_arguments: object, **_keywords: object) -> str:
        # The path, not the class, so that a replacement registered before or after this is honoured.
        return AttentionBackendEnum.FLASH_ATTN.get_path()

    _replace(CpuPlatform, "get_attn_backend_cls", classmethod(get_attn_backend_cls))
    for module in (fa_utils, flash_attn):
        for kernel in (reference_kernels.flash_attn_varlen_func, reference_kernels.reshape_and_cache_flash):
            setattr(module, kernel.__name__, kernel)
        _replace(module, "get_flash_attn_version", lambda *_arguments, **_keywords: 2)
        _replace(module, "flash_attn_supports_quant_query_input", lambda: False)


def _route_with_sigmoid() -> None:
    """In vLLM 0.32.0 ``CPURouter`` knows sigmoid scores in groups only, and Laguna's experts are ungrouped."""
    original = CPURouter._compute_routing  # noqa: SLF001

    def compute_routing(
        self: Any,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        indices_type: torch.dtype | None,
        *,
        input_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.scoring_func != "sigmoid" or self.use_grouped_topk or self.custom_routing_function is not None:
            return original(self, hidden_states, router_logits, indices_type, input_ids=input_ids)
        return reference_kernels.sigmoid_top_k(
            router_logits,
            self.top_k,
            renormalize=self.renormalize,
            routed_scaling_factor=self.routed_scaling_factor,
            correction_bias=self.e_score_correction_bias,
        )

    _replace(CPURouter, "_compute_routing", compute_routing)


def _norm_stacked_weights() -> None:
    """In vLLM 0.32.0 ``DFlashLagunaModel`` calls ``ops.rms_norm`` with the weights of all draft layers at once."""
    _replace(custom_ops, "rms_norm", reference_kernels.stacked_rms_norm(custom_ops.rms_norm))


def _allow_static_graphs() -> None:
    """In vLLM 0.32.0 the CPU platform denies graphs, has no pool for them, and empties the list of sizes to capture.

    It also spawns ranks despite the environment; this lane has nothing that a fork would break.
    """
    original = CpuPlatform.check_and_update_config

    def check_and_update_config(_cls: type, vllm_config: Any) -> None:
        sizes = vllm_config.compilation_config.cudagraph_capture_sizes
        method = os.environ.get(_START_METHOD)
        original(vllm_config)
        vllm_config.compilation_config.cudagraph_capture_sizes = sizes
        if method is not None:
            os.environ[_START_METHOD] = method

    _replace(CpuPlatform, "support_static_graph_mode", classmethod(lambda _cls: True))
    _replace(CpuPlatform, "check_and_update_config", classmethod(check_and_update_config))
    # A token that is only passed on: a tape owns its memory.
    CpuPlatform.graph_pool_handle = classmethod(lambda _cls: (0, 0))  # type: ignore[attr-defined]


def _wait_without_spinning() -> None:
    """In vLLM 0.32.0 a wait for a message or another rank spins, on cores that other ranks need.

    Ranks reduce through gloo, which blocks, not through vLLM's shared memory, which also leaves its files behind.
    """
    _replace(shm_broadcast, "sched_yield", functools.partial(time.sleep, _BETWEEN_LOOKS_SECONDS))
    _replace(CpuCommunicator, "_all_group_ranks_share_shm_group_name", lambda _self: False)


def _capture_on_tapes() -> None:
    """In vLLM 0.32.0 a capture looks ``torch.cuda.CUDAGraph`` up at each segment, and refers to its tensors weakly."""

    class TapeCapture(breakable_cudagraph.BreakableCUDAGraphCapture):
        """vLLM's breakable capture with an active recorder."""

        def __init__(self, pool: object = None) -> None:
            super().__init__(pool)
            self._recording = contextlib.ExitStack()

        def __enter__(self) -> Self:
            self._recording.enter_context(tape_graph.recording())
            try:
                super().__enter__()
            except BaseException:
                self._recording.close()
                raise
            return self

        def __exit__(self, *exception: object) -> None:
            with self._recording:
                super().__exit__(*exception)

    torch.cuda.CUDAGraph = tape_graph.TapeGraph  # type: ignore[misc,assignment]
    _replace(breakable_cudagraph, "BreakableCUDAGraphCapture", TapeCapture)
    # Strong references are fine: there is no pool whose slots they could pin.
    _replace(breakable_cudagraph, "weak_ref_tensor", _same)
    _replace(breakable_cudagraph, "weak_ref_tensors", _same)


def _same(value: Any) -> Any:
    return value


def _capture_at_start_up() -> None:
    """In vLLM 0.32.0 ``CPUModelRunner`` overrides ``GPUModelRunner``'s methods that wrap and capture the model."""
    gpu_model_runner = importlib.import_module("vllm.v1.worker.gpu_model_runner")
    runner = importlib.import_module("vllm.v1.worker.cpu_model_runner").CPUModelRunner
    worker = importlib.import_module("vllm.v1.worker.cpu_worker").CPUWorker
    load_model: Callable[..., None] = runner.load_model
    warm_up: Callable[[Any], Any] = worker.compile_or_warm_up_model

    def load_and_wrap(self: Any, *arguments: Any, **keywords: Any) -> None:
        load_model(self, *arguments, **keywords)
        if self.compilation_config.cudagraph_mode == CUDAGraphMode.NONE:
            return
        self.model = _wrapped(self.model, self.vllm_config)
        drafter = getattr(self, "drafter", None)
        if drafter is not None:
            drafter.model = _wrapped(drafter.model, self.vllm_config)

    def capture_and_warm_up(self: Any) -> Any:
        if self.compilation_config.cudagraph_mode != CUDAGraphMode.NONE:
            with _without_device_memory():
                self.model_runner.capture_model()
        return warm_up(self)

    _replace(runner, "load_model", load_and_wrap)
    # The CPU runner's own get_model does not unwrap the model.
    _replace(runner, "get_model", gpu_model_runner.GPUModelRunner.get_model)
    _replace(worker, "compile_or_warm_up_model", capture_and_warm_up)
    # No streams to capture on, and no workspace manager, on a CPU.
    _replace(gpu_model_runner, "graph_capture", lambda **_keywords: contextlib.nullcontext())
    _replace(gpu_model_runner, "lock_workspace", lambda: None)


def _wrapped(model: Any, vllm_config: Any) -> Any:
    return breakable_cudagraph.BreakableCUDAGraphWrapper(model, vllm_config, runtime_mode=CUDAGraphMode.PIECEWISE)


@contextlib.contextmanager
def _without_device_memory() -> Iterator[None]:
    """Answer ``capture_model``'s question about the graphs' device memory with zero."""
    with mock.patch.object(torch.accelerator, "get_memory_info", return_value=(0, 0)):
        yield


def _register_models() -> None:
    """VLLM 0.32.0 inspects a class known by name only in a separate process, about ten seconds for each."""
    ModelRegistry.register_model("LagunaForCausalLM", LagunaForCausalLM)
    ModelRegistry.register_model("DFlashLagunaForCausalLM", DFlashLagunaForCausalLM)
