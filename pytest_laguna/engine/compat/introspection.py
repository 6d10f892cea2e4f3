# SPDX-License-Identifier: Apache-2.0
"""Reads a running vLLM worker, on any lane, without changing it; names seen in vLLM 0.32.0."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backends import flash_attn

COLLECTIVE_BREAK = "collective_break"
"""Name of the function in a break around a collective."""
_ATTENTION_BREAK = "unified_attention_with_output"


class Capture(NamedTuple):
    """A captured breakable graph."""

    model: Literal["target", "draft"]
    descriptor: str
    segments: list[Callable[[], Any]]


class RankPlace(NamedTuple):
    """Rank of a worker."""

    rank: int
    world_size: int
    tensor_parallel_rank: int


def place(worker: Any) -> RankPlace:
    """Ranks of a worker: the first two fields are its own, the third is its process group's."""
    return RankPlace(worker.rank, worker.vllm_config.parallel_config.world_size, get_tensor_model_parallel_rank())


def target_attention_layers(worker: Any) -> dict[str, Any]:
    """The target's attention layers by name; the draft's numbers continue after the target's last."""
    config = worker.vllm_config
    layers = config.compilation_config.static_forward_context
    return {
        name: layer
        for name, layer in layers.items()
        if isinstance(layer, Attention)
        and extract_layer_index(name) < config.model_config.get_total_num_hidden_layers()
    }


def candidate_states(worker: Any) -> list[Any]:
    """The candidate's ``ViewState`` of each target layer; empty if vLLM's own class serves attention."""
    layers = target_attention_layers(worker).values()
    return [layer.impl.views for layer in layers if hasattr(layer.impl, "views")]


def attention_class() -> type[Any]:
    """vLLM's FlashAttention implementation, which uses a candidate's views too."""
    return flash_attn.FlashAttentionImpl


def canonical_strides() -> tuple[ModuleType, str]:
    """Module and name of the function applied to both views by this forward, which looks it up at each call."""
    return flash_attn, "canonicalize_singleton_dim_strides"


def attention_kernels() -> ModuleType:
    """The module in which vLLM's FlashAttention backend looks its kernel up, by name and at each call."""
    return flash_attn


def captures(worker: Any) -> Iterator[Capture]:
    """Every complete capture in this process, the target's first."""
    target = worker.model_runner.get_model()
    # A weak set of all wrappers. Entries are by batch descriptor; an incomplete one has no capture.
    wrappers = list(BreakableCUDAGraphWrapper._all_instances)  # noqa: SLF001
    for wrapper in sorted(wrappers, key=lambda wrapper: wrapper.unwrap() is not target):
        model: Literal["target", "draft"] = "target" if wrapper.unwrap() is target else "draft"
        for descriptor, entry in wrapper.entries.items():
            if entry.capture is not None:
                yield Capture(model, str(descriptor), entry.capture.segments)


def segment_kind(segment: Callable[[], Any]) -> Literal["graph", "attention", "collective", "other"]:
    """Kind of a capture's segment: a graph's replay, or a break, by its operation."""
    if isinstance(getattr(segment, "__self__", None), torch.cuda.CUDAGraph):
        return "graph"
    if getattr(segment, "__name__", "") == COLLECTIVE_BREAK:
        return "collective"
    # vLLM's decorator wraps the operation in an unnamed function with the variable ``fn``.
    broken = inspect.getclosurevars(segment).nonlocals.get("fn") if inspect.isfunction(segment) else None
    return "attention" if getattr(broken, "__name__", "") == _ATTENTION_BREAK else "other"
