# SPDX-License-Identifier: Apache-2.0
"""Every field of the registered contract refuses every other value, by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import CompilationMode, CUDAGraphMode
from vllm.v1.attention.backend import AttentionType

from gates import vllm_classes as support
from laguna_kv import compat
from laguna_kv.backend import LagunaFlashAttentionBackend
from laguna_kv.eligibility import ENGINE, LAYER, require_cache, require_engine, require_layer
from laguna_kv.errors import EligibilityError
from laguna_kv.settings import FLAG, LANE, Lane

NO_DRAFT = SimpleNamespace(
    method="ngram", num_speculative_tokens=7, draft_sample_method="greedy", rejection_sample_method="standard"
)


def test_the_registered_engine_is_accepted(config: Any) -> None:
    facts = compat.engine_facts(config)
    require_engine("layer 7", facts, Lane.CPU)
    assert facts == {"platform": "cpu", **ENGINE}


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("compilation mode", {"compilation_config__mode": CompilationMode.VLLM_COMPILE}),
        ("cudagraph mode", {"compilation_config__cudagraph_mode": CUDAGraphMode.FULL}),
        ("cudagraph mode", {"compilation_config__cudagraph_mode": CUDAGraphMode.FULL_AND_PIECEWISE}),
        ("cudagraph mode", {"compilation_config__cudagraph_mode": CUDAGraphMode.NONE}),
        ("cudagraph mode", {"compilation_config__cudagraph_mode": None}),
        ("cudagraph capture sizes", {"compilation_config__cudagraph_capture_sizes": [4, 8]}),
        ("cudagraph capture sizes", {"compilation_config__cudagraph_capture_sizes": [16]}),
        ("cudagraph capture sizes", {"compilation_config__cudagraph_capture_sizes": None}),
        ("max_num_seqs", {"scheduler_config__max_num_seqs": 2}),
        ("pipeline stages", {"parallel_config__pipeline_parallel_size": 2}),
        ("KV transfer", {"kv_transfer_config": "a connector"}),
        ("speculative method", {"speculative_config": None}),
        ("speculative method", {"speculative_config": NO_DRAFT}),
        ("speculative tokens", {"speculative_config__num_speculative_tokens": 6}),
        ("speculative tokens", {"speculative_config__num_speculative_tokens": 8}),
        ("draft sampling", {"speculative_config__draft_sample_method": "probabilistic"}),
        ("rejection sampling", {"speculative_config__rejection_sample_method": "synthetic"}),
        ("rejection sampling", {"speculative_config__rejection_sample_method": "block"}),
    ],
    ids=lambda value: value if isinstance(value, str) else str(next(iter(value.values())))[:24],
)
def test_another_engine_is_refused(engine: support.Recorded, field: str, changes: dict[str, Any]) -> None:
    del engine
    facts = compat.engine_facts(support.registered_engine(**changes))
    with pytest.raises(EligibilityError) as caught:
        require_engine("layer 7", facts, Lane.CPU)
    assert field in [name for name, _, _ in caught.value.mismatches]
    assert f"{field} (seen {facts[field]}; expected {ENGINE[field]})" in str(caught.value)
    assert str(caught.value).endswith("run the registered configuration or unset the flag")


@pytest.mark.parametrize("value", ["0", None])
def test_an_engine_without_breakable_graphs_is_refused(config: Any, monkeypatch: Any, value: str | None) -> None:
    monkeypatch.delenv("VLLM_USE_BREAKABLE_CUDAGRAPH")
    if value is not None:
        monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", value)
    with pytest.raises(EligibilityError, match=r"breakable graphs \(seen False; expected True\)"):
        require_engine("layer 7", compat.engine_facts(config), Lane.CPU)


@pytest.mark.parametrize("lane", [Lane.XPU, Lane.CUDA])
def test_another_platform_than_the_lane_is_refused(config: Any, lane: Lane) -> None:
    with pytest.raises(EligibilityError, match=rf"platform \(seen cpu; expected {lane}\)"):
        require_engine("layer 7", compat.engine_facts(config), lane)


@pytest.mark.parametrize("field", [*ENGINE, "platform"])
def test_a_fact_that_is_missing_is_a_mismatch(field: str) -> None:
    facts = {name: value for name, value in {"platform": "cpu", **ENGINE}.items() if name != field}
    with pytest.raises(EligibilityError, match=rf"{field} \(seen nothing; expected .*\)"):
        require_engine("layer 7", facts, Lane.CPU)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("attention type", kind) for kind in ("encoder", "encoder_only", "encoder_decoder")),
        ("head size", 64),
        ("head size", 256),
        ("local KV heads", 1),
        ("local KV heads", 8),
        ("shared KV cache of", "model.layers.0.self_attn.attn"),
    ],
)
def test_another_layer_is_refused(field: str, value: object) -> None:
    require_layer("layer 7", LAYER, "auto")
    with pytest.raises(EligibilityError, match=rf"^layer 7: .*{field} \(seen {value}; expected {LAYER[field]}\)"):
        require_layer("layer 7", {**LAYER, field: value}, "auto")


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "float16", "nvfp4", ""])
def test_another_cache_type_is_refused(dtype: str) -> None:
    require_layer("layer 7", LAYER, "bfloat16")
    with pytest.raises(EligibilityError, match=r"^layer 7: ") as caught:
        require_layer("layer 7", LAYER, dtype)
    assert caught.value.mismatches == (("KV cache dtype", "auto or bfloat16", dtype),)


CACHES: dict[str, tuple[str, torch.Tensor]] = {
    "float16": ("cache dtype", support.make_cache(dtype=torch.float16)),
    "float32": ("cache dtype", support.make_cache(dtype=torch.float32)),
    "fp8": ("cache dtype", support.make_cache().to(torch.float8_e4m3fn)),
    "one head": ("cache shape", support.make_cache(kv_heads=1)),
    "head of 64": ("cache shape", support.make_cache(head_size=64)),
    "placeholder": ("cache shape", torch.tensor([])),
    "five dimensions": ("cache shape", torch.zeros(2, 4, 2, 16, 256, dtype=torch.bfloat16)),
    "HND": ("cache layout", support.make_cache(layout="HND")),
    "block outside layers": ("cache layout", support.make_cache(blocks=8)[::2]),
    "meta": ("cache device", support.make_cache().to("meta")),
}


@pytest.mark.parametrize("name", CACHES)
def test_another_cache_is_refused(name: str) -> None:
    field, cache = CACHES[name]
    require_cache("layer 7", support.make_cache(blocks=1), Lane.CPU)
    with pytest.raises(EligibilityError, match=rf"^layer 7: .* {field}( \(strides of .*\))? \(seen "):
        require_cache("layer 7", cache, Lane.CPU)


def test_every_mismatch_is_told_at_once() -> None:
    with pytest.raises(EligibilityError) as caught:
        require_layer("layer 7", {**LAYER, "head size": 64, "local KV heads": 1}, "auto")
    assert [field for field, _, _ in caught.value.mismatches] == ["head size", "local KV heads"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"kv_heads": 1}, "local KV heads"),
        ({"head_size": 64}, "head size"),
        ({"attn_type": AttentionType.ENCODER_ONLY}, "attention type"),
        ({"attn_type": AttentionType.ENCODER_DECODER}, "attention type"),
    ],
    ids=["heads", "head size", "encoder", "cross"],
)
def test_a_real_layer_outside_the_contract_raises_and_reaches_no_kernel(
    engine: support.Recorded, config: Any, arguments: dict[str, Any], told: str
) -> None:
    layer = support.make_layer(config, LagunaFlashAttentionBackend, **arguments)
    layer.kv_cache = support.make_cache()
    with pytest.raises(EligibilityError, match=rf"^{layer.layer_name}: .*{told}"):
        support.run_step(config, layer)
    assert (engine.update, engine.attention) == ([], [])
    assert layer.impl.views.builds == 0


def test_an_attention_type_may_be_plain_text(config: Any) -> None:
    """As vLLM annotates it; what it passes by itself is a member of its enumeration."""
    layer = support.make_layer(config, LagunaFlashAttentionBackend)
    layer.kv_cache = support.make_cache()
    layer.impl.attn_type = "decoder"
    support.run_step(config, layer)
    assert layer.impl.views.builds == 1


def test_a_layer_of_a_vllm_without_the_mark_is_told_by_its_number(config: Any) -> None:
    """0.26.0 and the V1 runner of 0.32.0 do not mark the drafter's layers."""
    for number, draft in ((47, False), (48, True)):
        layer = SimpleNamespace(layer_name=f"model.layers.{number}.self_attn.attn")
        assert compat.is_draft_layer(layer, config) is draft


def test_the_lane_and_the_engine_are_judged_on_a_real_layers_first_use(
    engine: support.Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LANE)
    monkeypatch.setenv(FLAG, "1")
    config = support.registered_engine(scheduler_config__max_num_seqs=4)
    layer = support.make_layer(config, LagunaFlashAttentionBackend)
    layer.kv_cache = support.make_cache()
    with pytest.raises(
        EligibilityError, match=rf"^{layer.layer_name}: .*platform \(seen cpu; expected xpu\), max_num_seqs"
    ):
        support.run_step(config, layer)
    assert engine.update == []
