# SPDX-License-Identifier: Apache-2.0
"""The sparse profile: a few drawn intervals of many replays, and true shares from them."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pydantic
import pytest

from gates.event_fakes import FakeBatch, FakeTimeline, published_kinds
from pytest_laguna.analysis.events.profile import category_sums, shares
from pytest_laguna.analysis.events.sparse import sparse_class_shares, sparse_shares
from pytest_laguna.engine.event_profile import Subject
from pytest_laguna.engine.event_sparse import SparseProfiler
from pytest_laguna.engine.profile_directory import ProfileDirectory, ProfileError
from pytest_laguna.engine.timeline import Stream
from pytest_laguna.evidence.arms.replay_profile import SegmentKind, order_sha256
from pytest_laguna.evidence.events.sparse import FRACTION, SparseProfile, chosen_intervals
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import NotProvenError

KINDS = published_kinds()
WORK = {"graph": 500, "collective": 300, "attention": 200}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "profile"
    directory.mkdir(mode=0o700)
    return directory


def profiler(batch: FakeBatch, stream: FakeTimeline, root: Path, replays: int = 3) -> SparseProfiler:
    subject = Subject(batch, batch.kinds, order_sha256(batch.kinds), (0, 1))
    return SparseProfiler(subject, stream, ProfileDirectory(root, 0, 1), replays)


def measured(root: Path, replays: int, kinds: list[SegmentKind] = KINDS) -> SparseProfile:
    stream = FakeTimeline()
    batch = FakeBatch(stream, kinds, host_ns=lambda _: 1, work_ns=WORK.__getitem__)
    profiler(batch, stream, root, replays).start(lambda: None)
    for _ in range(replays):
        batch.replay()
    return read_model(root / "rank0.json", SparseProfile)


def test_few_boundaries_are_drawn_and_each_as_often_as_another() -> None:
    drawn = [chosen_intervals(KINDS, replay) for replay in range(2_000)]
    assert {len(chosen) for chosen in drawn} == {7}
    assert FRACTION * 292 >= 2 * 7
    assert all(chosen == sorted(set(chosen)) for chosen in drawn)
    counts = Counter(index for chosen in drawn for index in chosen)
    mean = 2_000 * 7 / 291
    assert len(counts) == 291
    chi_square = sum((counts[index] - mean) ** 2 / mean for index in range(291))
    assert chi_square < 290 + 4 * math.sqrt(2 * 290)
    assert chosen_intervals(KINDS, 5) == drawn[5], "the draw is frozen"
    assert chosen_intervals(["graph"], 0) == [0]


def test_only_drawn_intervals_have_events_and_nothing_waits(root: Path) -> None:
    stream = FakeTimeline()
    batch = FakeBatch(stream, KINDS)
    finished: list[bool] = []
    profile = profiler(batch, stream, root, replays=2)
    profile.start(lambda: finished.append(batch.hooked))
    for replay in range(2):
        begin = len(stream.log)
        assert finished == []
        batch.replay()
        log = [entry for entry in stream.log[begin:] if entry != ("synchronize",)]
        expected: list[tuple[Any, ...]] = []
        for number in range(291):
            if number in chosen_intervals(KINDS, replay):
                place = 2 * chosen_intervals(KINDS, replay).index(number)
                expected += [("record", place, stream.stream), ("segment", number)]
                expected.append(("record", place + 1, stream.stream))
            else:
                expected.append(("segment", number))
        assert log == expected
    assert finished == [False]
    assert stream.log.count(("synchronize",)) == 1, "the one after the last replay"
    batch.replay()
    assert batch.plain == 1
    written = read_model(root / "rank0.json", SparseProfile)
    assert [len(durations) for durations in written.replays] == [7, 7]
    assert profile.sha256 is not None


def test_its_shares_are_the_whole_replays(root: Path) -> None:
    truth = shares(category_sums(KINDS, [WORK[kind] for kind in KINDS]))
    seen = sparse_shares(measured(root, 40))
    assert seen.keys() == truth.keys()
    for kind, share in truth.items():
        assert abs(seen[kind].percent - share) < 2
        assert seen[kind].low - 0.5 <= share <= seen[kind].high + 0.5
    assert sum(share.percent for share in seen.values()) == pytest.approx(100)
    assert sum(share.drawn for share in seen.values()) == 40 * 7


def test_a_part_that_is_hardly_ever_drawn_is_counted_with_the_most_of_its_kind(root: Path) -> None:
    one_rank: list[SegmentKind] = [*("graph", "attention") * 48, "graph"]
    profile = measured(root, 30, one_rank)
    drawn = [index for replay in range(30) for index in chosen_intervals(one_rank, replay)]
    assert drawn.count(96) < 2, "the one interval of the tail"
    seen = sparse_class_shares(profile)
    assert list(seen) == ["between_attentions and tail", "attention"]
    assert seen["attention"] == sparse_shares(profile)["attention"]


def test_scatter_widens_the_interval(root: Path) -> None:
    steady = measured(root, 40)
    scattered = steady.model_copy(
        update={"replays": [[value * (1 + 2 * (n % 2)) for value in each] for n, each in enumerate(steady.replays)]}
    )
    for kind, share in sparse_shares(steady).items():
        wider = sparse_shares(scattered)[kind]
        assert wider.high - wider.low > share.high - share.low


def test_shares_by_source_need_enough_replays(root: Path) -> None:
    profile = measured(root, 200)
    seen = sparse_class_shares(profile)
    assert {"pre_attention", "post_attention_local_o", "local_mlp", "attention", "collective"} <= seen.keys()
    truth = shares(category_sums(KINDS, [WORK[kind] for kind in KINDS]))
    assert seen["attention"].percent == pytest.approx(truth["attention"], abs=2)
    few = profile.model_copy(update={"replays": profile.replays[:1]})
    with pytest.raises(NotProvenError, match="in 1 replays; expected 2 at least; measure more replays"):
        sparse_class_shares(few)
    nothing = profile.model_copy(update={"replays": [[0] * 7 for _ in profile.replays]})
    with pytest.raises(NotProvenError, match="expected replays that took time"):
        sparse_shares(nothing)


@pytest.mark.parametrize("milliseconds", [math.nan, math.inf, -1.0])
def test_a_duration_that_is_none_is_refused(milliseconds: float, root: Path) -> None:
    stream = FakeTimeline()
    batch = FakeBatch(stream, KINDS)
    profiler(batch, stream, root, replays=1).start(lambda: None)
    stream.spoilt[4] = {"milliseconds": milliseconds}
    with pytest.raises(ProfileError, match=r"replay 0: interval 2: seen .* ms; expected a finite duration from 0"):
        batch.replay()
    assert (list(root.iterdir()), batch.hooked) == ([], False)


def test_an_event_that_is_not_complete_is_refused(root: Path) -> None:
    stream = FakeTimeline()
    batch = FakeBatch(stream, KINDS)
    profiler(batch, stream, root, replays=1).start(lambda: None)
    stream.spoilt[4] = {"complete": False}
    with pytest.raises(ProfileError, match=r"replay 0: seen event 4 incomplete after the synchronise"):
        batch.replay()
    assert (list(root.iterdir()), batch.hooked) == ([], False)


def test_a_replay_that_runs_no_segment_is_refused(root: Path) -> None:
    stream = FakeTimeline()
    batch = FakeBatch(stream, KINDS)
    profiler(batch, stream, root, replays=1).start(lambda: None)
    batch._replay = lambda: "output"  # type: ignore[method-assign]
    with pytest.raises(ProfileError, match="seen none run; expected vLLM's replay to run its segments"):
        batch.replay()
    assert (list(root.iterdir()), batch.hooked) == ([], False)


def test_all_events_are_made_before_the_first_replay(root: Path) -> None:
    stream = FakeTimeline()
    batch = FakeBatch(stream, KINDS)
    profile = profiler(batch, stream, root, replays=3)
    profile.start(lambda: None)
    with pytest.raises(ProfileError, match="seen one outside; expected a loop within a measured replay"):
        profile._run()
    made: list[int] = []
    plain = stream.events

    def events(count: int) -> Any:
        made.append(count)
        return plain(count)

    stream.events = events  # type: ignore[method-assign]
    batch.replay()
    assert made == [14] * 3
    for _ in range(3):
        batch.replay()
    assert (made, batch.plain) == ([14] * 3, 1)


def test_the_stream_is_that_of_the_first_replay(root: Path) -> None:
    """Which one is current while nothing is replayed is no matter."""
    stream = FakeTimeline()
    batch = FakeBatch(stream, KINDS)
    profiler(batch, stream, root, replays=1).start(lambda: None)
    stream.stream = Stream("xpu", 2, 501)
    batch.replay()
    assert read_model(root / "rank0.json", SparseProfile).stream.stream_id == 501


def test_no_stream_is_refused(root: Path) -> None:
    stream = FakeTimeline()
    batch = FakeBatch(stream, KINDS)
    profiler(batch, stream, root).start(lambda: None)

    def current() -> Stream:
        raise RuntimeError("no accelerator is initialised")

    stream.current = current  # type: ignore[method-assign]
    with pytest.raises(ProfileError, match=r"no stream to measure \(no accelerator is initialised\)"):
        batch.replay()
    assert (list(root.iterdir()), batch.hooked) == ([], False)


def test_a_stream_or_segments_that_drift_are_refused(root: Path) -> None:
    stream = FakeTimeline()
    batch = FakeBatch(stream, KINDS)
    profile = profiler(batch, stream, root)
    profile.start(lambda: None)
    with pytest.raises(ProfileError, match="seen a second one; expected one start"):
        profile.start(lambda: None)
    batch.replay()
    stream.stream = Stream("xpu", 2, 500)
    with pytest.raises(ProfileError, match=r"seen .*stream_id=500.*; expected .*stream_id=499"):
        batch.replay()
    assert not batch.hooked
    other = FakeBatch(stream, KINDS)
    profiler(other, stream, root).start(lambda: None)
    other.segments.pop()
    with pytest.raises(ProfileError, match="seen 290; expected 291 segments, as captured"):
        other.replay()
    assert (list(root.iterdir()), other.hooked) == ([], False)


@pytest.mark.parametrize(
    "change", [{"rank": 1}, {"replays": [[1] * 6]}, {"replays": []}], ids=["rank", "short", "none"]
)
def test_a_profile_of_another_form_is_refused(change: dict[str, Any], root: Path) -> None:
    values = measured(root, 1).model_dump(by_alias=True)
    with pytest.raises(pydantic.ValidationError):
        SparseProfile.model_validate(values | change)
