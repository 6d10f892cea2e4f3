# SPDX-License-Identifier: Apache-2.0
"""The event profiler's contract on a simulated stream: order, stream, one synchronise, and each refusal fires."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gates.event_fakes import FakeBatch, FakeTimeline, published_kinds
from pytest_laguna.engine import event_fitness, event_loop, event_profile, timeline
from pytest_laguna.engine.event_fitness import FitnessProfiler
from pytest_laguna.engine.event_loop import EventLoop
from pytest_laguna.engine.event_profile import EventProfiler, Subject
from pytest_laguna.engine.profile_directory import ProfileDirectory, ProfileError
from pytest_laguna.engine.timeline import HostTimeline, Stream
from pytest_laguna.evidence.arms.replay_profile import SegmentKind, order_sha256
from pytest_laguna.evidence.events.profile import EventFitness, EventProfile
from pytest_laguna.evidence.schemas import read_model

KINDS = published_kinds()
ORDER = "e5b64443ef499d8bb8b138a94ad504effeaa6434a8884ae9f885aecf12d34e1b"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "profile"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> FakeTimeline:
    """The simulated stream, whose host's clock is the loop's."""
    fake = FakeTimeline()
    for module in (event_loop, event_fitness):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter_ns=fake.perf_counter_ns))
    return fake


def subject(batch: FakeBatch, rank: int = 0, world_size: int = 4, order: str | None = None) -> Subject:
    return Subject(batch, batch.kinds, order or order_sha256(batch.kinds), (rank, world_size))


def profiler(batch: FakeBatch, stream: Any, root: Path, rank: int = 0) -> EventProfiler:
    return EventProfiler(subject(batch, rank), stream, ProfileDirectory(root, rank, 4, "VARIABLE"))


def test_the_published_order_is_the_expected_one() -> None:
    assert (len(KINDS), order_sha256(KINDS)) == (291, ORDER)


def test_events_surround_each_segment_and_one_synchronise_ends(stream: FakeTimeline, root: Path) -> None:
    batch = FakeBatch(stream, KINDS)
    finished: list[bool] = []
    profile = profiler(batch, stream, root)
    profile.start(lambda: finished.append(batch.hooked))
    assert batch.replay() == "output"
    assert finished == [False], "the plain path is back before anything else is told"
    where = Stream("xpu", 2, 499)
    expected: list[tuple[Any, ...]] = [("record", 0, where)]
    for number in range(291):
        expected += [("segment", number), ("record", number + 1, where)]
    assert stream.log == [*expected, ("synchronize",)]
    written = read_model(root / "rank0.json", EventProfile)
    assert (written.rank, written.world_size, written.clock) == (0, 4, "device-event")
    assert (len(written.interval_ns), written.order_sha256) == (291, ORDER)
    assert written.stream.canonical() == {"device_type": "xpu", "device_index": 2, "stream_id": 499}
    # The host submits each segment in 10 ns and the stream works 100 ns on it: it stands still before the first alone.
    assert written.interval_ns == [110] + [100] * 290
    assert written.span_ns == written.total_ns == 110 + 290 * 100
    assert written.lead is not None
    assert written.lead.boundary_ns == [10 * boundary for boundary in range(292)]
    assert written.lead.synchronised_ns == written.span_ns
    assert profile.sha256 is not None


def test_every_later_replay_is_plain(stream: FakeTimeline, root: Path) -> None:
    batch = FakeBatch(stream, KINDS)
    profile = profiler(batch, stream, root)
    profile.start(lambda: None)
    batch.replay()
    content, events = (root / "rank0.json").read_bytes(), len(stream.log)
    for _ in range(3):
        batch.replay()
    assert batch.plain == 3
    assert [entry for entry in stream.log[events:] if entry[0] != "segment"] == []
    assert (root / "rank0.json").read_bytes() == content


def test_a_cpu_has_its_host_clock_marked_and_no_lead(root: Path) -> None:
    batch = FakeBatch(FakeTimeline(), ["graph", "attention", "graph"])
    profile = profiler(batch, HostTimeline(), root)
    profile.start(lambda: None)
    batch.replay()
    written = read_model(root / "rank0.json", EventProfile)
    assert (written.clock, written.stream.device_type, written.lead) == ("host-clock", "cpu", None)
    assert all(written.interval_ns)
    assert written.span_ns == written.total_ns


def test_without_an_accelerator_the_host_is_the_timeline() -> None:
    assert isinstance(timeline.timeline(), HostTimeline)


# Refusals before the replay


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda batch: setattr(batch, "tokens", 7), "seen 7; expected a batch of 8 tokens"),
        (lambda batch: batch.kinds.pop(), "seen 290; expected 291 kinds, one a segment"),
        (lambda batch: batch.kinds.reverse(), f"seen 291 segments in order .*; expected the segments in order {ORDER}"),
        (lambda batch: (batch.kinds.pop(), batch.segments.pop()), "seen 290 segments in order"),
    ],
    ids=["tokens", "kinds", "order", "shorter"],
)
def test_another_batch_or_topology_is_refused(
    change: Callable[[FakeBatch], object], expected: str, stream: FakeTimeline
) -> None:
    batch = FakeBatch(stream, KINDS)
    change(batch)
    with pytest.raises(ProfileError, match=f"rank 0, event profile: .*{expected}"):
        Subject(batch, batch.kinds, ORDER, (0, 4))


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_out_of_range_is_refused(rank: int, stream: FakeTimeline) -> None:
    with pytest.raises(ProfileError, match=f"seen rank {rank}; expected a rank below 4"):
        subject(FakeBatch(stream, KINDS), rank)


def test_a_second_attempt_of_the_process_is_refused(stream: FakeTimeline, root: Path) -> None:
    batch = FakeBatch(stream, KINDS)
    profiler(batch, stream, root)
    with pytest.raises(ProfileError, match=r"seen a second one .*; expected one attempt in a process"):
        profiler(batch, stream, root)
    profiler(batch, stream, root, rank=1)  # another rank's is its own


def test_a_second_start_is_refused(stream: FakeTimeline, root: Path) -> None:
    batch = FakeBatch(stream, KINDS)
    profile = profiler(batch, stream, root)
    profile.start(lambda: None)
    with pytest.raises(ProfileError, match="seen a second one; expected one start"):
        profile.start(lambda: None)


def test_a_second_measured_replay_is_refused(stream: FakeTimeline, root: Path) -> None:
    batch = FakeBatch(stream, KINDS)
    profile = profiler(batch, stream, root)
    profile.start(lambda: None)
    batch.replay()
    with pytest.raises(ProfileError, match="seen a second one; expected one measured replay"):
        profile.replay(lambda: None)


def test_what_was_not_claimed_is_refused(stream: FakeTimeline, root: Path) -> None:
    profile = profiler(FakeBatch(stream, KINDS), stream, root)
    with pytest.raises(ProfileError, match="seen none; expected a start before the replay"):
        profile.replay(lambda: None)


def test_no_stream_is_refused(stream: FakeTimeline, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def current() -> Stream:
        raise RuntimeError("no accelerator\nis initialised")

    batch = FakeBatch(stream, KINDS)
    profile = profiler(batch, stream, root)
    profile.start(lambda: None)
    monkeypatch.setattr(stream, "current", current)
    with pytest.raises(ProfileError, match=r"no stream to measure \(no accelerator is initialised\)"):
        batch.replay()
    assert not batch.hooked


# Refusals of the replay


def _started(stream: FakeTimeline, root: Path) -> FakeBatch:
    batch = FakeBatch(stream, KINDS)
    profiler(batch, stream, root).start(lambda: None)
    return batch


def test_segments_that_drift_before_the_replay_are_refused(stream: FakeTimeline, root: Path) -> None:
    batch = _started(stream, root)
    batch.segments[7] = batch.segments[6]
    with pytest.raises(ProfileError, match="seen another segment 7; expected the segments that were captured"):
        batch.replay()
    assert (list(root.iterdir()), batch.hooked) == ([], False)


@pytest.mark.parametrize(
    "change", [lambda segments: segments.pop(), lambda segments: segments.append(segments[0])], ids=["missing", "extra"]
)
def test_a_missing_or_extra_segment_is_refused(
    change: Callable[[list[Any]], object], stream: FakeTimeline, root: Path
) -> None:
    batch = _started(stream, root)
    change(batch.segments)
    with pytest.raises(ProfileError, match=r"seen 29[02]; expected 291 segments, as captured"):
        batch.replay()
    assert list(root.iterdir()) == []


def test_segments_that_drift_within_the_replay_are_refused(stream: FakeTimeline, root: Path) -> None:
    batch = FakeBatch(stream, ["graph", "attention", "graph"])
    batch.segments[1] = batch.segments.pop  # a callback that changes what is replayed
    profile = profiler(batch, stream, root)
    profile.start(lambda: None)
    with pytest.raises(ProfileError, match="seen 2; expected 3 segments, as captured"):
        batch.replay()
    assert list(root.iterdir()) == []


def test_a_replay_that_runs_no_segment_is_refused(stream: FakeTimeline, root: Path) -> None:
    batch = _started(stream, root)
    batch._replay = lambda: "output"  # type: ignore[method-assign]
    with pytest.raises(ProfileError, match="seen 0 of 292 events; expected all"):
        batch.replay()
    assert list(root.iterdir()) == []


def test_a_replay_that_fails_leaves_no_file_and_no_hook(stream: FakeTimeline, root: Path) -> None:
    batch = _started(stream, root)
    failing = FakeBatch(stream, KINDS)

    def fail() -> None:
        raise ValueError("the kernel failed")

    failing.segments[3] = fail
    profiler(failing, stream, root, rank=1).start(lambda: None)
    with pytest.raises(ValueError, match="the kernel failed"):
        failing.replay()
    assert (list(root.iterdir()), failing.hooked, batch.hooked) == ([], False, True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_another_stream_is_refused(when: str, stream: FakeTimeline, root: Path) -> None:
    batch = FakeBatch(stream, KINDS)
    other = Stream("xpu", 2, 500)
    if when == "after":
        plain = batch.segments[5]

        def segment() -> object:
            stream.stream = other
            return plain()

        batch.segments[5] = segment
    else:
        looks = iter([*[stream.stream] * (1 + 2 * 5), other, other])
        stream.current = lambda: next(looks)  # type: ignore[method-assign]
    profiler(batch, stream, root).start(lambda: None)
    with pytest.raises(ProfileError, match=rf"stream_id=500\) {when} segment 5; expected .*stream_id=499"):
        batch.replay()
    assert (list(root.iterdir()), batch.hooked) == ([], False)
    assert ("synchronize",) not in stream.log


@pytest.mark.parametrize("milliseconds", [math.nan, math.inf, -math.inf, -0.001])
def test_a_duration_that_is_none_is_refused(milliseconds: float, stream: FakeTimeline, root: Path) -> None:
    batch = _started(stream, root)
    stream.spoilt[17] = {"milliseconds": milliseconds}
    with pytest.raises(ProfileError, match=r"interval 17: seen .* ms; expected a finite duration from 0"):
        batch.replay()
    assert list(root.iterdir()) == []


def test_an_event_that_is_not_complete_is_refused(stream: FakeTimeline, root: Path) -> None:
    batch = _started(stream, root)
    stream.spoilt[290] = {"complete": False}
    with pytest.raises(ProfileError, match="seen event 290 incomplete after the synchronise"):
        batch.replay()
    assert list(root.iterdir()) == []


def test_a_loop_runs_once(stream: FakeTimeline) -> None:
    loop = EventLoop([lambda: None], stream, "here")
    loop.run()
    with pytest.raises(ProfileError, match="here: seen a second run; expected each event to be recorded once"):
        loop.run()


# Refusals of the writing


def test_a_duplicate_file_is_refused(stream: FakeTimeline, root: Path) -> None:
    batch = _started(stream, root)
    path = root / "rank0.json"
    path.touch(mode=0o600)
    with pytest.raises(ProfileError, match=r"seen rank0\.json already there; expected one attempt of each rank"):
        batch.replay()
    assert path.read_bytes() == b""


def test_a_sibling_that_published_first_is_no_obstacle(stream: FakeTimeline, root: Path) -> None:
    batches = [FakeBatch(stream, KINDS) for _ in range(4)]
    for rank in (3, 1, 0, 2):
        profiler(batches[rank], stream, root, rank).start(lambda: None)
        batches[rank].replay()
    assert sorted(path.name for path in root.iterdir()) == [f"rank{rank}.json" for rank in range(4)]


def test_a_directory_that_was_exchanged_is_refused(stream: FakeTimeline, root: Path) -> None:
    batch = _started(stream, root)
    root.rename(root.with_name("moved"))
    root.mkdir(mode=0o700)
    with pytest.raises(
        ProfileError,
        match=r"VARIABLE .*: seen another one of that name; expected the directory as it was before the first sample",
    ):
        batch.replay()
    assert list(root.iterdir()) == []


# The trial of the instrument


def _trial(batch: FakeBatch, stream: FakeTimeline, root: Path, rounds: int = 2) -> FitnessProfiler:
    return FitnessProfiler(subject(batch), stream, ProfileDirectory(root, 0, 4), rounds)


def test_a_round_is_three_replays_and_then_nothing(stream: FakeTimeline, root: Path) -> None:
    kinds: list[SegmentKind] = ["graph", "attention", "graph"]
    batch = FakeBatch(stream, kinds, host_ns=lambda kind: 10 if kind == "graph" else 40, work_ns=lambda _: 100)
    finished: list[bool] = []
    trial = _trial(batch, stream, root)
    trial.start(lambda: finished.append(batch.hooked))
    for number in range(6):
        assert finished == [], number
        batch.replay()
    assert finished == [False]
    batch.replay()
    assert batch.plain == 2 + 1
    written = read_model(root / "rank0.json", EventFitness)
    assert len(written.rounds) == 2
    for each in written.rounds:
        # The simulation's events cost nothing, so all three ways take the same time.
        assert (each.plain_ns, each.stamped_ns, each.events_ns) == (310, 310, 310)
        assert each.stamped_kind_ns == each.events_kind_ns == {"graph": 20, "attention": 40}


def test_what_events_cost_is_in_the_third_way_alone(
    stream: FakeTimeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[SegmentKind] = ["graph", "attention", "graph"]
    batch = FakeBatch(stream, kinds, host_ns=lambda _: 100, work_ns=lambda _: 1)
    current = stream.current

    def costly() -> Stream:
        stream.host += 50
        return current()

    monkeypatch.setattr(stream, "current", costly)
    trial = _trial(batch, stream, root, rounds=1)
    trial.start(lambda: None)
    for _ in range(3):
        batch.replay()
    (only,) = read_model(root / "rank0.json", EventFitness).rounds
    assert only.plain_ns == only.stamped_ns == 301
    assert only.events_ns == 3 * 100 + 6 * 50
    assert only.events_kind_ns == {"graph": 2 * 200, "attention": 200}


def test_a_trial_that_does_not_run_the_segments_is_refused(stream: FakeTimeline, root: Path) -> None:
    batch = FakeBatch(stream, KINDS)
    trial = _trial(batch, stream, root)
    trial.start(lambda: None)
    with pytest.raises(ProfileError, match="seen a second one; expected one start"):
        trial.start(lambda: None)
    batch.replay()
    batch._replay = lambda: "output"  # type: ignore[method-assign]
    with pytest.raises(ProfileError, match="seen 0 readings; expected vLLM's replay to run 291 segments"):
        batch.replay()
    assert not batch.hooked
    other = FakeBatch(stream, KINDS)
    _trial(other, stream, root).start(lambda: None)
    other.segments.pop()
    with pytest.raises(ProfileError, match="seen 290; expected 291 segments, as captured"):
        other.replay()
    assert (list(root.iterdir()), other.hooked) == ([], False)


def test_what_was_submitted_before_is_not_the_replays(stream: FakeTimeline, root: Path) -> None:
    batch = FakeBatch(stream, ["graph", "attention", "graph"])
    _trial(batch, stream, root, rounds=1).start(lambda: None)
    for _ in range(3):
        stream.free = stream.host + 1_000_000
        batch.replay()
    (only,) = read_model(root / "rank0.json", EventFitness).rounds
    assert only.plain_ns == only.stamped_ns == only.events_ns == 310


def test_attempts_are_known_by_root_and_rank(stream: FakeTimeline, root: Path) -> None:
    profiler(FakeBatch(stream, KINDS), stream, root)
    assert (root, 0) in event_profile._ATTEMPTED
