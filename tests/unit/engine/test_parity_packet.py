# SPDX-License-Identifier: Apache-2.0
"""A packet's layers, caches and batches on vLLM's own classes, checked against attention computed here.

Runs under vLLM 0.26.0, 0.32.0 and 0.33.0 (``test_compat_other_vllm.py``): class-level, over reference kernels.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gates import vllm_classes as support

# isort: split
# After the support module, which imports vLLM with its warnings off.
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from laguna_kv.backend import LagunaFlashAttentionImpl
from laguna_kv.plugin import BACKEND
from pytest_laguna.analysis.arms.arm_pair import STOCK
from pytest_laguna.analysis.diagnostic.parity import CACHE, KERNELS
from pytest_laguna.engine import parity_packet
from pytest_laguna.engine.compat import attention_layers
from pytest_laguna.engine.kernel_watch import ATTENTION, UPDATE, KernelWatch, geometry
from pytest_laguna.evidence.arms.parity import HEAD_SIZE, KV_HEADS, KV_TOKENS, PAGE_TOKENS, PAGES, AttentionKind

CPU = torch.device("cpu")
XPU_INTERFACE = "vllm_xpu_kernels.flash_attn_interface"


@pytest.fixture(autouse=True)
def lane(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The registered engine's environment and reference kernels, in vLLM's own mode."""
    support.set_engine_environment(monkeypatch)
    support.install_kernels(monkeypatch)
    with torch.inference_mode():
        yield
    AttentionBackendEnum.CPU_ATTN.clear_override()
    attention_layers.forget_selected_backend()


def registered_engine() -> Any:
    """The gates' stand-in, with what vLLM's selector asks of it besides."""
    config = support.registered_engine()
    vars(config.speculative_config)["enable_adaptive_verification"] = False
    vars(config.model_config)["rswa_window"] = None
    return config


def layer_of(backend: str, kind: AttentionKind, config: Any) -> Any:
    """A layer that vLLM selects for itself, where this CPU platform has been told to mean another backend."""
    register_backend(AttentionBackendEnum.CPU_ATTN, backend)
    attention_layers.forget_selected_backend()
    return attention_layers.make_layer(config, CPU, 0, parity_packet._shape(kind))


def expected_attention(kind: AttentionKind, memory: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Of each query alone over the history, position by position through the pages; [queries, heads * head]."""
    pages = list(range(PAGES - 1, -1, -1))
    first = 0 if kind is AttentionKind.FULL else KV_TOKENS - 512
    rows = torch.stack([memory[pages[at // PAGE_TOKENS], at % PAGE_TOKENS] for at in range(first, KV_TOKENS)]).float()
    key, value = rows[..., :HEAD_SIZE], rows[..., HEAD_SIZE:]
    group = kind.query_heads // KV_HEADS
    result = torch.empty(len(query), kind.query_heads, HEAD_SIZE)
    for row, heads in enumerate(query.view(-1, kind.query_heads, HEAD_SIZE).float()):
        for head, vector in enumerate(heads):
            weights = torch.softmax(key[:, head // group] @ vector * HEAD_SIZE**-0.5, 0)
            result[row, head] = weights @ value[:, head // group]
    return result.flatten(1)


@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("backend", [STOCK[0], BACKEND], ids=["off", "on"])
def test_a_layer_writes_its_cache_and_attends_over_it(backend: str, kind: AttentionKind) -> None:
    config = registered_engine()
    layer = layer_of(backend, kind, config)
    assert attention_layers.qualified_name(layer.attn_backend) == backend
    assert isinstance(layer.impl, LagunaFlashAttentionImpl) == (backend == BACKEND)
    assert tuple(layer.impl.sliding_window) == kind.window

    cache = parity_packet.make_cache(2).transpose(1, 2)
    before = cache.clone()
    assert geometry(cache) == CACHE
    attention_layers.bind_caches(config, {layer.layer_name: cache})
    assert layer.kv_cache is cache
    inputs = parity_packet.make_inputs(92003, kind, 3)
    with attention_layers.calling(config, layer, parity_packet.make_batch(3, CPU)):
        output = layer(inputs.query, inputs.key, inputs.value)

    memory = cache.transpose(1, 2)
    for row, position in enumerate(range(KV_TOKENS - 3, KV_TOKENS)):
        page = PAGES - 1 - position // PAGE_TOKENS
        written = torch.cat([inputs.key[row].view(2, -1), inputs.value[row].view(2, -1)], -1)
        assert torch.equal(memory[page, position % PAGE_TOKENS], written)
    assert int((cache != before).any(-1).sum()) == 3 * KV_HEADS
    torch.testing.assert_close(output.float(), expected_attention(kind, memory, inputs.query), atol=4e-3, rtol=1.6e-2)


def test_both_selectors_are_bitwise_equal_and_the_watch_tells_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = attention_layers.kernels()
    for name in (ATTENTION, UPDATE):
        monkeypatch.setattr(kernels, name, getattr(kernels, name))
    sides = {}
    for flag, backend in (("0", STOCK[0]), ("1", BACKEND)):
        config = registered_engine()
        layer = layer_of(backend, AttentionKind.SLIDING, config)
        attention_layers.bind_caches(config, {layer.layer_name: parity_packet.make_cache(0).transpose(1, 2)})
        sides[flag] = parity_packet.Side(flag, config, {AttentionKind.SLIDING: layer})  # type: ignore[arg-type]
    # The parameters by which the watch tells the aliases; these stand-ins take anything by keyword.
    watch = KernelWatch(named(kernels, monkeypatch))
    pristine = parity_packet.make_cache(0)
    inputs = parity_packet.make_inputs(90104, AttentionKind.SLIDING, 4)
    seen = {
        flag: parity_packet._attend(side, watch, pristine, AttentionKind.SLIDING, inputs)
        for flag, side in sides.items()
    }
    (off, off_cache), (on, on_cache) = seen["0"], seen["1"]
    assert [parity_packet._sha256(output) for output in off] == [parity_packet._sha256(output) for output in on]
    assert sum(map(parity_packet._differing_bytes, off, on)) == parity_packet._differing_bytes(off_cache, on_cache) == 0
    reports = {
        flag: parity_packet._layer_report(side, AttentionKind.SLIDING, side.layers[AttentionKind.SLIDING], watch)
        for flag, side in sides.items()
    }
    assert reports["0"].state is None
    assert reports["1"].state is not None
    assert (reports["1"].state.builds, reports["1"].state.forward_hits, reports["1"].state.update_hits) == (1, 3, 3)
    assert (reports["0"].attention.same_objects, reports["1"].attention.same_objects) == (1, 3)
    assert (reports["0"].update.same_objects, reports["1"].update.same_objects) == (1, 3)
    assert reports["0"].attention.operators == reports["1"].attention.operators


def named(kernels: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module with an attention kernel that has vLLM's parameter names."""
    inner = getattr(kernels, ATTENTION)

    def flash_attn_varlen_func(*, q: Any, k: Any, v: Any, **rest: Any) -> Any:
        return inner(q=q, k=k, v=v, **rest)

    monkeypatch.setattr(kernels, ATTENTION, flash_attn_varlen_func)
    return kernels


def test_one_byte_is_counted() -> None:
    tensor = parity_packet.make_cache(0)
    other = tensor.clone()
    other.view(torch.uint8)[3, 5, 1, 7] ^= 1
    assert parity_packet._differing_bytes(tensor, other) == 1
    assert parity_packet._sha256(tensor) != parity_packet._sha256(other)


def test_inputs_are_the_seeds_alone() -> None:
    assert torch.equal(parity_packet.make_cache(1), parity_packet.make_cache(1))
    assert not torch.equal(parity_packet.make_cache(1), parity_packet.make_cache(2))
    one, again = (parity_packet.make_inputs(90002, AttentionKind.FULL, 2) for _ in range(2))
    assert torch.equal(one.query, again.query)
    assert (one.query.shape, one.key.shape, one.value.dtype) == ((2, 12 * 128), (2, 256), torch.bfloat16)
    digest = hashlib.sha256(parity_packet.make_cache(0).view(torch.uint8).numpy().tobytes()).hexdigest()
    assert digest == "10e7904736814a3cc557b5f85527024ce7979b51e804606a0e06b8a93765a009"


@pytest.mark.parametrize("query", range(2, 9))
def test_each_query_is_a_sequence_that_writes_its_own_token(query: int) -> None:
    batch = parity_packet.make_batch(query, CPU)
    assert batch.lengths.tolist() == [KV_TOKENS] * query
    assert batch.block_table.tolist() == [list(range(15, -1, -1))] * query
    assert len(set(batch.slots.tolist())) == query
    assert batch.slots[-1] == 6 * PAGE_TOKENS  # token 576 is the first of the tenth page


def test_a_fallback_raises_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(XPU_INTERFACE)
    names = ("_fallback_varlen_attn", "ref_paged_attn")
    vars(module).update(dict.fromkeys(names, lambda: "plain torch"))
    monkeypatch.setitem(sys.modules, XPU_INTERFACE, module)
    assert tuple(attention_layers.forbid_fallbacks("xpu")) == KERNELS["xpu"].forbidden
    for name in names:
        with pytest.raises(RuntimeError, match=f"{name}: seen called, so attention fell back to plain torch"):
            vars(module)[name]()


def test_a_fallback_that_moved_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(XPU_INTERFACE)
    vars(module)["_fallback_varlen_attn"] = lambda: None
    monkeypatch.setitem(sys.modules, XPU_INTERFACE, module)
    with pytest.raises(RuntimeError, match="flash_attn_interface: seen no ref_paged_attn; expected it, to forbid it"):
        attention_layers.forbid_fallbacks("xpu")


def test_a_lane_whose_kernels_are_not_loaded_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"xpu: seen no vllm_xpu_kernels\.flash_attn_interface"):
        attention_layers.serving_module("xpu")


@pytest.mark.parametrize("lane", KERNELS)
def test_what_serves_a_lane_is_what_the_rules_expect(lane: Any) -> None:
    name, fallbacks = attention_layers._SERVING[lane]
    assert (name, tuple(f"{name}.{each}" for each in fallbacks)) == (KERNELS[lane].served_by, KERNELS[lane].forbidden)


def test_compiled_modules_are_found_beside_the_one_they_serve() -> None:
    """The candidate's own extension stands for a kernel's: a compiled file in the directory of a Python module."""
    package, compiled = (importlib.import_module(name) for name in ("laguna_kv", "laguna_kv._contract"))
    [found] = [each for each in parity_packet._compiled_beside(package) if each is compiled]
    extension = parity_packet._loaded(found)
    assert extension.module == "laguna_kv._contract"
    assert extension.sha256 == hashlib.sha256(Path(extension.file).read_bytes()).hexdigest()
    assert parity_packet._compiled_beside(parity_packet) == []


def test_a_functions_origin_is_the_file_that_defines_it() -> None:
    origin = parity_packet._origin(UPDATE, geometry)
    assert (origin.module, origin.qualified_name) == ("pytest_laguna.engine.kernel_watch", "geometry")
    assert origin.sha256 == hashlib.sha256(Path(origin.file).read_bytes()).hexdigest()
