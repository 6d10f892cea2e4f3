# SPDX-License-Identifier: Apache-2.0
"""Tests where vLLM has been changed for the CPU lane; ``test_cpu_lane.py`` runs them in a process of their own."""

from __future__ import annotations

import os
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import vllm
from torch.nn import functional
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from vllm import _custom_ops as custom_ops
from vllm.compilation import breakable_cudagraph
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.parallel_state import GroupCoordinator
from vllm.model_executor.layers.fused_moe.router import cpu_router
from vllm.platforms import current_platform
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from laguna_kv import state, views
from laguna_kv.contract import python_contract
from laguna_kv.errors import ContractError
from pytest_laguna.engine import planting, plugin, probe, reference_kernels, tape_graph
from pytest_laguna.engine.compat import collectives, cpu_lane, introspection, version
from pytest_laguna.evidence.arms.arm_record import Planted


@pytest.fixture(autouse=True, scope="module")
def lane() -> None:
    plugin.register()
    plugin.register()  # vLLM may call it more than once


def test_the_flash_attention_backend_is_served_over_reference_kernels() -> None:
    assert vars(flash_attn)["flash_attn_varlen_func"] is reference_kernels.flash_attn_varlen_func
    assert vars(flash_attn)["reshape_and_cache_flash"] is reference_kernels.reshape_and_cache_flash
    implementation = flash_attn.FlashAttentionImpl(
        num_heads=4, head_size=128, scale=1.0, num_kv_heads=2, alibi_slopes=None, sliding_window=None,
        kv_cache_dtype="auto",
    )  # fmt: skip
    assert implementation.vllm_flash_attn_version == 2


def test_a_backend_registered_later_in_place_of_flash_attention_is_honoured() -> None:
    selector: Any = None  # what vLLM knows of the layer has no part in it

    def chosen() -> str:
        return str(current_platform.get_attn_backend_cls(AttentionBackendEnum.CPU_ATTN, selector, num_heads=4))

    assert chosen() == "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"
    register_backend(AttentionBackendEnum.FLASH_ATTN, "somewhere.Backend")
    try:
        assert chosen() == "somewhere.Backend"
    finally:
        AttentionBackendEnum.FLASH_ATTN.clear_override()


@pytest.mark.parametrize("renormalize", [True, False])
def test_ungrouped_sigmoid_routing_is_vllms_routing_in_one_group(renormalize: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(16, 8, generator=generator).to(torch.bfloat16)
    bias = torch.randn(8, generator=generator)
    router = cpu_router.CPURouter(
        top_k=2, global_num_experts=8, renormalize=renormalize, scoring_func="sigmoid", routed_scaling_factor=2.5,
        e_score_correction_bias=bias,
    )  # fmt: skip
    weights, experts = router._compute_routing(torch.empty(0), logits, None)
    wanted_weights, wanted_experts = cpu_router._grouped_topk(logits, 2, renormalize, 1, 1, "sigmoid", 2.5, bias)
    order, wanted_order = experts.argsort(-1), wanted_experts.argsort(-1)
    assert torch.equal(experts.gather(-1, order), wanted_experts.gather(-1, wanted_order))
    torch.testing.assert_close(weights.gather(-1, order), wanted_weights.gather(-1, wanted_order))


def test_other_routing_is_vllms_own() -> None:
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    router = cpu_router.CPURouter(top_k=2, global_num_experts=8)
    weights, _ = router._compute_routing(torch.empty(0), logits, None)
    assert torch.equal(weights, cpu_router._softmax_topk(logits, 2, True)[0])


def test_stacked_norms_are_right_and_vllms_kernel_alone_is_not() -> None:
    states = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    weight = (torch.rand(2, 64, generator=torch.Generator().manual_seed(1)) + 1).to(torch.bfloat16)
    expanded = states.unsqueeze(0).expand(2, -1, -1)
    wanted = torch.stack([functional.rms_norm(states, (64,), weight[layer], 1e-6) for layer in range(2)])
    out = torch.empty(2, 5, 64, dtype=torch.bfloat16)
    custom_ops.rms_norm(out, expanded, weight, 1e-6)
    torch.testing.assert_close(out, wanted, rtol=2e-2, atol=2e-2)
    torch.ops._C.rms_norm(out, expanded.contiguous(), weight, 1e-6)
    assert not torch.allclose(out[1], wanted[1], rtol=2e-2, atol=2e-2), "the cure is needed no longer: drop it"


def test_the_platform_allows_graphs_and_keeps_the_sizes_to_capture() -> None:
    assert current_platform.support_static_graph_mode()
    assert current_platform.get_global_graph_pool() == (0, 0)
    assert torch.cuda.CUDAGraph.__name__ == "TapeGraph"


@pytest.mark.parametrize(("asked", "method"), [(None, "spawn"), ("fork", "fork")])
def test_ranks_start_as_the_environment_says(asked: str | None, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """VLLM's own configuration of the CPU platform sets it; the lane leaves what the arm's environment has."""
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", asked or "")
    if asked is None:
        monkeypatch.delenv("VLLM_WORKER_MULTIPROC_METHOD")
    monkeypatch.setenv("LD_PRELOAD", "libgomp")  # or vLLM sets it, for what this process starts
    vllm.config.VllmConfig()
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == method


def test_who_waits_for_a_message_sleeps_between_two_looks() -> None:
    look_again: Any = vars(shm_broadcast)["sched_yield"]
    before = time.process_time(), time.perf_counter()
    for _ in range(100):
        look_again()
    assert time.perf_counter() - before[1] >= 0.05
    assert time.process_time() - before[0] < 0.05


def test_ranks_reduce_through_what_blocks() -> None:
    """VLLM asks this of a new communicator, and serves shared memory, where ranks spin, on a yes."""
    communicator: Any = object.__new__(CpuCommunicator)
    assert communicator._all_group_ranks_share_shm_group_name() is False


def test_another_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    with pytest.raises(RuntimeError, match=r"vLLM: seen 0\.33\.0; expected 0\.32\.0"):
        version.require_known_vllm()


def test_another_platform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = types.SimpleNamespace(is_cpu=lambda: False, device_name="xpu")
    monkeypatch.setattr(vllm.platforms, "current_platform", platform)
    with pytest.raises(RuntimeError, match="vLLM's platform: seen xpu; expected its CPU platform"):
        version.require_known_vllm()


def test_a_name_that_has_moved_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"CpuPlatform: seen no get_attention_backend; expected that of vLLM"):
        cpu_lane._replace(CpuPlatform, "get_attention_backend", None)


@pytest.fixture
def attention() -> Iterator[dict[str, Callable[[torch.Tensor, torch.Tensor], None]]]:
    """A custom operation broken by vLLM's own decorator, with a body of the test's choice."""
    body: dict[str, Callable[[torch.Tensor, torch.Tensor], None]] = {}

    def unified_attention_with_output(query: torch.Tensor, output: torch.Tensor) -> None:
        body["attend"](query, output)

    broken = breakable_cudagraph.eager_break_during_capture(unified_attention_with_output)
    with torch.library._scoped_library("laguna_lane_check", "FRAGMENT") as library:
        library.define("attention(Tensor query, Tensor(a!) output) -> ()")
        library.impl("attention", broken, "CPU")
        yield body


def double(query: torch.Tensor, output: torch.Tensor) -> None:
    assert query[0].item() is not None  # data-dependent: allowed in a break alone
    output.copy_(query * 2)


def test_vllms_own_capture_breaks_and_replays_over_tapes(attention: dict[str, Any]) -> None:
    attention["attend"] = double
    source = torch.ones(3)
    with torch.inference_mode(), breakable_cudagraph.BreakableCUDAGraphCapture(pool=(0, 0)) as capture:
        output = torch.empty(3)
        torch.ops.laguna_lane_check.attention(source + 1, output)
        result = output - 1
    assert (capture.num_graphs, capture.num_eager_breaks) == (2, 1)
    assert [introspection.segment_kind(segment) for segment in capture.segments] == ["graph", "attention", "graph"]
    source.fill_(4.0)
    with torch.inference_mode():
        capture.replay()
    assert result.tolist() == [9.0] * 3


def test_an_exception_inside_a_break_leaves_vllm_ready_for_the_next_capture(attention: dict[str, Any]) -> None:
    def fail(_query: torch.Tensor, _output: torch.Tensor) -> None:
        raise ValueError("the kernel failed")

    def captured() -> None:
        with breakable_cudagraph.BreakableCUDAGraphCapture(pool=(0, 0)):
            torch.ops.laguna_lane_check.attention(torch.ones(3) + 1, torch.empty(3))

    attention["attend"] = fail
    with pytest.raises(ValueError, match="the kernel failed"):
        captured()
    assert _get_current_dispatch_mode_stack() == []
    assert breakable_cudagraph.BreakableCUDAGraphCapture.current() is None
    attention["attend"] = double
    captured()


def test_a_refused_operation_leaves_vllm_ready_for_the_next_capture() -> None:
    def captured() -> None:
        with breakable_cudagraph.BreakableCUDAGraphCapture(pool=(0, 0)):
            torch.ones(3).nonzero()

    with pytest.raises(tape_graph.CaptureError, match="aten::nonzero"):
        captured()
    assert _get_current_dispatch_mode_stack() == []
    assert breakable_cudagraph.BreakableCUDAGraphCapture.current() is None


def test_an_unknown_break_is_of_another_kind() -> None:
    assert introspection.segment_kind(lambda: None) == "other"
    assert introspection.segment_kind(print) == "other"


def test_each_all_reduce_of_a_capture_can_be_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = []

    def all_reduce(_self: object, tensor: torch.Tensor) -> torch.Tensor:
        reduced.append(tensor.clone())
        return tensor.mul_(2)  # as if of two ranks that hold the same

    monkeypatch.setattr(GroupCoordinator, "_all_reduce_out_place", all_reduce)
    collectives.break_at_collectives()
    group: Any = object.__new__(GroupCoordinator)
    group.world_size, group.use_custom_op_call = 2, False
    source = torch.ones(3)
    with breakable_cudagraph.BreakableCUDAGraphCapture(pool=(0, 0)) as capture:
        result = group.all_reduce(source + 1) + 1
    kinds = [introspection.segment_kind(segment) for segment in capture.segments]
    assert kinds == ["graph", "collective", "graph"]
    assert result.tolist() == [5.0] * 3
    source.fill_(4.0)
    capture.replay()
    assert result.tolist() == [11.0] * 3
    assert [tensor[0].item() for tensor in reduced] == [2.0, 5.0]
    assert group.all_reduce(torch.ones(1)).tolist() == [2.0]  # outside a capture it is vLLM's own


def test_the_probe_is_asked_in_order_and_once() -> None:
    rank: Any = probe.RankProbe()
    with pytest.raises(RuntimeError, match="laguna_report: seen before laguna_begin"):
        rank.laguna_report()
    compilation = types.SimpleNamespace(static_forward_context={})
    rank.vllm_config = types.SimpleNamespace(compilation_config=compilation)
    rank.model_runner = types.SimpleNamespace(get_model=lambda: None, sample_tokens=None)
    rank.laguna_begin()
    with pytest.raises(RuntimeError, match="laguna_begin: seen a second call"):
        rank.laguna_begin()


def cache() -> torch.Tensor:
    return torch.randn(3, 64, 2, 256, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).transpose(1, 2)


@pytest.fixture
def undo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "build_views", views.build_views)
    monkeypatch.setattr(state.ViewState, "build", state.ViewState.build)


@pytest.mark.parametrize(
    ("planted", "field"),
    [(Planted.WRONG_OFFSET, "canonical_key.data_ptr"), (Planted.WRONG_STRIDE, "canonical_key.stride")],
)
@pytest.mark.usefixtures("undo")
def test_a_defect_planted_before_the_contract_is_refused_by_it(planted: Planted, field: str) -> None:
    planting.plant(planted)
    with pytest.raises(ContractError, match=field):
        state.ViewState(python_contract).build(cache(), 128)


@pytest.mark.parametrize("planted", [Planted.UNCHECKED_WRONG_OFFSET, Planted.UNCHECKED_WRONG_STRIDE])
@pytest.mark.usefixtures("undo")
def test_a_defect_planted_behind_the_contract_reaches_the_forward_and_not_the_update(planted: Planted) -> None:
    kv_cache = cache()
    right = state.ViewState(python_contract).build(kv_cache, 128)
    planting.plant(planted)
    view_state = state.ViewState(python_contract)
    betrayed = view_state.build(kv_cache, 128)
    assert view_state.contract is betrayed
    key, value = betrayed.forward(kv_cache).views
    right_key, right_value = right.forward(kv_cache).views
    assert not torch.equal(key, right_key)
    assert torch.equal(value, right_value)
    assert torch.equal(betrayed.update(kv_cache).views[0], right.update(kv_cache).views[0])
    assert (betrayed.forward_hits, betrayed.update_hits) == (1, 1)


@pytest.mark.usefixtures("undo")
def test_planting_nothing_changes_nothing() -> None:
    before = views.build_views, state.ViewState.build
    planting.plant(Planted.NONE)
    assert (views.build_views, state.ViewState.build) == before
