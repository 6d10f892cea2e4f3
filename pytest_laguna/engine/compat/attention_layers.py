# SPDX-License-Identifier: Apache-2.0
"""VLLM's own attention layers, made and called as vLLM's models and runners do, without a model around them.

Every name was seen in vLLM 0.26.0, 0.32.0 and 0.33.0. A name that vLLM binds on some platforms only is not imported: it
is looked up in the module of vLLM's backend, as the backend does at each call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
import vllm
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.platforms import current_platform
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadata
from vllm.v1.attention.selector import _cached_get_attn_backend
from vllm.v1.worker.utils import bind_kv_cache

from pytest_laguna.evidence.values import Lane


class ServingModule(NamedTuple):
    """The module that ends in a lane's own attention operators.

    Attributes:
        name: of the module.
        fallbacks: its functions for attention without the operators.
    """

    name: str
    fallbacks: tuple[str, ...] = ()


_SERVING: Mapping[Lane, ServingModule] = {
    "cpu": ServingModule("pytest_laguna.engine.reference_kernels"),
    "cuda": ServingModule("vllm.vllm_flash_attn.flash_attn_interface"),
    # vllm-xpu-kernels 0.1.16: plain torch, for cases its library was not compiled for
    "xpu": ServingModule("vllm_xpu_kernels.flash_attn_interface", ("_fallback_varlen_attn", "ref_paged_attn")),
}


class Platform(NamedTuple):
    """vLLM's description of its platform."""

    name: str
    device_type: str
    is_cpu: bool
    is_cuda: bool
    is_xpu: bool


def version() -> str:
    """Version of vLLM."""
    return str(vllm.__version__)


def platform() -> Platform:
    """The platform that vLLM chose."""
    return Platform(
        qualified_name(type(current_platform)),
        str(current_platform.device_type),
        bool(current_platform.is_cpu()),
        bool(current_platform.is_cuda()),
        bool(current_platform.is_xpu()),
    )


def qualified_name(thing: Any) -> str:
    """Module and name of a class or function."""
    return f"{thing.__module__}.{thing.__qualname__}"


def engine_config(arguments: Mapping[str, Any]) -> VllmConfig:
    """Resolved configuration of an engine, without the engine; also loads vLLM's plugins."""
    return EngineArgs(**arguments).create_engine_config()


def forget_selected_backend() -> None:
    """Let vLLM select the backend of the next layer anew: it caches its first choice for the process."""
    _cached_get_attn_backend.cache_clear()


class LayerShape(NamedTuple):
    """Heads of one rank, and their window.

    Attributes:
        query_heads: on one rank.
        kv_heads: on one rank.
        head_size: in elements.
        window: tokens that a query sees, its own included; None for all.
    """

    query_heads: int
    kv_heads: int
    head_size: int
    window: int | None


def make_layer(config: VllmConfig, device: torch.device, number: int, shape: LayerShape) -> Any:
    """Make an attention layer of the target, with the arguments of vLLM's Laguna.

    Args:
        config: registers the layer under its name.
        device: of its scales.
        number: index of the layer.
        shape: of the layer.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with set_current_vllm_config(config), device:
            layer = Attention(
                shape.query_heads,
                shape.head_size,
                shape.head_size**-0.5,
                num_kv_heads=shape.kv_heads,
                cache_config=config.cache_config,
                quant_config=config.quant_config,
                per_layer_sliding_window=shape.window,
                prefix=f"model.layers.{number}.self_attn.attn",
            )
            layer.process_weights_after_loading(torch.bfloat16)
    finally:
        torch.set_default_dtype(before)
    return layer


def bind_caches(config: VllmConfig, caches: Mapping[str, torch.Tensor]) -> None:
    """Bind each layer's cache, [blocks, KV heads, tokens of a block, 2 * head], by the layer's name."""
    bind_kv_cache(dict(caches), config.compilation_config.static_forward_context, [])


class DecodeBatch(NamedTuple):
    """One decode step of several sequences with one new token each.

    Attributes:
        slots: [sequences], int64; slot of each sequence's new token.
        block_table: [sequences, blocks], int32.
        lengths: [sequences], int32; tokens of each in the cache, the new one included.
        longest: the largest length.
    """

    slots: torch.Tensor
    block_table: torch.Tensor
    lengths: torch.Tensor
    longest: int


@contextlib.contextmanager
def calling(config: VllmConfig, layer: Any, batch: DecodeBatch) -> Iterator[None]:
    """Set the forward context for a layer's call on a batch; without a causal mask, as each query is a sequence."""
    sequences = len(batch.lengths)
    values: dict[str, Any] = {
        "num_actual_tokens": sequences,
        "max_query_len": 1,
        "query_start_loc": torch.arange(sequences + 1, dtype=torch.int32, device=batch.lengths.device),
        "max_seq_len": batch.longest,
        "seq_lens": batch.lengths,
        "block_table": batch.block_table,
        "slot_mapping": batch.slots,
        "causal": False,
        # 0.26.0 requires the rest; 0.32.0 and 0.33.0 have dropped it.
        "use_cascade": False,
        "common_prefix_len": 0,
        "cu_prefix_query_lens": None,
        "prefix_kv_lens": None,
        "suffix_kv_lens": None,
    }
    known = {field.name for field in dataclasses.fields(FlashAttentionMetadata)}
    metadata = FlashAttentionMetadata(**{name: value for name, value in values.items() if name in known})
    name = layer.layer_name
    with set_forward_context(
        {name: metadata}, config, num_tokens=sequences, slot_mapping={name: metadata.slot_mapping}
    ):
        yield


def kernels() -> ModuleType:
    """The module in which vLLM's FlashAttention backend looks both its kernels up, by name and at each call."""
    return flash_attn


def serving_module(lane: Lane) -> ModuleType:
    """The imported module that serves a lane's attention; raises RuntimeError if vLLM has not imported it."""
    module = sys.modules.get(_SERVING[lane].name)
    if module is None:
        message = f"{lane}: seen no {_SERVING[lane].name}; expected vLLM to import its attention kernel from there"
        raise RuntimeError(message)
    return module


def forbid_fallbacks(lane: Lane) -> list[str]:
    """Make every function raise that computes a lane's attention without its operators.

    Returns:
        Full names of the replaced functions.

    Raises:
        RuntimeError: a function is missing, and so may have got another name in this version.
    """
    module = serving_module(lane)
    for name in _SERVING[lane].fallbacks:
        if not hasattr(module, name):
            message = f"{module.__name__}: seen no {name}; expected it, to forbid it; see which function replaced it"
            raise RuntimeError(message)
        setattr(module, name, _forbidden(f"{module.__name__}.{name}"))
    return [f"{module.__name__}.{name}" for name in _SERVING[lane].fallbacks]


def _forbidden(name: str) -> Any:
    def refuse(*_arguments: object, **_keywords: object) -> None:
        raise RuntimeError(f"{name}: seen called, so attention fell back to plain torch; expected the compiled kernel")

    return refuse
