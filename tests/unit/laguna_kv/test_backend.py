# SPDX-License-Identifier: Apache-2.0
"""vLLM's real attention layers with the candidate in them: what reaches the kernels, and what vLLM's hooks do."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import vllm.envs
import vllm.v1.attention.backends.flash_attn as upstream
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.platforms import current_platform
from vllm.utils.torch_utils import canonicalize_singleton_dim_strides
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import get_attn_backend

from gates import vllm_classes as support
from laguna_kv import compat
from laguna_kv.backend import LagunaFlashAttentionBackend, LagunaFlashAttentionImpl
from laguna_kv.contract import PythonContract
from laguna_kv.errors import ContractError, EligibilityError, LifecycleError
from laguna_kv.plugin import register
from laguna_kv.settings import FLAG, VALIDATOR, Validator


@pytest.fixture
def layer(config: Any, validator: Validator, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(VALIDATOR, validator)
    layer = support.make_layer(config, LagunaFlashAttentionBackend)
    layer.kv_cache = support.make_cache()
    return layer


def stock_layer(config: Any, cache: torch.Tensor) -> Any:
    layer = support.make_layer(config, upstream.FlashAttentionBackend, 1)
    layer.kv_cache = cache
    return layer


def test_upstream_uses_its_cache_argument_once_in_each_method() -> None:
    expression = "kv_cache.transpose(1, 2).split(self.head_size, dim=-1)"
    for method in (upstream.FlashAttentionImpl.forward, upstream.FlashAttentionImpl.do_kv_cache_update):
        assert support.uses_of_the_cache_argument(method) == [expression]


def test_outputs_and_cache_are_the_stock_ones_bitwise(config: Any, layer: Any) -> None:
    stock = stock_layer(config, layer.kv_cache.clone())
    for tokens, context, seed in ((16, 16, 1), (8, 24, 2), (3, 27, 3), (1, 28, 4)):
        ours = support.run_step(config, layer, tokens, context, seed)
        theirs = support.run_step(config, stock, tokens, context, seed)
        assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
        assert torch.equal(layer.kv_cache.contiguous().view(torch.int16), stock.kv_cache.contiguous().view(torch.int16))
    assert ours.float().abs().mean() > 0.01, "numbers that could differ"


def test_kernels_get_the_stored_objects_with_the_stock_geometry(engine: Any, config: Any, layer: Any) -> None:
    for seed in range(3):
        support.run_step(config, layer, seed=seed)
    contract = layer.impl.views.contract
    for pairs, seam in ((engine.attention, contract.canonical), (engine.update, contract.raw)):
        assert len(pairs) == 3
        for key, value in pairs:
            assert key is seam.views[0]
            assert value is seam.views[1]
    del engine.attention[:], engine.update[:]
    support.run_step(config, stock_layer(config, layer.kv_cache))
    for stock, ours in ((engine.attention[0], contract.canonical.views), (engine.update[0], contract.raw.views)):
        for theirs, mine in zip(stock, ours, strict=True):
            assert theirs is not mine
            assert (theirs.data_ptr(), theirs.shape, theirs.stride()) == (mine.data_ptr(), mine.shape, mine.stride())


def test_a_layer_runs_the_validator_that_is_named(config: Any, layer: Any, validator: Validator) -> None:
    support.run_step(config, layer)
    assert isinstance(layer.impl.views.contract, PythonContract) is (validator is Validator.PYTHON)


def test_a_layer_is_made_of_what_vllm_passes_by_name_too(config: Any) -> None:
    with set_current_vllm_config(config):
        layer = LagunaFlashAttentionImpl(12, 128, 1.0, 2, None, None, "auto", kv_sharing_target_layer_name="another")
    assert layer.kv_sharing_target_layer_name == "another"


def test_vllms_forward_asks_its_helper_for_no_alias_that_the_native_contract_has_checked(
    config: Any, validator: Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VALIDATOR, validator)
    asked: list[Any] = []

    def helper(tensor: Any) -> Any:
        asked.append(tensor)
        return canonicalize_singleton_dim_strides(tensor)

    monkeypatch.setattr(upstream, "canonicalize_singleton_dim_strides", helper)
    layer = support.make_layer(config, LagunaFlashAttentionBackend)
    layer.kv_cache = support.make_cache()
    for step in range(2):
        support.run_step(config, layer)
        assert len(asked) == (0 if validator is Validator.NATIVE else 2 * (step + 1))
    del asked[:]
    support.run_step(config, stock_layer(config, layer.kv_cache))
    assert len(asked) == 2


def test_one_build_then_only_hits(config: Any, layer: Any) -> None:
    for _ in range(5):
        support.run_step(config, layer)
    views = layer.impl.views
    assert (views.builds, views.invalidations, views.forward_hits, views.update_hits) == (1, 0, 5, 5)
    assert views.owner == layer.layer_name


def test_vllms_profiling_run_without_metadata_builds_nothing(layer: Any) -> None:
    query, key, value = support.projections(layer, 8, 0)
    output = torch.ones_like(query)
    layer.impl.forward(layer, query, key, value, torch.tensor([]), None, output=output)
    assert output.abs().sum() == 0
    assert layer.impl.views.builds == 0


@pytest.mark.parametrize("number", [48, 49, 53])
def test_the_drafters_layers_are_left_alone(engine: Any, config: Any, number: int) -> None:
    layer = support.make_layer(config, LagunaFlashAttentionBackend, number, kv_heads=1)
    layer.kv_cache = support.make_cache(kv_heads=1)
    stock = stock_layer(config, layer.kv_cache.clone())
    stock.num_heads, stock.num_kv_heads = layer.num_heads, layer.num_kv_heads
    support.run_step(config, layer)
    layer.kv_cache = support.make_cache(kv_heads=1)  # the drafter's cache may change as vLLM likes
    support.run_step(config, layer)
    assert layer.impl.is_draft is True
    assert (layer.impl.views.builds, layer.impl.views.contract) == (0, None)
    assert engine.attention[-1][0] is not engine.attention[-2][0]


def test_a_layer_that_vllm_marks_as_the_drafters_is_left_alone(config: Any) -> None:
    layer = support.make_layer(config, LagunaFlashAttentionBackend, 3)
    layer.is_draft_layer = True
    layer.kv_cache = support.make_cache()
    support.run_step(config, layer)
    assert (layer.impl.is_draft, layer.impl.views.builds) == (True, 0)


@pytest.mark.parametrize("rebind", ["copy", "same memory", "placeholder"])
def test_a_rebind_without_a_clear_raises_and_rebuilds_nothing(config: Any, layer: Any, rebind: str) -> None:
    support.run_step(config, layer)
    layer.kv_cache = {
        "copy": layer.kv_cache.clone(),
        "same memory": layer.kv_cache.view(layer.kv_cache.shape),
        "placeholder": torch.tensor([]),
    }[rebind]
    for _ in range(2):
        with pytest.raises(ContractError, match=f"^{layer.layer_name}: .*source.identity"):
            support.run_step(config, layer)
    assert (layer.impl.views.builds, layer.impl.views.invalidations) == (1, 0)


def test_a_head_size_that_drifts_is_refused(config: Any, layer: Any) -> None:
    support.run_step(config, layer)
    layer.impl.head_size = 64
    with pytest.raises(ContractError, match=r"seam.split: seen \(64, -1\); expected \(128, dim=-1\)"):
        layer.impl.do_kv_cache_update(layer, None, None, layer.kv_cache, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_kv_heads", 4), ("kv_cache_dtype", "fp8"), ("attn_type", "encoder_only"),
        ("kv_sharing_target_layer_name", "model.layers.0.self_attn.attn"),
    ],
)  # fmt: skip
def test_a_fact_of_the_layer_cannot_drift_once_it_was_judged(config: Any, layer: Any, field: str, value: Any) -> None:
    before = getattr(layer.impl, field)
    setattr(layer.impl, field, value)  # a layer that has not been used is vLLM's to finish
    setattr(layer.impl, field, before)
    support.run_step(config, layer)
    with pytest.raises(ContractError, match=rf"^{layer.layer_name}: .* at layer.{field}: ") as caught:
        setattr(layer.impl, field, value)
    assert (caught.value.expected, caught.value.seen) == (str(before), str(value))
    setattr(layer.impl, field, before)
    support.run_step(config, layer)
    assert layer.impl.views.builds == 1


@pytest.mark.parametrize("name", ["views", "settings", "_config"])
def test_what_a_layer_was_made_with_cannot_be_replaced(config: Any, layer: Any, name: str) -> None:
    other = support.make_layer(config, LagunaFlashAttentionBackend, 1).impl
    support.run_step(config, layer)
    made_with = "expected what the layer was made with"
    replacement = getattr(other, name)
    with pytest.raises(
        ContractError,
        match=rf"^{layer.layer_name}: .* at layer.{name}: seen {type(replacement).__name__}; {made_with};",
    ):
        setattr(layer.impl, name, replacement)
    support.run_step(config, layer)
    assert layer.impl.views.builds == 1


def test_a_layer_stays_the_targets_once_it_was_seen(config: Any, layer: Any) -> None:
    support.run_step(config, layer)
    with pytest.raises(ContractError, match=rf"^{layer.layer_name}: .* at layer.is_draft: seen True; expected False"):
        layer.impl._is_draft = True
    assert layer.impl.is_draft is False


@pytest.mark.parametrize("counter", ["builds", "invalidations"])
def test_a_counter_cannot_be_set_to_hide_a_lost_state(config: Any, layer: Any, counter: str) -> None:
    support.run_step(config, layer)
    before = layer.impl.views.builds - layer.impl.views.invalidations
    layer.impl.views.contract = None
    with pytest.raises(
        ContractError,
        match=rf"^{layer.layer_name}: .* at views.{counter}: seen [01]; expected only a build or a clear to change it;",
    ):
        setattr(layer.impl.views, counter, before if counter == "invalidations" else 0)
    with pytest.raises(LifecycleError, match="1 states built, 0 invalidated, none held"):
        support.run_step(config, layer)


@pytest.mark.parametrize("value", [5, 0, False, torch.ones(1)], ids=repr)
def test_only_none_is_vllms_clearing(config: Any, layer: Any, value: Any) -> None:
    support.run_step(config, layer)
    told = f"at _k_scale_cache: seen {type(value).__name__}; expected None, as vLLM clears a cache;"
    with pytest.raises(ContractError, match=rf"^{layer.layer_name}: .* {told}"):
        layer.impl._k_scale_cache = value
    support.run_step(config, layer)
    assert (layer.impl.views.builds, layer.impl.views.invalidations) == (1, 0)


def test_a_lost_state_is_not_built_again(config: Any, layer: Any) -> None:
    support.run_step(config, layer)
    layer.impl.views.contract = None
    for cache in (layer.kv_cache, support.make_cache()):
        layer.kv_cache = cache
        with pytest.raises(LifecycleError, match="1 states built, 0 invalidated, none held"):
            support.run_step(config, layer)


def test_vllms_methods_get_what_they_were_called_with_but_for_the_cache(
    config: Any, layer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    support.run_step(config, layer)
    given: list[tuple[Any, ...]] = []
    for name in ("forward", "do_kv_cache_update"):
        monkeypatch.setattr(upstream.FlashAttentionImpl, name, lambda *arguments: given.append(arguments))
    layer.impl.forward(layer, "query", "key", "value", layer.kv_cache, "metadata", "output", "scale", "block scale")
    layer.impl.do_kv_cache_update(layer, "key", "value", layer.kv_cache, "slots")
    contract = layer.impl.views.contract
    assert given == [
        (
            layer.impl, layer, "query", "key", "value", contract.canonical,
            "metadata", "output", "scale", "block scale",
        ),
        (layer.impl, layer, "key", "value", contract.raw, "slots"),
    ]  # fmt: skip


@pytest.mark.parametrize("scale", ["output_scale", "output_block_scale"])
def test_output_scales_reach_vllm_which_refuses_them(layer: Any, scale: str) -> None:
    query, key, value = support.projections(layer, 8, 0)
    with pytest.raises(NotImplementedError, match="output"):
        layer.impl.forward(
            layer, query, key, value, layer.kv_cache, support.metadata(8, 24),
            output=torch.empty_like(query), **{scale: torch.ones(1)},
        )  # fmt: skip


@pytest.mark.parametrize("clear", support.CLEARINGS.values(), ids=support.CLEARINGS)
def test_vllms_clear_discards_the_state_and_the_next_cache_gets_one(
    config: Any, layer: Any, clear: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    support.do_without_a_device(monkeypatch)
    support.run_step(config, layer)
    clear(config, {layer.layer_name: layer})
    assert (layer.impl.views.contract, layer.impl.views.invalidations) == (None, 1)
    assert layer.impl._k_scale_cache is None
    layer.kv_cache = support.make_cache()
    support.run_step(config, layer)
    assert (layer.impl.views.builds, layer.impl.views.forward_hits) == (2, 2)


def test_a_use_between_clear_and_bind_is_refused(config: Any, layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    support.do_without_a_device(monkeypatch)
    support.run_step(config, layer)
    support.clear_with_v1(config, {layer.layer_name: layer})
    with pytest.raises(
        EligibilityError,
        match=rf"^{layer.layer_name}: .*cache shape \(seen \[0\]; expected \[num_blocks, 2, block_size, 256\]\)",
    ):
        support.run_step(config, layer)
    assert layer.impl.views.builds == 1


def test_the_registration_is_vllms_own_and_replaces_flash_attn(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del engine
    monkeypatch.setenv(FLAG, "1")
    register()
    try:
        assert AttentionBackendEnum.FLASH_ATTN.get_path() == "laguna_kv.backend.LagunaFlashAttentionBackend"
        assert AttentionBackendEnum.FLASH_ATTN.get_class() is LagunaFlashAttentionBackend
        assert vllm.envs.environment_variables.pop(FLAG)() == "1"
    finally:
        AttentionBackendEnum.FLASH_ATTN.clear_override()
        del vars(current_platform)["get_attn_backend_cls"]


def test_another_backend_is_not_selected_in_silence_under_flag_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform of vLLM's CPU build answers CPU_ATTN whatever is asked for.

    vLLM remembers what it selected for a head size, hence three of them.
    """
    selected = current_platform.get_attn_backend_cls
    monkeypatch.setenv(FLAG, "1")
    register()
    register()  # a second plugin load of the same process
    try:
        with set_current_vllm_config(VllmConfig()):
            for _ in range(2):
                with pytest.raises(
                    EligibilityError, match=r"^attention on cpu: .*backend \(seen .*CPU.*; expected laguna_kv"
                ):
                    get_attn_backend(128, torch.bfloat16, "auto")
            monkeypatch.setattr(
                type(current_platform), "get_attn_backend_cls",
                lambda *_arguments, **_keywords: AttentionBackendEnum.FLASH_ATTN.get_path(),
            )  # fmt: skip
            assert get_attn_backend(64, torch.bfloat16, "auto") is LagunaFlashAttentionBackend
            monkeypatch.undo()
            monkeypatch.setenv(FLAG, "0")
            assert get_attn_backend(256, torch.bfloat16, "auto").get_name().startswith("CPU")
    finally:
        AttentionBackendEnum.FLASH_ATTN.clear_override()
        vllm.envs.environment_variables.pop(FLAG)
        del vars(current_platform)["get_attn_backend_cls"]
    assert current_platform.get_attn_backend_cls == selected


@pytest.mark.parametrize(
    ("flag", "path", "refused"), [("1", "ours", False), ("1", "other", True), ("0", "other", False)]
)
def test_another_backend_is_refused_under_flag_one_alone(
    monkeypatch: pytest.MonkeyPatch, flag: str, path: str, refused: bool
) -> None:
    class Platform:
        device_type = "cpu"

        @classmethod
        def get_attn_backend_cls(cls, *_arguments: Any, **_keywords: Any) -> str:
            return path

    platform: Any = Platform()
    monkeypatch.setattr(compat, "current_platform", platform)
    monkeypatch.setenv(FLAG, flag)
    compat.refuse_other_backends("ours")
    if refused:
        with pytest.raises(EligibilityError, match=r"^attention on cpu: .*backend \(seen other; expected ours\)"):
            platform.get_attn_backend_cls("selected", head_size=128)
    else:
        assert platform.get_attn_backend_cls("selected", head_size=128) == path


def test_the_backend_is_vllms_with_another_implementation() -> None:
    assert LagunaFlashAttentionBackend.get_name() == "FLASH_ATTN"
    assert LagunaFlashAttentionBackend.get_impl_cls() is LagunaFlashAttentionImpl
    assert LagunaFlashAttentionBackend.get_builder_cls() is upstream.FlashAttentionMetadataBuilder
    assert not hasattr(upstream.FlashAttentionImpl, "_k_scale_cache")


def test_the_overrides_take_what_vllm_passes() -> None:
    for name in ("forward", "do_kv_cache_update"):
        ours = list(inspect.signature(getattr(LagunaFlashAttentionImpl, name)).parameters)
        assert ours == list(inspect.signature(getattr(upstream.FlashAttentionImpl, name)).parameters)


def test_a_layer_without_an_engine_configuration_is_not_made(engine: Any) -> None:
    del engine
    with pytest.raises(AssertionError, match="Current vLLM config is not set"):
        LagunaFlashAttentionImpl(12, 128, 1.0, 2, None, None, "auto")
