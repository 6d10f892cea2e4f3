# SPDX-License-Identifier: Apache-2.0
"""The timing seam over a class that evaluates vLLM's expression, with the candidate's real state in its layers."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import struct
import subprocess
import sys
import time
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from laguna_kv import state
from laguna_kv.contract import load_validator, python_contract
from laguna_kv.errors import ContractError
from laguna_kv.settings import Validator
from laguna_kv.state import ViewState
from pytest_laguna.engine.profile_directory import ProfileError
from pytest_laguna.engine.replay_clock import HAS_COUNTER, UPDATE, ReplayClock, Timed, TimedContract, has_counter
from pytest_laguna.engine.view_preparation import Stopped, TimingSeam, ViewCounts

HEAD_SIZE = 16
CANONICAL = (sys.modules[__name__], "canonical")


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


COUNTERS = [False, True] if HAS_COUNTER else [False]
"""Whether a clock reads the processor's counter."""


def stopped(timing: TimingSeam) -> ViewCounts:
    return ViewCounts.of(Stopped(*timing.stop()))


def attend(implementation: Attention) -> None:
    assert implementation.forward(None, None, None, None, CACHE, object(), output=OUTPUT) is OUTPUT


def update(implementation: Attention) -> None:
    implementation.do_kv_cache_update(None, None, None, CACHE, None)


@pytest.fixture
def seam() -> Any:
    made = []

    def make(*implementations: Attention) -> TimingSeam:
        states = [implementation.views for implementation in implementations if isinstance(implementation, Candidate)]
        made.append(TimingSeam(Attention, CANONICAL, states))
        made[0].install()
        return made[0]

    before = Attention.__dict__["forward"], Attention.__dict__["do_kv_cache_update"], canonical
    yield make
    made[0].remove()
    assert (Attention.__dict__["forward"], Attention.__dict__["do_kv_cache_update"], canonical) == before


def test_the_control_evaluates_the_incumbent_expression_inside_the_times(seam: Callable[..., TimingSeam]) -> None:
    control = Attention()
    timing = seam(control)
    timing.start()
    for _ in range(3):
        attend(control)
    update(control)
    views = stopped(timing)
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
        views = stopped(timing)
        assert (views.forward_calls, views.update_calls, views.incumbent_calls) == (3, 1, 0)
        assert (views.persistent_calls, views.persistent_hits, views.persistent_builds) == (4, 4, 0)
    assert len({id(key) for key, _ in candidate.handed}) == 1
    contract = candidate.views.contract
    assert contract is not None
    assert (candidate.views.forward_hits, contract.raw.views[0] is candidate.handed[-1][0]) == (7, True)


class Unhurried:
    """What the seam asks of a contract, but for its answers."""

    @classmethod
    def all_hits(cls) -> int:
        return 0


def test_the_contracts_check_is_in_the_candidates_time(seam: Callable[..., TimingSeam]) -> None:
    candidate = Candidate(Validator.PYTHON)
    contract: Any = candidate.views.contract
    check = contract.forward

    class Slow(Unhurried):
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
    views = stopped(timing)
    assert views.forward_ns > 2_000_000
    assert views.update_ns > 3_000_000


def test_the_contracts_method_is_looked_up_in_the_candidates_time(seam: Callable[..., TimingSeam]) -> None:
    candidate = Candidate(Validator.PYTHON)
    contract: Any = candidate.views.contract

    class Sought(Unhurried):
        @property
        def forward(self) -> Any:
            time.sleep(0.002)
            return contract.forward

    sought: Any = Sought()
    candidate.views.contract = sought
    timing = seam(candidate)
    timing.start()
    attend(candidate)
    views = stopped(timing)
    assert (views.persistent_calls, views.forward_calls) == (1, 1)
    assert views.forward_ns > 2_000_000


def test_a_view_that_is_slow_to_make_is_in_the_controls_time(
    seam: Callable[..., TimingSeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(tensor: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return tensor

    control = Attention()
    with monkeypatch.context() as patched:
        patched.setattr(*CANONICAL, slow)
        timing = seam(control)
        timing.start()
        attend(control)
        timing.remove()
    assert stopped(timing).forward_ns > 4_000_000


def test_what_comes_between_is_neither_timed_nor_counted(seam: Callable[..., TimingSeam]) -> None:
    candidate, control = Candidate(Validator.PYTHON), Attention()
    timing = seam(candidate)
    attend(candidate)
    timing.start()
    attend(candidate)
    first = stopped(timing)
    attend(candidate)
    attend(control)
    timing.start()
    second = stopped(timing)
    assert (first.forward_calls, first.persistent_calls, first.persistent_hits) == (1, 1, 1)
    assert not any(second)


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
    views = stopped(timing)
    assert (views.forward_calls, views.persistent_calls, views.persistent_builds) == (1, 0, 1)


def test_a_layer_without_views_is_refused_before_anything_is_changed() -> None:
    views = ViewState(python_contract)
    timing = TimingSeam(Attention, CANONICAL, [views])
    before = Attention.__dict__["forward"]
    with pytest.raises(ProfileError, match="layer not used yet: seen no views; expected them"):
        timing.install()
    assert (Attention.__dict__["forward"], views.contract) == (before, None)


def test_all_is_as_it_was_after_it_is_removed() -> None:
    candidate = Candidate(Validator.PYTHON)
    contract = candidate.views.contract
    before = dict(Attention.__dict__), canonical
    timing = TimingSeam(Attention, CANONICAL, [candidate.views])
    assert (dict(Attention.__dict__), canonical) == before
    timing.install()
    assert candidate.views.contract is not contract
    assert canonical is not before[1]
    for _ in range(2):
        timing.remove()
        assert candidate.views.contract is contract
        assert (dict(Attention.__dict__), canonical) == before


def test_an_attention_without_metadata_reaches_no_view_when_nothing_is_timed(seam: Callable[..., TimingSeam]) -> None:
    control = Attention()
    seam(control)
    assert control.forward(None, None, None, None, torch.tensor([]), None, output=OUTPUT) is OUTPUT
    assert control.handed == []


class Counted(torch.Tensor):
    """A cache that counts how often the expression is evaluated on it."""

    transposed = 0

    def transpose(self, *dimensions: Any) -> Any:
        Counted.transposed += 1
        return super().transpose(*dimensions)


def test_the_expression_is_evaluated_once(seam: Callable[..., TimingSeam]) -> None:
    timing, control = seam(), Attention()
    timing.start()
    control.do_kv_cache_update(None, None, None, CACHE.as_subclass(Counted), None)
    assert (Counted.transposed, stopped(timing).incumbent_calls) == (1, 1)


def test_what_fails_within_leaves_nothing_and_is_not_counted(
    seam: Callable[..., TimingSeam], monkeypatch: pytest.MonkeyPatch
) -> None:
    control = Attention()

    def fail(_tensor: torch.Tensor) -> torch.Tensor:
        raise ValueError("no stride fits")

    with monkeypatch.context() as patched:
        patched.setattr(*CANONICAL, fail)
        timing = seam(control)
        timing.start()
        with pytest.raises(ValueError, match="no stride fits"):
            attend(control)
        with pytest.raises(AttributeError, match="transpose"):
            control.forward(None, None, None, None, None, object(), output=OUTPUT)
        without_split = types.SimpleNamespace(transpose=lambda *_: None)
        with pytest.raises(AttributeError, match="split"):
            control.do_kv_cache_update(None, None, None, without_split, None)
        timing.remove()
    views = stopped(timing)
    assert (views.forward_calls, views.forward_ns, views.update_calls, views.incumbent_calls) == (0, 0, 0, 0)
    timing.install()
    timing.start()
    attend(control)
    assert stopped(timing).forward_calls == 1, "a method that failed has left the clock to the next"


def test_a_contract_that_refuses_is_no_answer(seam: Callable[..., TimingSeam]) -> None:
    candidate = Candidate(Validator.PYTHON)
    timing = seam(candidate)
    timing.start()
    with pytest.raises(ContractError, match=r"source\.identity"):
        candidate.forward(None, None, None, None, CACHE.clone(), object(), output=OUTPUT)
    views = stopped(timing)
    assert (views.persistent_calls, views.forward_calls, views.forward_ns) == (0, 0, 0)


def test_a_forward_that_does_not_canonicalise_has_no_time(seam: Callable[..., TimingSeam]) -> None:
    class Bare(Attention):
        def forward(self, *arguments: Any, **named: Any) -> Any:
            return Attention.forward(self, *arguments, **named)

    timing, control = seam(), Bare()
    timing.start()
    control.forward(None, None, None, None, CACHE, None, output=OUTPUT)
    assert stopped(timing).forward_calls == 0
    timing.start()
    canonical(CACHE)
    canonical(CACHE)
    assert stopped(timing).forward_calls == 0, "canonicalised outside of a timed method"


def test_only_the_forwards_own_views_end_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Attention):
        def forward(self, _layer: Any, _query: Any, _key: Any, _value: Any, cache: Any, order: Any, output: Any) -> Any:
            views = (*cache.transpose(1, 2).split(self.head_size, dim=-1), output)
            for number in order:
                canonical(views[number])
            return output

    timing = TimingSeam(Other, CANONICAL, [])
    monkeypatch.setattr(Other, "do_kv_cache_update", Other.do_kv_cache_update)

    def counted(*orders: tuple[int, ...]) -> list[int]:
        timing.install()
        calls = []
        for order in orders:
            timing.start()
            Other().forward(None, None, None, None, CACHE, order, output=OUTPUT)
            calls.append(stopped(timing).forward_calls)
        timing.remove()
        return calls

    right: list[tuple[int, ...]] = [(0, 1), (2, 0, 1), (0, 2, 1), (0, 1, 0, 1)]
    assert [counted(order) for order in right] == [[1]] * 4
    wrong: list[tuple[int, ...]] = [(2, 2), (0, 0), (1, 0), (0,), ()]
    assert [counted(order, order) for order in wrong] == [[0, 0]] * 5
    assert counted((0, 1, 2), (0, 1, 2), (0, 1), (0, 1)) == [1, 1, 1, 1]
    # Whose two they were is known from here on: a run with another number is none, and the next is looked at again.
    assert counted((0, 1), (0, 1), (0,), (0,), (0, 1)) == [1, 1, 0, 0, 1]
    assert counted((0, 1), (0, 1), (0, 1, 2), (0, 1, 2), (0, 1)) == [1, 1, 0, 1, 1]
    assert counted((0, 1), (2, 0, 1), (2, 0, 1)) == [1, 0, 1]
    assert counted((0, 1), (), (0, 1)) == [1, 0, 1]


def test_a_forward_that_asks_twice_for_its_views_has_one_time_only_if_it_canonicalised_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Twice(Attention):
        times = 1

        def forward(
            self, _layer: Any, _query: Any, _key: Any, _value: Any, cache: Any, _order: Any, output: Any
        ) -> Any:
            for _ in range(self.times):
                key, value = cache.transpose(1, 2).split(self.head_size, dim=-1)
            canonical(key)
            canonical(value)
            return output

    timing = TimingSeam(Twice, CANONICAL, [])
    monkeypatch.setattr(Twice, "do_kv_cache_update", Twice.do_kv_cache_update)
    timing.install()
    calls = []
    for times in (2, 2, 1, 1, 2, 2):
        Twice.times = times
        timing.start()
        Twice().forward(None, None, None, None, CACHE, None, output=OUTPUT)
        calls.append(stopped(timing).forward_calls)
    timing.remove()
    assert calls == [1, 1, 1, 1, 0, 1]


def test_a_regular_forward_is_handed_its_own_transposed_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    handed = []

    class Regular(Attention):
        def forward(
            self, _layer: Any, _query: Any, _key: Any, _value: Any, cache: Any, _order: Any, output: Any
        ) -> Any:
            transposed = cache.transpose(1, 2)
            handed.append(type(transposed))
            for view in transposed.split(self.head_size, dim=-1):
                canonical(view)
            return output

    timing = TimingSeam(Regular, CANONICAL, [])
    monkeypatch.setattr(Regular, "do_kv_cache_update", Regular.do_kv_cache_update)
    timing.install()
    timing.start()
    for _ in range(3):
        Regular().forward(None, None, None, None, CACHE, None, output=OUTPUT)
    views = stopped(timing)
    timing.remove()
    assert handed == [ReplayClock, torch.Tensor, torch.Tensor]
    assert (views.forward_calls, views.incumbent_calls) == (3, 3)
    assert views.forward_ns > 0


def test_a_split_that_asks_for_another_transpose_keeps_what_it_is_of() -> None:
    class Again:
        def transpose(self, *_: Any) -> Any:
            return Again()

        def split(self, *_: Any) -> Any:
            held = sys.getrefcount(self)
            clock.transpose(1, 2)
            gc.collect()
            return held == sys.getrefcount(self)

    clock = ReplayClock(Again, False)
    clock.start()
    assert Timed(clock, lambda cache: cache.transpose(1, 2).split(1), UPDATE)(Again()) is True


def test_nothing_is_changed_where_a_place_is_missing() -> None:
    before = dict(Attention.__dict__)
    timing = TimingSeam(Attention, (CANONICAL[0], "absent"), [])
    with pytest.raises(KeyError, match="absent"):
        timing.install()
    timing.remove()
    assert dict(Attention.__dict__) == before


def test_what_was_put_around_the_seam_goes_with_it() -> None:
    before = dict(Attention.__dict__)
    timing = TimingSeam(Attention, CANONICAL, [])
    timing.install()
    Attention.forward = lambda *arguments: arguments  # type: ignore[method-assign]
    timing.remove()
    assert dict(Attention.__dict__) == before


def test_a_cache_that_is_not_where_it_was_expected_is_refused(seam: Callable[..., TimingSeam]) -> None:
    timing, control = seam(), Attention()
    with pytest.raises(TypeError, match="'cache'"):
        control.do_kv_cache_update(None, None, None)  # type: ignore[call-arg]
    timing.start()
    with pytest.raises(TypeError, match="expected the cache as positional argument 4 of at most 16, seen 4 of 6"):
        control.do_kv_cache_update(None, None, None, cache=CACHE, _slots=None)
    with pytest.raises(TypeError, match="expected the cache as positional argument 4 of at most 16, seen 20 of 20"):
        control.do_kv_cache_update(*[None] * 19)


def test_a_timed_method_within_another_is_refused() -> None:
    class Nested:
        def update(self, cache: Any) -> None:
            self.update(cache)

    clock = ReplayClock(torch.Tensor, False)
    Nested.update = Timed(clock, Nested.update, UPDATE, 1)  # type: ignore[method-assign]
    clock.start()
    with pytest.raises(RuntimeError, match="expected no timed method within another"):
        Nested().update(CACHE)
    assert clock.stop()[1:] == ((0, 0, 0, 0, 0, 0), b"")


def test_the_clock_answers_within_a_timed_method_only() -> None:
    clock = ReplayClock(torch.Tensor, False)
    with pytest.raises(RuntimeError, match="transpose: expected the view expression within a timed method"):
        clock.transpose(1, 2)
    with pytest.raises(RuntimeError, match="split: expected the view expression within a timed method"):
        clock.split(HEAD_SIZE, dim=-1)


def test_the_clock_asks_each_cache_for_the_method_of_its_own_type() -> None:
    """What it keeps of a type that cannot change is not asked of another, nor of one that can."""

    class Turned:
        def __init__(self, name: str) -> None:
            self.name = name

        def transpose(self, *_: Any) -> Any:
            return self

        def split(self, *_: Any) -> str:
            return self.name

    clock = ReplayClock(torch.Tensor, False)
    timed = Timed(clock, lambda cache: cache.transpose(1, 2).split(HEAD_SIZE, dim=-1), UPDATE)
    by_position = Timed(clock, lambda cache: cache.transpose(1, 2).split(HEAD_SIZE), UPDATE)
    clock.start()
    seams = [Candidate(validator).views.contract.raw for validator in Validator]  # type: ignore[union-attr]
    one, other = Turned("one"), Turned("other")
    for _ in range(3):
        assert [timed(seam) is seam.views for seam in seams] == [True, True]
        assert [by_position(cache) for cache in (one, other)] == ["one", "other"]
        assert timed(CACHE)[0].shape[-1] == HEAD_SIZE
    other.split = lambda *_: "its own"  # type: ignore[method-assign]
    assert by_position(other) == "its own"
    with pytest.raises(AttributeError, match="split"):
        Timed(clock, lambda cache: cache.transpose(1, 2).split(1), UPDATE)(
            types.SimpleNamespace(transpose=lambda *_: ())
        )


def test_the_clock_hands_on_every_argument() -> None:
    class Cache:
        def transpose(self, *arguments: Any, **named: Any) -> Any:
            seen.append((arguments, named))
            return self

        split = transpose

    seen: list[Any] = []
    clock = ReplayClock(Cache, False)
    timed = Timed(clock, lambda cache: cache.transpose(1, b=2).split(3, dim=-1), UPDATE)
    clock.start()
    timed(Cache())
    assert seen == [((1,), {"b": 2}), ((3,), {"dim": -1})]
    assert clock.stop()[1][2] == 1
    clock.start()
    with pytest.raises(TypeError, match="transpose: expected fewer than 16 arguments, seen 16"):
        Timed(clock, lambda cache: cache.transpose(*range(16)), UPDATE)(Cache())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((object(), canonical, UPDATE), TypeError, "expected a ReplayClock"),
        ((Timed(ReplayClock(int, False), canonical, UPDATE), canonical, UPDATE), TypeError, "expected a ReplayClock"),
        ((ReplayClock(int, False), 1, UPDATE), ValueError, "expected a callable"),
        ((ReplayClock(int, False), canonical, -1), ValueError, "expected a callable, what it is"),
        ((ReplayClock(int, False), canonical, 3), ValueError, "expected a callable, what it is"),
        ((ReplayClock(int, False), canonical, UPDATE, -1), ValueError, "and where a method has its cache"),
        ((ReplayClock(int, False), canonical, UPDATE, 16), ValueError, "and where a method has its cache"),
        ((ReplayClock(int, False), canonical), TypeError, "at least 3 arguments"),
    ],
)
def test_a_timed_callable_of_nothing_is_refused(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Timed(*arguments)
    with pytest.raises(TypeError, match="no keyword arguments"):
        Timed(*arguments, name=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        ReplayClock(1, False)  # type: ignore[arg-type]


@pytest.mark.parametrize("validator", Validator)
def test_a_timed_contract_is_its_contract_to_all_that_ask_it(validator: Validator) -> None:
    contract = Candidate(validator).views.contract
    assert contract is not None
    timed = TimedContract(ReplayClock(torch.Tensor, False), contract)
    before = contract.all_hits()
    assert (timed.forward(CACHE), timed.update(CACHE)) == (contract.canonical, contract.raw)
    assert (timed.contract, timed.raw, timed.canonical) == (contract, contract.raw, contract.canonical)
    assert (timed.forward_hits, timed.update_hits, contract.all_hits() - before) == (1, 1, 2)
    with pytest.raises(AttributeError, match="no attribute 'owner'"):
        _ = timed.owner  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((object(), None), {}, "TimedContract: expected a ReplayClock, seen object"),
        ((ReplayClock(int, False),), {}, "2 arguments"),
        ((ReplayClock(int, False), None), {"name": 1}, "no keyword arguments"),
    ],
)
def test_a_timed_contract_of_nothing_is_refused(
    arguments: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        TimedContract(*arguments, **named)


def test_nothing_is_kept_alive() -> None:
    class Layer:
        def update(self, cache: Any) -> Any:
            return cache.transpose(1, 2).split(HEAD_SIZE, dim=-1)

    layer, clock = Layer(), ReplayClock(torch.Tensor, False)
    Layer.update = Timed(clock, Layer.update, UPDATE, 1)  # type: ignore[method-assign]
    cache = CACHE.clone()
    clock.start()
    held = sys.getrefcount(cache), sys.getrefcount(clock)
    for _ in range(100):
        layer.update(cache)
    assert (sys.getrefcount(cache), sys.getrefcount(clock)) == held
    gone = weakref.ref(Layer)
    del layer, Layer
    gc.collect()
    assert gone() is None


def readings(clock: ReplayClock) -> list[int]:
    return Stopped(clock.stop(), (0, 0), (0, 0)).readings()


@pytest.mark.parametrize("counter", COUNTERS)
def test_segments_are_run_in_order_with_a_reading_after_each(counter: bool) -> None:
    ran: list[int] = []
    clock = ReplayClock(torch.Tensor, counter)
    segments: list[Callable[[], object]] = [lambda: ran.append(1), lambda: time.sleep(0.02), lambda: ran.append(2)]
    before = time.perf_counter_ns()
    clock.start()
    assert clock.run_segments(tuple(segments), segments)
    first, second, third, last = readings(clock)
    whole = time.perf_counter_ns() - before
    assert ran == [1, 2]
    # The counter's nanoseconds are those of the replay's own two readings of both clocks.
    assert 0 <= first <= second < third <= last <= whole * 1.001
    assert third - second >= 20_000_000 * 0.999
    clock.start()
    assert clock.run_segments((), [])
    assert len(readings(clock)) == 1


def test_segments_that_were_not_captured_are_not_run() -> None:
    ran: list[int] = []
    first, second = (lambda: ran.append(1)), (lambda: ran.append(2))
    clock = ReplayClock(torch.Tensor, False)
    clock.start()
    for others in ([first], [first, second, first], [second, first], [first, first], []):
        assert not clock.run_segments((first, second), list(others))
    assert not clock.run_segments((), [first])
    assert (ran, clock.stop()[2]) == ([], b"")


def test_readings_are_those_of_the_last_start() -> None:
    clock = ReplayClock(torch.Tensor, False)
    clock.start()
    clock.run_segments((), [])
    clock.start()
    assert clock.stop()[2] == b""
    time.sleep(0.02)
    clock.start()
    clock.run_segments((), [])
    assert readings(clock)[0] < 20_000_000
    with pytest.raises(RuntimeError, match="stop: expected a clock that was started"):
        clock.stop()


@pytest.mark.parametrize("implementation", [Attention, lambda: Candidate(Validator.NATIVE)])
@pytest.mark.parametrize("counter", COUNTERS)
def test_preparations_are_timed_in_nanoseconds(
    counter: bool, implementation: Callable[[], Attention], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(tensor: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return tensor

    attention = implementation()
    monkeypatch.setattr(*CANONICAL, slow)
    timing = TimingSeam(Attention, CANONICAL, [attention.views] if isinstance(attention, Candidate) else [])
    timing.clock = ReplayClock(torch.Tensor, counter)
    timing.install()
    before = time.perf_counter_ns()
    timing.start()
    attend(attention)
    update(attention)
    views = stopped(timing)
    whole = time.perf_counter_ns() - before
    timing.remove()
    assert views.forward_ns >= 20_000_000 * 0.999
    assert views.update_ns > 0
    assert views.forward_ns + views.update_ns <= whole * 1.001


@pytest.mark.parametrize("counter", COUNTERS)
def test_ticks_are_those_of_the_counter_or_nanoseconds(counter: bool) -> None:
    clock = ReplayClock(torch.Tensor, counter)
    clock.start()
    read = clock.read()
    (started, stopped), _, _ = clock.stop()
    assert started[0] <= read <= stopped[0]
    assert (started[0] == started[1], stopped[0] == stopped[1]) == (not counter, not counter)


SLOW_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int slow; /* readings that take 10 ms */
int back; /* seconds by which time has gone back */

int
clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*kernels)(clockid_t, struct timespec *);
    if (kernels == NULL) {
        kernels = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    }
    int read = kernels(clock, now);
    now->tv_sec -= back;
    if (slow > 0) {
        slow--;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return read;
}
"""

WITH_SLOW_CLOCK = """
import ctypes, os, sys
from pytest_laguna.engine._replay_clock import ReplayClock
slow, back = (ctypes.c_int.in_dll(ctypes.CDLL(os.environ["LD_PRELOAD"]), name) for name in ("slow", "back"))
clock = ReplayClock(object, True)
def outcome(call, readings):
    slow.value = readings
    try:
        return call()
    except RuntimeError as error:
        return str(error)
    finally:
        slow.value = 0
assert outcome(clock.start, 8) is None
(started, now), _, _ = outcome(clock.stop, 8)
assert now[1] - started[1] < (now[0] - started[0]) * 10, "the readings that count are those that were quick"
refused = "the counter and CLOCK_MONOTONIC: expected both read within 4096 ticks, seen more 16 times"
assert outcome(clock.start, 16) == refused
assert outcome(clock.stop, 0) == "stop: expected a clock that was started"
clock.start()
assert outcome(clock.stop, 16) == refused
clock.stop()
clock = ReplayClock(object, False)
clock.start()
back.value = 10
assert outcome(clock.stop, 0).startswith("stop: expected a clock that rises, seen ")
"""


@pytest.mark.skipif(COUNTERS == [False], reason="a processor without such a counter")
def test_the_clocks_are_read_again_where_much_lies_between_them(tmp_path: Path) -> None:
    source, library = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(SLOW_CLOCK)
    compiler = shutil.which("cc")
    assert compiler is not None, "it compiled the clock"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(library)}
    subprocess.run([sys.executable, "-c", WITH_SLOW_CLOCK], env=environment, check=True)


def test_no_reading_is_kept_for_ever() -> None:
    def fail() -> None:
        raise ValueError("no kernel")

    def use(times: int) -> None:
        for _ in range(times):
            clock = ReplayClock(torch.Tensor, False)
            clock.start()
            clock.run_segments((), [])
            clock.run_segments((), [])
            with contextlib.suppress(ValueError):
                clock.run_segments((fail,), [fail])
            clock.stop()
            clock.start()
            clock.run_segments((), [])

    use(10)
    gc.collect()
    before = sys.getallocatedblocks()
    use(1000)
    gc.collect()
    assert sys.getallocatedblocks() - before < 500


def test_what_was_captured_is_run_whatever_becomes_of_the_list() -> None:
    ran: list[int] = []
    segments: list[Callable[[], object]] = []
    segments += [lambda: ran.append(1), segments.clear, lambda: ran.append(3)]
    clock = ReplayClock(torch.Tensor, False)
    clock.start()
    assert clock.run_segments(tuple(segments), segments)
    assert (ran, len(readings(clock)), segments) == ([1, 3], 4, [])


def test_ticks_are_nanoseconds_by_the_readings_of_both_clocks() -> None:
    started, minute = (7_000_000_001, 123_456), 60 * 10**9
    moments = (started, (started[0] + 3 * minute, started[1] + minute))
    readings = struct.pack("=4q", *(started[0] + ticks for ticks in (0, 5, 3 * 10**9, 3 * minute)))
    stopped = Stopped((moments, (2, 31, 1, 3, 2, 1), readings), (10, 1), (12, 4))
    assert stopped.readings() == [0, 1, 10**9, minute]
    assert ViewCounts.of(stopped) == (2, 10, 1, 1, 2, 1, 2, 3)
    by_nanoseconds = Stopped((((5, 5), (12, 12)), (1, 6, 0, 0, 1, 0), struct.pack("=q", 11)), (0, 0), (0, 0))
    assert (by_nanoseconds.readings(), ViewCounts.of(by_nanoseconds).forward_ns) == ([6], 6)


def test_the_counter_is_read_where_the_kernel_keeps_its_clock_by_it(tmp_path: Path) -> None:
    source = tmp_path / "current_clocksource"
    assert not has_counter(source), "unreadable"
    for name, kept in (("tsc", bool(HAS_COUNTER)), ("kvm-clock", False), ("hpet", False), ("", False)):
        source.write_text(f"{name}\n")
        assert has_counter(source) == kept


def test_a_segment_that_fails_ends_the_run() -> None:
    ran: list[int] = []

    def fail() -> None:
        raise ValueError("no kernel")

    def first() -> None:
        ran.append(1)

    clock = ReplayClock(torch.Tensor, False)
    clock.start()
    with pytest.raises(ValueError, match="no kernel"):
        clock.run_segments((first, fail, first), [first, fail, first])
    assert (ran, clock.stop()[2]) == ([1], b"")
    for wrong in (([fail], [fail]), ((fail,), (fail,)), ((fail,),)):
        with pytest.raises(TypeError, match="expected the captured segments as a tuple, then all as a list"):
            clock.run_segments(*wrong)
    with pytest.raises(TypeError, match="not callable"):
        clock.run_segments((1,), [1])  # type: ignore[arg-type, list-item]
