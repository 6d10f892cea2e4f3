# SPDX-License-Identifier: Apache-2.0
"""The event profile around vLLM's own wrapper, capture and replay, over tapes."""

from __future__ import annotations

import functools
import gc
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

from pytest_laguna.analysis.events import rules as event_rules
from pytest_laguna.engine import event_settings, plugin, probe, profile_directory
from pytest_laguna.engine.compat import introspection, replay
from pytest_laguna.engine.event_fitness import FitnessProfiler
from pytest_laguna.engine.event_profile import EventProfiler, Subject
from pytest_laguna.engine.profile_directory import ProfileDirectory, ProfileError
from pytest_laguna.engine.timeline import timeline
from pytest_laguna.evidence.arms.replay_profile import order_sha256
from pytest_laguna.evidence.events.profile import EventFitness, EventProfile
from pytest_laguna.evidence.schemas import read_model

VERIFIED = 8
ORDER = order_sha256(["graph", "attention", "graph"])


@pytest.fixture(autouse=True, scope="module")
def lane() -> Iterator[None]:
    plugin.register()
    gc.freeze()  # each capture collects, and all of vLLM is looked through
    yield
    gc.unfreeze()


def model(source: torch.Tensor) -> torch.Tensor:
    """One break in the middle."""
    doubled = source * 2
    output = torch.empty_like(doubled)
    torch.ops.laguna_event_check.attention(doubled, output)
    return output - 1


@functools.cache
def configuration() -> VllmConfig:
    """Of no model; to make one takes seconds."""
    return VllmConfig()


class Engine:
    """A worker whose target is captured for two batches."""

    rank = 0

    def __init__(self, broken: dict[str, Callable[..., None]]) -> None:
        self.broken = broken
        self.vllm_config = configuration()
        target = functools.partial(model)  # its own: wrappers are found by their model
        self.model_runner = types.SimpleNamespace(get_model=lambda: target, sample_tokens=None)
        self.wrapper = BreakableCUDAGraphWrapper(target, self.vllm_config, runtime_mode=CUDAGraphMode.PIECEWISE)
        self.sources = {tokens: torch.ones(tokens) for tokens in (1, VERIFIED)}
        for tokens in self.sources:
            self.run(tokens)

    def run(self, tokens: int = VERIFIED) -> list[float]:
        descriptor = BatchDescriptor(num_tokens=tokens)
        mode = CUDAGraphMode.PIECEWISE
        with (
            torch.inference_mode(),
            set_forward_context(None, self.vllm_config, cudagraph_runtime_mode=mode, batch_descriptor=descriptor),
        ):
            output: list[float] = self.wrapper(self.sources[tokens]).tolist()
        return output

    @property
    def hooked(self) -> bool:
        entry = self.wrapper.entries[BatchDescriptor(num_tokens=VERIFIED)]
        return "_replay" in vars(self.wrapper) or "replay" in vars(entry.capture)


@pytest.fixture
def engine() -> Iterator[Engine]:
    body: dict[str, Callable[..., None]] = {"attend": lambda query, output: output.copy_(query + 1)}

    def unified_attention_with_output(query: torch.Tensor, output: torch.Tensor) -> None:
        body["attend"](query, output)

    broken = breakable_cudagraph.eager_break_during_capture(unified_attention_with_output)
    with torch.library._scoped_library("laguna_event_check", "FRAGMENT") as library:
        library.define("attention(Tensor query, Tensor(a!) output) -> ()")
        library.impl("attention", broken, "CPU")
        yield Engine(body)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "profile"
    directory.mkdir(mode=0o700)
    return directory


def subject(engine: Engine, order: str = ORDER) -> Subject:
    batch = replay.verification_batch(engine, VERIFIED)
    kinds = [introspection.segment_kind(segment) for segment in batch.segments]
    return Subject(batch, kinds, order, (0, 1))


def test_one_replay_is_timed_and_then_nothing(engine: Engine, root: Path) -> None:
    profile = EventProfiler(subject(engine), timeline(), ProfileDirectory(root, 0, 1))
    finished: list[bool] = []
    profile.start(lambda: finished.append(engine.hooked))
    assert engine.hooked
    engine.run(1)
    assert (finished, list(root.iterdir())) == ([], []), "another batch is not measured"
    engine.sources[VERIFIED].fill_(3)
    assert engine.run() == [6.0] * VERIFIED
    assert finished == [False]
    engine.sources[VERIFIED].fill_(4)
    assert engine.run() == [8.0] * VERIFIED
    written = read_model(root / "rank0.json", EventProfile)
    assert (written.kinds, written.clock, written.lead) == (["graph", "attention", "graph"], "host-clock", None)
    assert "num_tokens=8" in written.descriptor
    assert all(written.interval_ns)
    assert written.total_ns == written.span_ns


def test_a_slow_segment_is_slow_in_its_place(engine: Engine, root: Path) -> None:
    slow = 20_000_000

    def attend(query: torch.Tensor, output: torch.Tensor) -> None:
        time.sleep(slow / 1e9)
        output.copy_(query)

    engine.broken["attend"] = attend
    EventProfiler(subject(engine), timeline(), ProfileDirectory(root, 0, 1)).start(lambda: None)
    engine.run()
    first, second, third = read_model(root / "rank0.json", EventProfile).interval_ns
    assert second >= slow
    assert max(first, third) < slow


def test_another_topology_is_refused(engine: Engine) -> None:
    with pytest.raises(ProfileError, match="seen 3 segments in order"):
        subject(engine, "0" * 64)


def test_an_injected_slow_down_is_unfit(engine: Engine, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the stream, which the profile alone takes, is made to cost as much as a whole replay does."""
    slow = timeline()
    current = slow.current

    def costly() -> Any:
        time.sleep(0.005)
        return current()

    monkeypatch.setattr(slow, "current", costly)
    trial = FitnessProfiler(subject(engine), slow, ProfileDirectory(root, 0, 1), rounds=3)
    trial.start(lambda: None)
    for _ in range(9):
        engine.run()
    assert not engine.hooked
    written = read_model(root / "rank0.json", EventFitness)
    figures = event_rules._figures(written, 1.1)
    assert not figures.fit
    assert figures.slowdown > 1.1
    assert min(figures.kind_slowdown.values()) > 1.1
    assert len(written.rounds) == 3
    for each in written.rounds:
        assert each.events_ns > each.plain_ns + 7 * 5_000_000 * 0.5
        assert set(each.events_kind_ns) == {"graph", "attention"}
        assert min(each.events_kind_ns.values()) > 5_000_000


class Rank(probe.RankProbe, Engine):
    """A worker as vLLM makes it: the probe mixed in."""


@pytest.fixture
def rank(engine: Engine, root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = Rank(engine.broken)
    monkeypatch.setattr(introspection, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(introspection, "target_attention_layers", lambda _: {})
    monkeypatch.setattr(introspection, "attention_kernels", lambda: types.SimpleNamespace(flash_attn_varlen_func=1))
    monkeypatch.setenv(event_settings.ROOT, str(root))
    monkeypatch.setenv(event_settings.ORDER, ORDER)
    monkeypatch.setenv(event_settings.GRAPHS, "1")
    return made


def test_the_watch_begins_after_the_profile(rank: Any, root: Path) -> None:
    rank.laguna_begin()
    assert (rank.laguna_watch, rank.laguna_profiler) == (None, None)
    rank.run()
    assert rank.laguna_watch is not None
    report = probe._event_profiled(rank.laguna_events)
    assert report is not None
    assert (report.rounds, report.sha256) == (0, rank.laguna_events.sha256)
    assert [path.name for path in root.iterdir()] == ["rank0.json"]


def test_a_number_asks_for_the_trial(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(event_settings.ROUNDS, "1")
    rank.laguna_begin()
    for _ in range(3):
        assert rank.laguna_watch is None
        rank.run()
    assert rank.laguna_watch is not None
    report = probe._event_profiled(rank.laguna_events)
    assert report is not None
    assert report.rounds == 1


def test_two_instruments_are_refused(rank: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profile_directory.ROOT, str(root))
    monkeypatch.setenv(profile_directory.SAMPLES, "2")
    with pytest.raises(ProfileError, match="expected one instrument in a process"):
        rank.laguna_begin()


def test_off_means_absent(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("nothing of a profile is made where none is asked for")

    for name in (event_settings.ROOT, event_settings.ORDER):
        monkeypatch.delenv(name)
    for name in ("EventProfiler", "FitnessProfiler", "Subject", "ProfileDirectory", "timeline"):
        monkeypatch.setattr(probe, name, never)
    rank.laguna_begin()
    assert rank.laguna_events is None
    assert rank.laguna_watch is not None
