# SPDX-License-Identifier: Apache-2.0
"""A parity packet's work: both selectors' layers in one process, on equal caches and equal queries."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform as python_platform
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from laguna_kv.plugin import register
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.candidate_proof import LayerCounters
from pytest_laguna.evidence.arms.parity import (
    CALLS,
    HEAD_SIZE,
    KV_HEADS,
    KV_TOKENS,
    PAGE_TOKENS,
    PAGES,
    AttentionKind,
    Extension,
    FunctionOrigin,
    KernelReport,
    LayerReport,
    Outcome,
    PacketCase,
    PacketRecord,
    PacketRequest,
    PlatformReport,
    SelectorReport,
    cache_seed,
    query_seed,
)
from pytest_laguna.evidence.values import Lane

from . import packets
from .card_identity import card_identity, visible_cards
from .compat import attention_layers
from .kernel_watch import ATTENTION, UPDATE, KernelWatch, geometry
from .process_facts import mapped_files, this_process

Flag = Literal["0", "1"]
_OFF: Flag = "0"
_ON: Flag = "1"


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """Layers made by vLLM under one value of the flag, by kind of attention, with their configuration."""

    flag: Flag
    config: Any
    layers: Mapping[AttentionKind, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """One case's query [queries, query heads * head], and key and value [queries, KV heads * head], BF16."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def run_packet(request: PacketRequest, environment: Mapping[str, str]) -> PacketRecord:
    """Make both selectors' layers, run every case on both, and return the record.

    Args:
        request: cases and lane.
        environment: of the process at its start.

    Raises:
        RuntimeError: a kernel is missing, was never called, or fell back to plain torch.
        LagunaKVError: the candidate refused.
    """
    # Selector off first: setting the flag and registering the candidate would change later stock layers.
    off = _side(request, _OFF)
    on = _side(request, _ON)
    device = torch.device(attention_layers.platform().device_type)
    forbidden = attention_layers.forbid_fallbacks(request.lane)
    watch = KernelWatch(attention_layers.kernels())
    pristine = make_cache(request.rank).to(device)
    for side in (off, on):
        caches = {layer.layer_name: _nhd(pristine.clone()) for layer in side.layers.values()}
        attention_layers.bind_caches(side.config, caches)
    with torch.inference_mode():
        cases = [
            _run_case(request, (off, on), watch, pristine, kind, query)
            for kind in AttentionKind
            for query in request.queries
        ]
    return PacketRecord(
        request=request,
        process=this_process(),
        platform=_platform_report(request.lane),
        kernels=_kernel_report(request.lane, watch, off, forbidden),
        cache=geometry(_nhd(pristine)),
        cache_sha256=_sha256(pristine),
        off=_selector_report(off, watch),
        on=_selector_report(on, watch),
        cases=cases,
        mapped=mapped_files(),
        versions={
            "python": python_platform.python_version(),
            "torch": torch.__version__,
            "vllm": attention_layers.version(),
        },
        environment=dict(environment),
    )


def make_cache(rank: int) -> torch.Tensor:
    """A card's initial cache in the order of its memory: [pages, tokens of a page, KV heads, 2 * head], BF16.

    Created on the CPU, so that every lane starts from the same bytes.
    """
    generator = torch.Generator().manual_seed(cache_seed(rank))
    return torch.randn(PAGES, PAGE_TOKENS, KV_HEADS, 2 * HEAD_SIZE, generator=generator).bfloat16()


def make_inputs(seed: int, kind: AttentionKind, query: int) -> Inputs:
    """One case's inputs, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    rows = (
        torch.randn(query, heads * HEAD_SIZE, generator=generator).bfloat16()
        for heads in (kind.query_heads, KV_HEADS, KV_HEADS)
    )
    return Inputs(*rows)


def make_batch(query: int, device: torch.device) -> attention_layers.DecodeBatch:
    """A sequence for each query, all over one history in reversed pages; each writes its own token."""
    pages = torch.arange(PAGES - 1, -1, -1, dtype=torch.int32)
    positions = torch.arange(KV_TOKENS - query, KV_TOKENS)
    slots = pages[positions // PAGE_TOKENS].long() * PAGE_TOKENS + positions % PAGE_TOKENS
    return attention_layers.DecodeBatch(
        slots=slots.to(device),
        block_table=pages.repeat(query, 1).to(device),
        lengths=torch.full((query,), KV_TOKENS, dtype=torch.int32, device=device),
        longest=KV_TOKENS,
    )


def _side(request: PacketRequest, flag: Flag) -> Side:
    """Make the layers under one value of the flag, through vLLM's own selector."""
    os.environ[arm_settings.FLAG] = flag
    config = attention_layers.engine_config(packets.engine_arguments(request))
    if flag == _ON:
        register()  # as vLLM's plugin loader does in a process started with this flag
        attention_layers.forget_selected_backend()
    device = torch.device(attention_layers.platform().device_type)
    layers = {
        kind: attention_layers.make_layer(config, device, number, _shape(kind))
        for number, kind in enumerate(AttentionKind)
    }
    return Side(flag, config, layers)


def _shape(kind: AttentionKind) -> attention_layers.LayerShape:
    window = None if kind is AttentionKind.FULL else kind.window[0] + 1
    return attention_layers.LayerShape(kind.query_heads, KV_HEADS, HEAD_SIZE, window)


def _run_case(  # noqa: PLR0913, PLR0917 - everything shared by both sides
    request: PacketRequest,
    sides: tuple[Side, Side],
    watch: KernelWatch,
    pristine: torch.Tensor,
    kind: AttentionKind,
    query: int,
) -> PacketCase:
    seed = query_seed(request.rank, kind, query)
    inputs = make_inputs(seed, kind, query)
    (off_outputs, off_cache), (on_outputs, on_cache) = (_attend(side, watch, pristine, kind, inputs) for side in sides)
    return PacketCase(
        kind=kind,
        query=query,
        seed=seed,
        off=Outcome(outputs=[_sha256(output) for output in off_outputs], cache=_sha256(off_cache)),
        on=Outcome(outputs=[_sha256(output) for output in on_outputs], cache=_sha256(on_cache)),
        differing_output_bytes=sum(map(_differing_bytes, off_outputs, on_outputs)),
        differing_cache_bytes=_differing_bytes(off_cache, on_cache),
    )


def _attend(
    side: Side, watch: KernelWatch, pristine: torch.Tensor, kind: AttentionKind, inputs: Inputs
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Outputs of the case's calls, [queries, query heads * head], and the cache's memory after them, on the CPU."""
    layer = side.layers[kind]
    device = pristine.device
    memory = layer.kv_cache.transpose(1, 2)
    memory.copy_(pristine)
    rows = [tensor.to(device) for tensor in (inputs.query, inputs.key, inputs.value)]
    batch = make_batch(len(inputs.query), device)
    outputs = []
    for _ in range(CALLS):
        with watch.of((side.flag, kind)), attention_layers.calling(side.config, layer, batch):
            outputs.append(layer(*rows).cpu())
    return outputs, memory.cpu()


def _nhd(memory: torch.Tensor) -> torch.Tensor:
    """The cache in vLLM's NHD layout: [pages, KV heads, tokens of a page, 2 * head]."""
    return memory.transpose(1, 2)


def _sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _differing_bytes(one: torch.Tensor, other: torch.Tensor) -> int:
    return int((one.contiguous().view(torch.uint8) != other.contiguous().view(torch.uint8)).sum())


def _platform_report(lane: Lane) -> PlatformReport:
    seen = attention_layers.platform()
    device = "" if lane == "cpu" else torch.get_device_module(seen.device_type).get_device_properties(0).name
    return PlatformReport(
        platform=seen.name,
        device_type=seen.device_type,
        is_cpu=seen.is_cpu,
        is_cuda=seen.is_cuda,
        is_xpu=seen.is_xpu,
        visible_devices=visible_cards(lane),
        device_name=device or python_platform.machine(),
        card=card_identity(lane),
    )


def _kernel_report(lane: Lane, watch: KernelWatch, off: Side, forbidden: list[str]) -> KernelReport:
    serving = attention_layers.serving_module(lane)
    versions = {int(layer.impl.vllm_flash_attn_version) for layer in off.layers.values()}
    [version] = versions
    return KernelReport(
        functions=[_origin(name, function) for name, function in watch.functions.items()],
        served_by=_loaded(serving),
        flash_attention_version=version,
        extensions=[_loaded(module) for module in _compiled_beside(serving)],
        forbidden=forbidden,
    )


def _origin(name: str, function: Any) -> FunctionOrigin:
    file = _file(sys.modules[function.__module__])
    return FunctionOrigin(
        name=name,
        module=function.__module__,
        qualified_name=function.__qualname__,
        file=str(file),
        sha256=files.sha256_file(file),
    )


def _compiled_beside(module: ModuleType) -> list[ModuleType]:
    """Every compiled module that this process has loaded from the same directory."""
    directory = _file(module).parent
    loaded = {_file(other): other for other in list(sys.modules.values()) if getattr(other, "__file__", None)}
    return [other for file, other in sorted(loaded.items()) if file.suffix == ".so" and file.parent == directory]


def _loaded(module: ModuleType) -> Extension:
    file = _file(module)
    return Extension(module=module.__name__, file=str(file), sha256=files.sha256_file(file))


def _file(module: ModuleType) -> Path:
    return Path(str(module.__file__)).resolve()


def _selector_report(side: Side, watch: KernelWatch) -> SelectorReport:
    backends = {attention_layers.qualified_name(layer.attn_backend) for layer in side.layers.values()}
    [backend] = backends
    return SelectorReport(
        flag=side.flag,
        backend=backend,
        layers={kind: _layer_report(side, kind, layer, watch) for kind, layer in side.layers.items()},
    )


def _layer_report(side: Side, kind: AttentionKind, layer: Any, watch: KernelWatch) -> LayerReport:
    before, after = layer.impl.sliding_window
    views = getattr(layer.impl, "views", None)
    return LayerReport(
        name=layer.layer_name,
        implementation=attention_layers.qualified_name(type(layer.impl)),
        window=(int(before), int(after)),
        state=None if views is None else _counters(views),
        attention=watch.calls((side.flag, kind), ATTENTION),
        update=watch.calls((side.flag, kind), UPDATE),
    )


def _counters(views: Any) -> LayerCounters:
    return LayerCounters(**{name: getattr(views, name) for name in LayerCounters.model_fields})
