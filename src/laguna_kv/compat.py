# SPDX-License-Identifier: Apache-2.0
"""The only module that names vLLM's internals, each with the versions in whose source it was read.

Read in the published wheels of vLLM 0.26.0, 0.32.0 and 0.33.0. Nothing here copes with other versions: a missing name
raises at its import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vllm.envs
from vllm.compilation.breakable_cudagraph import (  # 0.26.0, 0.32.0, 0.33.0
    BreakableCUDAGraphWrapper,
    is_breakable_cudagraph_enabled,
)
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.models.utils import extract_layer_index  # 0.26.0, 0.32.0, 0.33.0
from vllm.platforms import current_platform
from vllm.utils.torch_utils import canonicalize_singleton_dim_strides  # 0.26.0, 0.32.0, 0.33.0
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from laguna_kv.errors import EligibilityError
from laguna_kv.settings import read_flag

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FlashAttentionBackend",
    "FlashAttentionImpl",
    "VllmConfig",
    "ask_before_canonicalizing",
    "attention_layers",
    "canonicalize_singleton_dim_strides",
    "engine_facts",
    "get_current_vllm_config",
    "is_draft_layer",
    "live_breakable_captures",
    "make_variable_known",
    "model_runner_version",
    "override_flash_attention",
    "refuse_other_backends",
]


def override_flash_attention(class_path: str) -> None:
    """Make FLASH_ATTN mean another backend class in this process.

    Overriding the member that the platforms choose by themselves is the one registration that survives a spawn and that
    the XPU platform accepts (it refuses CUSTOM and new names).
    """
    register_backend(AttentionBackendEnum.FLASH_ATTN, class_path)


def ask_before_canonicalizing(wrap: type[Any]) -> None:
    """Wrap in a class the helper by which FlashAttention's forward canonicalises both of its views.

    The forward looks the helper up in its module at each call (0.26.0, 0.32.0, 0.33.0). Set there and not in
    ``vllm.utils.torch_utils``, where other backends find theirs; once in a process, however many layers there are.
    """
    name = canonicalize_singleton_dim_strides.__name__
    helper = getattr(flash_attn, name)
    if not isinstance(helper, wrap):
        setattr(flash_attn, name, wrap(helper))


def refuse_other_backends(class_path: str) -> None:
    """Refuse every other attention backend in this process while the flag is on, where vLLM would silently use it.

    A platform may ignore FLASH_ATTN (vLLM's CPU build does) and a user may name another backend; either would run
    stock under flag 1. Every ordinary attention layer's backend comes from ``Platform.get_attn_backend_cls``, which
    returns a class path (0.26.0, 0.32.0, 0.33.0). Set on the platform object of this process and not on its class, so
    that later changes of the class, by anybody, are kept.
    """

    def selected(*arguments: Any, **keywords: Any) -> str:
        path = str(type(current_platform).get_attn_backend_cls(*arguments, **keywords))
        if read_flag() and path != class_path:
            raise EligibilityError(f"attention on {current_platform.device_type}", [("backend", class_path, path)])
        return path

    current_platform.get_attn_backend_cls = selected  # type: ignore[method-assign]


def make_variable_known(name: str, value: str) -> None:
    """Enter a variable in vLLM's table, or ``--fail-on-environ-validation`` would refuse it.

    ``vllm.envs.environment_variables`` is a plain dict of readers (0.26.0, 0.32.0, 0.33.0).
    """
    vllm.envs.environment_variables[name] = lambda: value


def is_draft_layer(layer: Any, config: VllmConfig) -> bool:
    """True if an attention layer is the drafter's.

    The drafter's layers are numbered on from the target's last (``laguna_dflash.py`` and ``qwen3_dflash.py``
    in 0.26.0, 0.32.0 and 0.33.0), which holds with one pipeline stage. 0.32.0 (V2 runner) and 0.33.0 also
    mark them.
    """
    if getattr(layer, "is_draft_layer", False):
        return True
    return bool(extract_layer_index(layer.layer_name) >= config.model_config.get_total_num_hidden_layers())


def engine_facts(config: VllmConfig) -> dict[str, object]:
    """Return vLLM's resolved configuration as plain values, as far as eligibility needs it."""
    compilation = config.compilation_config
    speculative = config.speculative_config
    return {
        "platform": current_platform.device_type,
        "compilation mode": _name(compilation.mode),
        "cudagraph mode": _name(compilation.cudagraph_mode),
        "cudagraph capture sizes": list(compilation.cudagraph_capture_sizes or []),
        "breakable graphs": is_breakable_cudagraph_enabled(),
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "pipeline stages": config.parallel_config.pipeline_parallel_size,
        "KV transfer": config.kv_transfer_config is not None,
        "speculative method": getattr(speculative, "method", None),
        "speculative tokens": getattr(speculative, "num_speculative_tokens", None),
        "draft sampling": getattr(speculative, "draft_sample_method", None),
        "rejection sampling": getattr(speculative, "rejection_sample_method", None),
    }


def _name(member: object) -> str | None:
    """Name of an enum member; None if vLLM has not resolved one."""
    return getattr(member, "name", None)


def live_breakable_captures() -> int:
    """Count the captured breakable graphs that could still be replayed in this process.

    ``_all_instances`` is a weak set of wrappers, ``entries`` maps a descriptor (0.33.0: any hashable) to an
    entry whose ``capture`` is None until the capture is complete (0.26.0, 0.32.0, 0.33.0). vLLM empties them
    after its throw-away profiling capture and before it clears that capture's cache: V1 runner in all three
    versions, V2 runner in 0.32.0 and 0.33.0 (0.26.0's V2 runner does not profile).
    """
    return sum(
        entry.capture is not None
        for wrapper in list(BreakableCUDAGraphWrapper._all_instances)  # noqa: SLF001
        for entry in wrapper.entries.values()
    )


def attention_layers(config: VllmConfig) -> Mapping[str, Any]:
    """Return every attention-like layer of the process by name, drafter included; filled when the model is built."""
    layers: Mapping[str, Any] = config.compilation_config.static_forward_context
    return layers


def model_runner_version(model_runner: object) -> str:
    """Return ``V1`` or ``V2``, by the module of the runner's classes (0.26.0, 0.32.0, 0.33.0).

    Raises:
        TypeError: neither of vLLM's runners is among the classes.
    """
    modules = {cls.__module__ for cls in type(model_runner).__mro__}
    for version, module in (
        ("V1", "vllm.v1.worker.gpu_model_runner"),
        ("V2", "vllm.v1.worker.gpu.model_runner"),
    ):
        if module in modules:
            return version
    raise TypeError(f"model runner: seen {type(model_runner)}; expected a subclass of vLLM's V1 or V2 runner")
