# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import vllm.v1.attention.backends.flash_attn as upstream
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as RunnerV2
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as RunnerV1

from gates import vllm_classes as support
from laguna_kv.backend import LagunaFlashAttentionBackend
from laguna_kv.proof import describe_worker
from laguna_kv.settings import FLAG, VALIDATOR, Validator


def worker(config: Any, runner: type = RunnerV1) -> Any:
    return SimpleNamespace(vllm_config=config, model_runner=object.__new__(runner))


def test_the_candidate_is_described_from_its_layers(config: Any, validator: Validator, monkeypatch: Any) -> None:
    monkeypatch.setenv(FLAG, "1")
    monkeypatch.setenv(VALIDATOR, validator)
    for number in (0, 1, 48):
        layer = support.make_layer(config, LagunaFlashAttentionBackend, number)
        layer.kv_cache = support.make_cache()
        for _ in range(number + 1):
            support.run_step(config, layer)
    proof = describe_worker(worker(config))
    names = [f"model.layers.{number}.self_attn.attn" for number in (0, 1, 48)]
    assert proof == json.loads(json.dumps(proof))
    assert proof == {
        "flag": True,
        "model_runner": "V1",
        "lane": "cpu",
        "validator": str(validator),
        "backends": ["laguna_kv.backend.LagunaFlashAttentionBackend"],
        "implementations": ["laguna_kv.backend.LagunaFlashAttentionImpl"],
        "target_layers": names[:2],
        "draft_layers": names[2:],
        "target_layers_with_state": 2,
        "draft_layers_with_state": 0,
        "builds": 2,
        "invalidations": 0,
        "forward_hits": 3,
        "update_hits": 3,
        "layers": {
            names[0]: {"builds": 1, "invalidations": 0, "forward_hits": 1, "update_hits": 1},
            names[1]: {"builds": 1, "invalidations": 0, "forward_hits": 2, "update_hits": 2},
        },
    }


def test_a_state_of_the_drafters_is_told(config: Any) -> None:
    layer = support.make_layer(config, LagunaFlashAttentionBackend, 48)
    layer.impl.views.build(support.make_cache(), support.HEAD_SIZE)
    proof = describe_worker(worker(config))
    assert (proof["draft_layers_with_state"], proof["target_layers_with_state"]) == (1, 0)


def test_stock_classes_are_told_as_such(config: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv(FLAG, "0")
    support.make_layer(config, upstream.FlashAttentionBackend)
    proof = describe_worker(worker(config, RunnerV2))
    assert (proof["flag"], proof["model_runner"], proof["validator"], proof["lane"]) == (False, "V2", None, None)
    assert proof["implementations"] == ["vllm.v1.attention.backends.flash_attn.FlashAttentionImpl"]
    assert (proof["target_layers_with_state"], proof["builds"], proof["layers"]) == (0, 0, {})


def test_a_flag_that_did_not_arrive_is_seen(config: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv(FLAG, "1")  # for instance because VLLM_PLUGINS left the plugin out
    support.make_layer(config, upstream.FlashAttentionBackend)
    proof = describe_worker(worker(config))
    assert proof["flag"] is True
    assert proof["backends"] == ["vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"]


def test_an_unknown_model_runner_is_refused(config: Any) -> None:
    with pytest.raises(TypeError, match=r"seen <class 'object'>; expected a subclass of vLLM's V1 or V2 runner$"):
        describe_worker(SimpleNamespace(vllm_config=config, model_runner=object()))


def test_layers_that_disagree_are_refused(config: Any, monkeypatch: Any) -> None:
    for number, validator in enumerate(Validator):
        monkeypatch.setenv(VALIDATOR, validator)
        support.make_layer(config, LagunaFlashAttentionBackend, number)
    with pytest.raises(ValueError, match=r"seen \['native', 'python'\]; expected the same in every layer"):
        describe_worker(worker(config))
