# SPDX-License-Identifier: Apache-2.0
"""The replay profile around vLLM's own wrapper, capture and replay, over tapes."""

from __future__ import annotations

import functools
import gc
import json
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.compilation import breakable_cudagraph
from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import BatchDescriptor, set_forward_context
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl

from pytest_laguna.engine import plugin, probe, profile_directory
from pytest_laguna.engine.allocations import COUNTED_REPLAYS, ReplayAllocations
from pytest_laguna.engine.compat import introspection, replay
from pytest_laguna.engine.profile_directory import ProfileDirectory, ProfileError
from pytest_laguna.engine.replay_profile import ReplayProfiler
from pytest_laguna.engine.view_preparation import TimingSeam
from pytest_laguna.evidence.arms.replay_profile import ReplayProfile
from pytest_laguna.evidence.schemas import read_model

VERIFIED, SAMPLES = 8, 3


@pytest.fixture(autouse=True, scope="module")
def lane() -> Iterator[None]:
    plugin.register()
    gc.freeze()  # each capture collects, and all of vLLM is looked through
    yield
    gc.unfreeze()


class Model:
    """One break in the middle; its Python does not run in a replay."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, source: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        doubled = source * 2
        output = torch.empty_like(doubled)
        torch.ops.laguna_replay_check.attention(doubled, output)
        return output - 1


@functools.cache
def configuration() -> VllmConfig:
    """Of no model; to make one takes seconds."""
    return VllmConfig()


class Engine:
    """A worker with a target and a draft, each captured for two batches."""

    rank = 0

    def __init__(self, broken: dict[str, Callable[..., None]]) -> None:
        self.broken = broken
        self.vllm_config = configuration()
        self.target, self.draft = Model(), Model()
        self.model_runner = types.SimpleNamespace(get_model=lambda: self.target, sample_tokens=None)
        self.wrappers = {
            name: BreakableCUDAGraphWrapper(model, self.vllm_config, runtime_mode=CUDAGraphMode.PIECEWISE)
            for name, model in (("target", self.target), ("draft", self.draft))
        }
        self.sources = {tokens: torch.ones(tokens) for tokens in (1, VERIFIED)}
        for name in self.wrappers:
            for tokens in self.sources:
                self.run(name, tokens)

    def run(self, name: str = "target", tokens: int = VERIFIED) -> list[float]:
        descriptor = BatchDescriptor(num_tokens=tokens)
        mode = CUDAGraphMode.PIECEWISE
        with (
            torch.inference_mode(),
            set_forward_context(None, self.vllm_config, cudagraph_runtime_mode=mode, batch_descriptor=descriptor),
        ):
            output: list[float] = self.wrappers[name](self.sources[tokens]).tolist()
        return output

    @property
    def entry(self) -> Any:
        return self.wrappers["target"].entries[BatchDescriptor(num_tokens=VERIFIED)]

    def hooked(self) -> tuple[bool, bool, bool]:
        offloader = breakable_cudagraph.__dict__["get_offloader"]
        return (
            "_replay" in vars(self.wrappers["target"]),
            "replay" in vars(self.entry.capture),
            offloader.__module__ != "vllm.model_executor.offloader.base",
        )


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that does not end leaves its hooks, in a process that then ends."""
    monkeypatch.setattr(breakable_cudagraph, "get_offloader", breakable_cudagraph.__dict__["get_offloader"])
    for method in ("forward", "do_kv_cache_update"):
        monkeypatch.setattr(FlashAttentionImpl, method, FlashAttentionImpl.__dict__[method])
    module, name = introspection.canonical_strides()
    monkeypatch.setattr(module, name, vars(module)[name])


@pytest.fixture
def engine(untouched: None) -> Iterator[Engine]:
    del untouched
    body: dict[str, Callable[..., None]] = {"attend": lambda query, output: output.copy_(query + 1)}

    def unified_attention_with_output(query: torch.Tensor, output: torch.Tensor) -> None:
        body["attend"](query, output)

    broken = breakable_cudagraph.eager_break_during_capture(unified_attention_with_output)
    with torch.library._scoped_library("laguna_replay_check", "FRAGMENT") as library:
        library.define("attention(Tensor query, Tensor(a!) output) -> ()")
        library.impl("attention", broken, "CPU")
        yield Engine(body)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "profile"
    directory.mkdir(mode=0o700)
    return directory


def profiler(engine: Engine, root: Path, samples: int = SAMPLES) -> ReplayProfiler:
    batch = replay.verification_batch(engine, VERIFIED)
    kinds = [introspection.segment_kind(segment) for segment in batch.segments]
    seam = TimingSeam(FlashAttentionImpl, introspection.canonical_strides(), [])
    return ReplayProfiler(batch, kinds, seam, ProfileDirectory(root, 0, 1), (0, 1), samples)


def test_the_first_replays_are_timed_and_then_nothing(engine: Engine, root: Path) -> None:
    attention = FlashAttentionImpl.__dict__["forward"]
    profile, finished = profiler(engine, root), []
    assert engine.hooked() == (False, False, False)
    profile.start(lambda: finished.append(engine.hooked()))
    assert engine.hooked() == (True, True, True)
    assert FlashAttentionImpl.__dict__["forward"] is not attention
    for number in range(SAMPLES):
        assert (profile.taken, finished, profile.sha256) == (number, [], None)
        engine.sources[VERIFIED].fill_(number)
        assert engine.run() == [2.0 * number] * VERIFIED
    assert finished == [(False, False, False)], "the plain path is back before anything else is told"
    assert FlashAttentionImpl.__dict__["forward"] is attention
    assert engine.run() == [2.0 * (SAMPLES - 1)] * VERIFIED
    assert (profile.taken, len(finished)) == (SAMPLES, 1)
    assert engine.target.calls == 2, "its Python ran at the captures alone"

    written = read_model(root / "rank0.json", ReplayProfile)
    assert (written.rank, written.world_size, written.kinds) == (0, 1, ["graph", "attention", "graph"])
    assert "num_tokens=8" in written.descriptor
    assert len(written.samples) == SAMPLES
    for sample in written.samples:
        assert all(sample.segment_ns)
        assert sum(sample.segment_ns) <= sample.loop_ns < sample.host_ns
        assert sample.host_ns + sample.synchronize_ns <= sample.whole_ns
        assert sample.offloader_sync_ns is not None
        assert 0 < sample.offloader_sync_ns < sample.host_ns - sample.loop_ns
        assert sample.debug_guard_ns is sample.signature_collect_ns is sample.signature_compare_ns is None
        assert sample.views is not None
        assert not any(sample.views.model_dump().values())


def test_a_slow_segment_is_slow_in_its_place(engine: Engine, root: Path) -> None:
    profile = profiler(engine, root, samples=2)
    profile.start(lambda: None)
    engine.run()
    slow = 20_000_000

    def attend(query: torch.Tensor, output: torch.Tensor) -> None:
        time.sleep(slow / 1e9)
        output.copy_(query)

    engine.broken["attend"] = attend
    engine.run()
    fast_sample, slow_sample = read_model(root / "rank0.json", ReplayProfile).samples
    assert slow_sample.segment_ns[1] >= slow > fast_sample.segment_ns[1]
    assert max(slow_sample.segment_ns[0], slow_sample.segment_ns[2]) < slow


def test_neither_the_draft_nor_another_batch_is_timed(engine: Engine, root: Path) -> None:
    profile = profiler(engine, root)
    profile.start(lambda: None)
    engine.run("draft")
    engine.run("draft", 1)
    engine.run("target", 1)
    assert profile.taken == 0
    engine.run()
    assert profile.taken == 1


def test_too_few_replays_leave_no_file(engine: Engine, root: Path) -> None:
    profile = profiler(engine, root)
    profile.start(lambda: None)
    engine.run()
    assert (profile.taken, profile.sha256, list(root.iterdir())) == (1, None, [])
    report = probe._profiled(profile)
    assert report is not None
    assert (report.samples, report.taken, report.sha256) == (SAMPLES, 1, None)


def test_a_second_attempt_is_refused(engine: Engine, root: Path) -> None:
    profile = profiler(engine, root, samples=1)
    profile.start(lambda: None)
    with pytest.raises(ProfileError, match="seen a second start; expected one attempt in a process"):
        profile.start(lambda: None)
    engine.run()
    with pytest.raises(ProfileError, match="seen a second start"):
        profile.start(lambda: None)


def _drop(segments: list[Any]) -> None:
    segments.pop()


def _swap(segments: list[Any]) -> None:
    segments[1] = segments[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop, "profiled replay 1: seen 2; expected 3 segments, as captured"),
        (_swap, "profiled replay 1: seen another segment 1; expected the segments that were captured"),
    ],
)
def test_segments_that_drift_are_refused(
    change: Callable[[list[Any]], None], message: str, engine: Engine, root: Path
) -> None:
    profile = profiler(engine, root)
    profile.start(lambda: None)
    engine.run()
    change(engine.entry.capture.segments)
    with pytest.raises(ProfileError, match=f"rank 0, {message}"):
        engine.run()
    assert list(root.iterdir()) == []


def test_a_replay_that_runs_no_segment_is_refused(engine: Engine, root: Path) -> None:
    profile = profiler(engine, root)
    profile.start(lambda: None)
    engine.entry.capture.replay = lambda: None
    with pytest.raises(ProfileError, match="seen none timed; expected vLLM's replay to run 3 segments"):
        engine.run()


def test_a_replay_that_fails_is_no_sample(engine: Engine, root: Path) -> None:
    def fail(_query: torch.Tensor, _output: torch.Tensor) -> None:
        raise ValueError("the kernel failed")

    profile = profiler(engine, root)
    profile.start(lambda: None)
    engine.broken["attend"] = fail
    with pytest.raises(ValueError, match="the kernel failed"):
        engine.run()
    assert (profile.taken, list(root.iterdir())) == (0, [])


def test_a_target_without_its_one_capture_is_refused(engine: Engine) -> None:
    with pytest.raises(RuntimeError, match="rank 0: seen 0 captures of the target for 7 tokens; expected one"):
        replay.verification_batch(engine, 7)
    engine.wrappers["target"].clear_graphs()
    with pytest.raises(RuntimeError, match="rank 0: seen 0 captures of the target for 8 tokens; expected one"):
        replay.verification_batch(engine, VERIFIED)


def test_a_vllm_that_checks_inputs_at_each_replay_is_refused(engine: Engine) -> None:
    engine.wrappers["target"].is_debugging_mode = True
    with pytest.raises(RuntimeError, match="seen vLLM at DEBUG, where replays check inputs"):
        replay.verification_batch(engine, VERIFIED)


def test_allocations_are_those_of_the_replay_and_of_the_first_ones(engine: Engine) -> None:
    allocations = ReplayAllocations()
    with replay.verification_batch(engine, VERIFIED).around(allocations.replay):
        for _ in range(COUNTED_REPLAYS + 2):
            engine.run()
        first = list(allocations.counts)
    engine.broken["attend"] = lambda query, output: output.copy_(query.clone() + torch.ones(8))
    more = ReplayAllocations()
    with replay.verification_batch(engine, VERIFIED).around(more.replay):
        engine.run()
    # A product, a sum and a difference; then a copy, ones and their sum in place of the sum.
    assert (first, more.counts) == ([3] * COUNTED_REPLAYS, [5])
    assert engine.hooked() == (False, False, False)


class Rank(probe.RankProbe, Engine):
    """A worker as vLLM makes it: the probe mixed in."""


@pytest.fixture
def rank(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = Rank(engine.broken)
    monkeypatch.setattr(introspection, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(introspection, "target_attention_layers", lambda _: {})
    monkeypatch.setattr(introspection, "attention_kernels", lambda: types.SimpleNamespace(flash_attn_varlen_func=1))
    monkeypatch.delenv(profile_directory.ROOT, raising=False)
    monkeypatch.delenv(profile_directory.SAMPLES, raising=False)
    return made


def test_off_means_absent(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("nothing of a profile is made where none is asked for")

    for name in ("ReplayProfiler", "TimingSeam", "ProfileDirectory"):
        monkeypatch.setattr(probe, name, never)
    before = FlashAttentionImpl.__dict__["forward"]
    rank.laguna_begin()
    assert FlashAttentionImpl.__dict__["forward"] is before
    assert rank.laguna_profiler is None
    assert rank.laguna_watch is not None
    assert rank.hooked() == (True, False, False), "allocations of the first replays alone are looked at"
    rank.run()
    assert rank.laguna_allocations.counts == [3]


def test_the_watch_begins_after_the_last_sample(rank: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profile_directory.ROOT, str(root))
    monkeypatch.setenv(profile_directory.SAMPLES, "2")
    rank.laguna_begin()
    rank.run()
    assert (rank.laguna_watch, rank.laguna_allocations) == (None, None)
    rank.run()
    assert rank.laguna_watch is not None
    assert rank.laguna_allocations.counts == []
    rank.run()
    assert rank.laguna_allocations.counts == [3]
    written = json.loads((root / "rank0.json").read_bytes())
    assert len(written["samples"]) == 2


@pytest.mark.parametrize("name", [profile_directory.ROOT, profile_directory.SAMPLES])
def test_half_of_a_profile_is_refused(name: str, rank: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, str(root) if name == profile_directory.ROOT else "2")
    with pytest.raises(ProfileError, match="expected both or neither"):
        rank.laguna_begin()
