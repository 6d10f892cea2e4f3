# SPDX-License-Identifier: Apache-2.0
"""The timing seam over a class that evaluates vLLM's expression, with the candidate's real state in its layers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from laguna_kv import state
from laguna_kv.contract import load_validator, python_contract
from laguna_kv.settings import Validator
from laguna_kv.state import ViewState
from pytest_laguna.engine.profile_directory import ProfileError
from pytest_laguna.engine.view_preparation import TimingSeam

HEAD_SIZE = 16


def canonical(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class Attention:
    """Evaluates the expression as vLLM's implementation does, and keeps what its kernels would be handed."""

    head_size = HEAD_SIZE

    def __init__(self) -> None:
        self.handed: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, _layer: Any, _query: Any, _key: Any, _value: Any, cache: Any, metadata: Any, output: Any) -> Any:
        if metadata is None:
            return output
        key_cache, value_cache = cache.transpose(1, 2).split(self.head_size, dim=-1)
        self.handed.append((canonical(key_cache), canonical(value_cache)))
        return output

    def do_kv_cache_update(self, _layer: Any, _key: Any, _value: Any, cache: Any, _slots: Any) -> None:
        key_cache, value_cache = cache.transpose(1, 2).split(self.head_size, dim=-1)
        self.handed.append((key_cache, value_cache))


class Candidate(Attention):
    """Asks its contract above, as the candidate's class does."""

    def __init__(self, validator: Validator) -> None:
        super().__init__()
        self.views = ViewState(load_validator(validator))
        self.views.build(CACHE, HEAD_SIZE)

    def forward(self, _layer: Any, _query: Any, _key: Any, _value: Any, cache: Any, metadata: Any, output: Any) -> Any:
        assert self.views.contract is not None
        seam = self.views.contract.forward(cache)
        return Attention.forward(self, _layer, _query, _key, _value, seam, metadata, output)

    def do_kv_cache_update(self, _layer: Any, _key: Any, _value: Any, cache: Any, _slots: Any) -> None:
        assert self.views.contract is not None
        Attention.do_kv_cache_update(self, _layer, _key, _value, self.views.contract.update(cache), _slots)


CACHE = torch.zeros(3, 2, 8, 2 * HEAD_SIZE).transpose(1, 2).contiguous().transpose(1, 2)
OUTPUT = torch.zeros(1)


def attend(implementation: Attention) -> None:
    assert implementation.forward(None, None, None, None, CACHE, object(), output=OUTPUT) is OUTPUT


def update(implementation: Attention) -> None:
    implementation.do_kv_cache_update(None, None, None, CACHE, None)


@pytest.fixture
def seam() -> Any:
    made = []

    def make(*implementations: Attention) -> TimingSeam:
        states = [implementation.views for implementation in implementations if isinstance(implementation, Candidate)]
        made.append(TimingSeam(Attention, canonical, states))
        made[0].install()
        return made[0]

    before = Attention.__dict__["forward"], Attention.__dict__["do_kv_cache_update"]
    yield make
    made[0].remove()
    assert (Attention.__dict__["forward"], Attention.__dict__["do_kv_cache_update"]) == before


def test_the_control_evaluates_the_incumbent_expression_inside_the_times(seam: Callable[..., TimingSeam]) -> None:
    control = Attention()
    timing = seam(control)
    timing.start()
    for _ in range(3):
        attend(control)
    update(control)
    views = timing.stop()
    assert (views.forward_calls, views.update_calls, views.incumbent_calls) == (3, 1, 4)
    assert (views.persistent_calls, views.persistent_hits, views.persistent_builds) == (0, 0, 0)
    assert views.forward_ns > 0
    assert views.update_ns > 0
    for key, value in control.handed:
        wanted_key, wanted_value = CACHE.transpose(1, 2).split(HEAD_SIZE, dim=-1)
        for handed, wanted in ((key, wanted_key), (value, wanted_value)):
            place = (handed.data_ptr(), handed.shape, handed.stride(), handed.dtype)
            assert place == (wanted.data_ptr(), wanted.shape, wanted.stride(), wanted.dtype)
    assert control.handed[0][0] is not control.handed[1][0]


@pytest.mark.parametrize("validator", Validator)
def test_the_candidate_answers_with_its_persistent_views(validator: Validator, seam: Callable[..., TimingSeam]) -> None:
    candidate = Candidate(validator)
    attend(candidate)
    timing = seam(candidate)
    for _ in range(2):
        timing.start()
        for _ in range(3):
            attend(candidate)
        update(candidate)
        views = timing.stop()
        assert (views.forward_calls, views.update_calls, views.incumbent_calls) == (3, 1, 0)
        assert (views.persistent_calls, views.persistent_hits, views.persistent_builds) == (4, 4, 0)
    assert len({id(key) for key, _ in candidate.handed}) == 1
    contract = candidate.views.contract
    assert contract is not None
    assert (candidate.views.forward_hits, contract.raw.views[0] is candidate.handed[-1][0]) == (7, True)


def test_the_contracts_check_is_in_the_candidates_time(seam: Callable[..., TimingSeam]) -> None:
    candidate = Candidate(Validator.PYTHON)
    contract: Any = candidate.views.contract
    check = contract.forward

    class Slow:
        forward_hits = update_hits = 0

        def forward(self, source: torch.Tensor) -> Any:
            time.sleep(0.002)
            return check(source)

        def update(self, source: torch.Tensor) -> Any:
            time.sleep(0.003)
            return contract.update(source)

    slow: Any = Slow()
    candidate.views.contract = slow
    timing = seam(candidate)
    timing.start()
    attend(candidate)
    update(candidate)
    views = timing.stop()
    assert views.forward_ns > 2_000_000
    assert views.update_ns > 3_000_000


def test_a_view_that_is_slow_to_make_is_in_the_controls_time(
    seam: Callable[..., TimingSeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(tensor: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return tensor

    control = Attention()
    timing = seam(control)
    monkeypatch.setattr(timing, "_canonical", slow)
    timing.install()
    timing.start()
    attend(control)
    assert timing.stop().forward_ns > 4_000_000


def test_what_comes_between_is_neither_timed_nor_counted(seam: Callable[..., TimingSeam]) -> None:
    candidate, control = Candidate(Validator.PYTHON), Attention()
    timing = seam(candidate)
    attend(candidate)
    timing.start()
    attend(candidate)
    first = timing.stop()
    attend(candidate)
    attend(control)
    timing.start()
    second = timing.stop()
    assert (first.forward_calls, first.persistent_calls, first.persistent_hits) == (1, 1, 1)
    assert all(value == 0 for value in second.model_dump().values())


def test_a_state_that_was_built_meanwhile_is_a_build_and_no_timed_call(
    seam: Callable[..., TimingSeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_live_graphs", lambda: None)  # those of other tests in this process
    candidate = Candidate(Validator.PYTHON)
    timing = seam(candidate)
    timing.start()
    candidate.views.invalidate()
    candidate.views.build(CACHE, HEAD_SIZE)
    attend(candidate)
    views = timing.stop()
    assert (views.forward_calls, views.persistent_calls, views.persistent_builds) == (1, 0, 1)


def test_a_layer_without_views_is_refused_before_anything_is_changed() -> None:
    views = ViewState(python_contract)
    timing = TimingSeam(Attention, canonical, [views])
    before = Attention.__dict__["forward"]
    with pytest.raises(ProfileError, match="layer not used yet: expected its views built when its graph was captured"):
        timing.install()
    assert (Attention.__dict__["forward"], views.contract) == (before, None)


def test_all_is_as_it_was_after_it_is_removed() -> None:
    candidate = Candidate(Validator.PYTHON)
    contract = candidate.views.contract
    before = dict(Attention.__dict__)
    timing = TimingSeam(Attention, canonical, [candidate.views])
    assert dict(Attention.__dict__) == before
    timing.install()
    assert candidate.views.contract is not contract
    timing.remove()
    assert candidate.views.contract is contract
    assert dict(Attention.__dict__) == before


def test_an_attention_without_metadata_reaches_no_view_when_nothing_is_timed(seam: Callable[..., TimingSeam]) -> None:
    control = Attention()
    seam(control)
    assert control.forward(None, None, None, None, torch.tensor([]), None, output=OUTPUT) is OUTPUT
    assert control.handed == []
