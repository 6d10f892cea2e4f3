# SPDX-License-Identifier: Apache-2.0
"""The life of a layer's views: what may be built when, and what ends it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gates.vllm_classes import HEAD_SIZE, captured_graph, make_cache
from laguna_kv import compat, views
from laguna_kv.contract import load_validator
from laguna_kv.errors import ContractError, LifecycleError
from laguna_kv.settings import Validator
from laguna_kv.state import MOST_BUILDS, ViewState


@pytest.fixture
def state(make_contract: Any) -> ViewState:
    state = ViewState(make_contract)
    state.owner = "layer 7"
    return state


def test_a_state_of_a_layer_that_is_not_known_yet_says_so(make_contract: Any) -> None:
    with pytest.raises(ContractError, match=r"^layer not used yet: .*views.builds: seen 3;"):
        ViewState(make_contract).builds = 3


def test_a_state_starts_empty_and_an_invalidation_of_nothing_is_nothing(state: ViewState) -> None:
    state.invalidate()
    assert (state.contract, state.builds, state.invalidations) == (None, 0, 0)


def test_profiling_then_final_cache(state: ViewState) -> None:
    profiling, final = make_cache(blocks=1), make_cache()
    discarded = state.build(profiling, HEAD_SIZE)
    discarded.forward(profiling)
    discarded.update(profiling)
    state.invalidate()
    state.invalidate()  # both of vLLM's walks over the layers reach each layer
    assert (state.contract, state.builds, state.invalidations) == (None, 1, 1)
    contract = state.build(final, HEAD_SIZE)
    contract.forward(final)
    contract.update(final)
    assert (state.builds, state.invalidations, state.forward_hits, state.update_hits) == (2, 1, 2, 2)
    with pytest.raises(ContractError, match=r"source\.identity"):
        contract.forward(profiling)
    state.invalidate()
    assert (state.builds, state.invalidations, state.forward_hits, state.update_hits) == (2, 2, 2, 2)


def test_all_builds_are_those_of_every_layer(make_contract: Any) -> None:
    before = ViewState.all_builds
    for _ in range(2):
        ViewState(make_contract).build(make_cache(), HEAD_SIZE)
    assert ViewState.all_builds - before == 2


def test_a_complete_state_is_not_built_over(state: ViewState) -> None:
    cache = make_cache()
    contract = state.build(cache, HEAD_SIZE)
    with pytest.raises(LifecycleError, match=r"^layer 7: .*seen a complete one.*; expected no state"):
        state.build(cache, HEAD_SIZE)
    assert state.contract is contract


def test_a_third_state_is_refused(state: ViewState) -> None:
    for _ in range(MOST_BUILDS):
        state.build(make_cache(), HEAD_SIZE)
        state.invalidate()
    with pytest.raises(
        LifecycleError,
        match=r"^layer 7: .*seen 2 states built, 2 .*; expected one profiling and one final cache in a process",
    ):
        state.build(make_cache(), HEAD_SIZE)


def test_a_build_that_fails_leaves_nothing_behind(state: ViewState, monkeypatch: pytest.MonkeyPatch) -> None:
    build = views.build_views

    def swapped(cache: torch.Tensor, head_size: int) -> views.Views:
        made = build(cache, head_size)
        return made._replace(canonical_key=made.canonical_value)

    monkeypatch.setattr(views, "build_views", swapped)
    with pytest.raises(ContractError, match=r"canonical_key\.data_ptr"):
        state.build(make_cache(), HEAD_SIZE)
    assert (state.contract, state.builds) == (None, 0)


def test_an_invalidation_lets_go_of_the_cache_memory_at_once(state: ViewState) -> None:
    gc.disable()
    try:
        cache = make_cache()
        gone = weakref.ref(cache)
        state.build(cache, HEAD_SIZE)
        del cache
        assert gone() is not None
        state.invalidate()
        assert gone() is None
    finally:
        gc.enable()


def test_an_invalidation_after_a_capture_is_terminal(state: ViewState) -> None:
    state.build(make_cache(), HEAD_SIZE)
    wrapper = captured_graph()
    state.invalidate()  # never raises: vLLM's shutdown comes this way
    for _ in range(2):
        with pytest.raises(
            LifecycleError,
            match=r"^layer 7: .*under 1 captured graph\(s\) that hold its .*; expected no captured graph to outlive",
        ):
            state.build(make_cache(), HEAD_SIZE)
        wrapper.clear_graphs()  # too late: they could be replayed on a cache that was gone
    state.invalidate()
    with pytest.raises(LifecycleError, match=r"^layer 7: .*captured graph"):
        state.build(make_cache(), HEAD_SIZE)
    assert (state.contract, state.builds, state.invalidations) == (None, 1, 1)


def test_a_capture_made_after_the_clear_is_in_the_way_as_well(state: ViewState) -> None:
    state.build(make_cache(), HEAD_SIZE)
    state.invalidate()
    wrapper = captured_graph()
    with pytest.raises(LifecycleError, match=r"^layer 7: .*cleared under 1 captured graph"):
        state.build(make_cache(), HEAD_SIZE)
    wrapper.clear_graphs()
    assert state.build(make_cache(), HEAD_SIZE) is state.contract


def test_graphs_that_cannot_be_counted_are_not_none(state: ViewState, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed() -> int:
        raise AttributeError("_all_instances")

    state.build(make_cache(), HEAD_SIZE)
    with monkeypatch.context() as patch:
        patch.setattr("laguna_kv.state.live_breakable_captures", changed)
        state.invalidate()  # silent all the same
    assert state.contract is None
    with pytest.raises(LifecycleError, match=r"^layer 7: .*cannot be counted \(AttributeError: _all_instances\)"):
        state.build(make_cache(), HEAD_SIZE)


def test_a_state_that_was_lost_is_not_built_again(state: ViewState) -> None:
    state.build(make_cache(), HEAD_SIZE)
    state.contract = None
    for _ in range(2):
        with pytest.raises(
            LifecycleError,
            match=r"^layer 7: .*seen 1 states built, 0 invalidated, none held; expected every state built .*; start",
        ):
            state.build(make_cache(), HEAD_SIZE)
        state.invalidate()  # there is nothing to invalidate, and a later clear makes nothing good
    assert (state.contract, state.builds, state.invalidations) == (None, 1, 0)


def test_a_discarded_profiling_capture_is_not_in_the_way(state: ViewState) -> None:
    from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper

    state.build(make_cache(), HEAD_SIZE)
    wrapper = captured_graph()
    BreakableCUDAGraphWrapper.clear_all_graphs()  # as vLLM does before it clears the profiling cache
    state.invalidate()
    state.build(make_cache(), HEAD_SIZE)
    assert state.builds == MOST_BUILDS
    del wrapper


def test_a_capture_under_way_is_not_one_that_can_be_replayed(state: ViewState) -> None:
    state.build(make_cache(), HEAD_SIZE)
    state.invalidate()
    wrapper = captured_graph(complete=False)  # vLLM enters the entry first and its capture when that is complete
    state.build(make_cache(), HEAD_SIZE)
    wrapper.clear_graphs()


def test_live_captures_are_counted_on_vllms_own_wrapper() -> None:
    wrappers = [captured_graph(), captured_graph(complete=False), captured_graph()]
    assert compat.live_breakable_captures() == 2
    for wrapper in wrappers:
        wrapper.clear_graphs()
    assert compat.live_breakable_captures() == 0


class Life(RuleBasedStateMachine):
    """Any order of binding, using and clearing keeps the counts and the one legal path."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ViewState(load_validator(Validator.NATIVE))
        self.bound = make_cache(blocks=1)
        self.built_on: torch.Tensor | None = None
        self.uses = 0

    @rule()
    def bind(self) -> None:
        self.bound = make_cache(blocks=1)

    @rule()
    def clear(self) -> None:
        self.state.invalidate()
        self.built_on = None

    @precondition(lambda self: self.state.contract is None)
    @rule()
    def first_use(self) -> None:
        if self.state.builds == MOST_BUILDS:
            with pytest.raises(LifecycleError):
                self.state.build(self.bound, HEAD_SIZE)
            return
        self.state.build(self.bound, HEAD_SIZE)
        self.built_on = self.bound

    @precondition(lambda self: self.state.contract is not None)
    @rule()
    def use(self) -> None:
        assert self.state.contract is not None
        if self.bound is self.built_on:
            self.state.contract.forward(self.bound)
            self.uses += 1
        else:
            with pytest.raises(ContractError, match=r"source\.identity"):
                self.state.contract.forward(self.bound)

    @invariant()
    def counts(self) -> None:
        state = self.state
        assert state.builds <= MOST_BUILDS
        assert state.builds - state.invalidations == (state.contract is not None)
        assert (state.contract is None) == (self.built_on is None)
        assert (state.forward_hits, state.update_hits) == (self.uses, 0)


Life.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestLife = Life.TestCase
