# SPDX-License-Identifier: Apache-2.0
"""Gate 1 of the current-stream event profile: the first execution ladder of its preregistration, on a CPU.

The profiler's contract on a simulated stream, the analyser on files with known numbers, the whole path on the real
engine with the tiny pair, and the static checks. Nothing here touches a device.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gates.event_fakes import FakeBatch, FakeTimeline, published_kinds
from pytest_laguna.analysis.events.profile import category_sums, decide_action, slowest
from pytest_laguna.analysis.events.ranges import fold
from pytest_laguna.campaign import Campaign
from pytest_laguna.engine.event_profile import EventProfiler, Subject
from pytest_laguna.engine.event_settings import EXCLUDED, GRAPHS, ORDER, ROOT, ROUNDS, settings_from
from pytest_laguna.engine.profile_directory import ProfileDirectory, ProfileError
from pytest_laguna.engine.timeline import HostTimeline, Stream, Timeline
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord, ArmRequest, Planted
from pytest_laguna.evidence.arms.replay_profile import SegmentKind, order_sha256
from pytest_laguna.evidence.events.profile import EventProfile, StreamIdentity
from pytest_laguna.evidence.files import canonical_json, write_new
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.fixtures import Prove
from pytest_laguna.run.arm_runner import ArmRunner

KINDS = published_kinds()
INTERPRETER = Path(sys.executable)
PUBLISHED_ORDER = "e5b64443ef499d8bb8b138a94ad504effeaa6434a8884ae9f885aecf12d34e1b"


@dataclasses.dataclass
class Rank:
    """One rank's profiler around a simulated replay."""

    stream: FakeTimeline
    batch: FakeBatch
    profiler: EventProfiler
    root: Path

    @property
    def file(self) -> Path:
        """Path of its profile."""
        return self.root / "rank0.json"


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], Rank]:
    """Makes ranks with a directory each."""
    number = itertools.count()

    def make() -> Rank:
        root = tmp_path / str(next(number))
        root.mkdir(mode=0o700)
        stream = FakeTimeline()
        batch = FakeBatch(stream, KINDS)
        subject = Subject(batch, KINDS, order_sha256(KINDS), (0, 4))
        return Rank(stream, batch, EventProfiler(subject, stream, ProfileDirectory(root, 0, 4, ROOT)), root)

    return make


def refused(rank: Rank, match: str) -> str:
    """Return the reason for refusing a replay; nothing is written and the plain path is back."""
    rank.profiler.start(lambda: None)
    with pytest.raises(ProfileError, match=match) as raised:
        rank.batch.replay()
    assert not rank.file.exists()
    assert not rank.batch.hooked
    return str(raised.value)


# The contract


@pytest.mark.gate(1)
@pytest.mark.clause("events-ordered")
def test_one_event_before_and_one_after_each_callback(prove: Prove, make: Callable[[], Rank]) -> None:
    """292 events around 291 callbacks, each on the one explicit stream, and nothing between them."""
    rank = make()
    rank.profiler.start(lambda: None)
    rank.batch.replay()
    expected: list[tuple[object, ...]] = [("record", 0, rank.stream.stream)]
    for number in range(len(KINDS)):
        expected += [("segment", number), ("record", number + 1, rank.stream.stream)]
    assert rank.stream.log == [*expected, ("synchronize",)]
    assert (len(KINDS), order_sha256(KINDS)) == (291, PUBLISHED_ORDER)
    prove("events and callbacks alternate on one stream, and one synchronise ends them", events=len(KINDS) + 1)


@pytest.mark.gate(1)
@pytest.mark.clause("topology-required")
def test_another_topology_is_refused_before_the_first_event(prove: Prove) -> None:
    """A missing, an extra and a moved callback, and another batch."""
    reasons = []
    for kinds in ([*KINDS[:-1]], [*KINDS, "graph"], [KINDS[1], KINDS[0], *KINDS[2:]]):
        stream = FakeTimeline()
        of_kinds: list[SegmentKind] = list(kinds)
        with pytest.raises(ProfileError, match="expected the segments in order") as raised:
            Subject(FakeBatch(stream, of_kinds), of_kinds, PUBLISHED_ORDER, (0, 4))
        assert stream.log == []
        reasons.append(str(raised.value))
    batch = FakeBatch(FakeTimeline(), KINDS)
    batch.tokens = 12
    with pytest.raises(ProfileError, match="seen 12; expected a batch of 8 tokens"):
        Subject(batch, KINDS, PUBLISHED_ORDER, (0, 4))
    prove("only the frozen topology of the frozen batch is measured", refused=[*reasons])


@pytest.mark.gate(1)
@pytest.mark.clause("stream-frozen")
def test_a_stream_that_drifts_is_refused(prove: Prove, make: Callable[[], Rank]) -> None:
    """Within a callback, and between two."""
    rank = make()
    plain = rank.batch.segments[5]

    def drifting() -> object:
        rank.stream.stream = Stream("xpu", 2, 500)
        return plain()

    rank.profiler._subject.segments[5] = rank.batch.segments[5] = drifting
    within = refused(rank, "after segment 5; expected .*stream_id=499")
    other = make()
    looks = iter([other.stream.stream, *[other.stream.stream] * 10, *[Stream("xpu", 3, 499)] * 2])
    other.stream.current = lambda: next(looks)  # type: ignore[method-assign]
    between = refused(other, "before segment 5; expected .*device_index=2")
    prove("another stream before or after a callback is refused", refused=[within, between])


@pytest.mark.gate(1)
@pytest.mark.clause("durations-true")
def test_a_duration_that_is_none_is_refused(prove: Prove, make: Callable[[], Rank]) -> None:
    """Not finite, negative, or of an incomplete event."""
    reasons = []
    for milliseconds in (math.nan, math.inf, -1e-3):
        rank = make()
        rank.stream.spoilt[17] = {"milliseconds": milliseconds}
        reasons.append(refused(rank, r"interval 17: seen .* ms; expected a finite duration from 0"))
    rank = make()
    rank.stream.spoilt[17] = {"complete": False}
    reasons.append(refused(rank, "seen event 17 incomplete after the synchronise"))
    prove("a duration is finite and from 0, of events that the stream has passed", refused=[*reasons])


@pytest.mark.gate(1)
@pytest.mark.clause("output-exclusive")
def test_a_rank_writes_its_own_file_once(prove: Prove, make: Callable[[], Rank], tmp_path: Path) -> None:
    """Into the checked directory, which holds nothing but its siblings' files."""
    rank = make()
    (rank.root / "rank3.json").touch(mode=0o600)
    rank.profiler.start(lambda: None)
    rank.batch.replay()
    assert rank.file.stat().st_mode & 0o7777 == 0o600
    taken = make()
    taken.file.touch(mode=0o600)
    taken.profiler.start(lambda: None)
    with pytest.raises(ProfileError, match="expected one attempt of each rank"):
        taken.batch.replay()
    assert taken.file.read_bytes() == b""
    unsafe = tmp_path / "unsafe"
    unsafe.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(rank.root)
    for root in (unsafe, tmp_path / "link", tmp_path / "absent", Path("relative")):
        with pytest.raises(ProfileError, match=ROOT):
            ProfileDirectory(root, 0, 4, ROOT)
    stray = make()
    (stray.root / "notes.txt").touch(mode=0o600)
    with pytest.raises(ProfileError, match="expected nothing but other ranks' files"):
        ProfileDirectory(stray.root, 0, 4, ROOT)
    prove("one exclusive file a rank, in a private directory", mode="0600", root="0700")


@pytest.mark.gate(1)
@pytest.mark.clause("one-shot")
def test_one_replay_is_measured_and_every_later_one_is_plain(prove: Prove, make: Callable[[], Rank]) -> None:
    """A second attempt of the process is refused; a later replay bypasses the profiler."""
    rank = make()
    rank.profiler.start(lambda: None)
    rank.batch.replay()
    content, done = rank.file.read_bytes(), len(rank.stream.log)
    for _ in range(3):
        rank.batch.replay()
    assert rank.batch.plain == 3
    assert {entry[0] for entry in rank.stream.log[done:]} == {"segment"}
    assert rank.file.read_bytes() == content
    subject = Subject(rank.batch, KINDS, PUBLISHED_ORDER, (0, 4))
    with pytest.raises(ProfileError, match="expected one attempt in a process") as raised:
        EventProfiler(subject, rank.stream, rank.profiler._directory)
    prove("one replay is measured, later ones are plain, a second attempt is refused", refused=str(raised.value))


@pytest.mark.gate(1)
@pytest.mark.clause("off-and-alone")
def test_it_is_off_by_default_and_alone(prove: Prove) -> None:
    """Off without its variables; with them graphs, and no other instrument."""
    good = {ROOT: "/profile", ORDER: PUBLISHED_ORDER, GRAPHS: "1"}
    assert settings_from({GRAPHS: "1"}) is None
    assert settings_from(good) is not None
    for name in (ROOT, ORDER, GRAPHS):
        with pytest.raises(ProfileError):
            settings_from({key: value for key, value in good.items() if key != name})
    for pattern in EXCLUDED:
        with pytest.raises(ProfileError, match="expected one instrument in a process"):
            settings_from(good | {pattern.replace("*", "X"): "1"})
    assert settings_from(good | {ROUNDS: "9"}) != settings_from(good)
    prove("the profiler is off by default and shares its process with no other instrument", excluded=[*EXCLUDED])


@pytest.mark.gate(1)
@pytest.mark.clause("clock-marked")
def test_the_hosts_clock_has_the_same_interface_and_is_marked(prove: Prove, tmp_path: Path) -> None:
    """On the cpu lane; the profile says so, and claims no device."""
    root = tmp_path / "host"
    root.mkdir(mode=0o700)
    timeline: Timeline = HostTimeline()
    batch = FakeBatch(FakeTimeline(), KINDS)
    subject = Subject(batch, KINDS, PUBLISHED_ORDER, (0, 4))
    profiler = EventProfiler(subject, timeline, ProfileDirectory(root, 0, 4, ROOT))
    profiler.start(lambda: None)
    batch.replay()
    written = read_model(root / "rank0.json", EventProfile)
    assert (written.clock, written.stream.device_type, written.lead) == ("host-clock", "cpu", None)
    prove("what the host's clock took is marked", clock=written.clock, device=written.stream.device_type)


# The analyser


def _profile(rank: int, **nanoseconds: int) -> EventProfile:
    intervals = [nanoseconds[kind] for kind in KINDS]
    return EventProfile(
        rank=rank,
        world_size=4,
        descriptor="8 tokens",
        clock="device-event",
        stream=StreamIdentity(device_type="xpu", device_index=rank, stream_id=499),
        kinds=KINDS,
        interval_ns=intervals,
        span_ns=sum(intervals),
        lead=None,
    )


@pytest.mark.gate(1)
@pytest.mark.clause("slowest-alone")
def test_category_sums_come_from_the_slowest_rank_alone(prove: Prove) -> None:
    """The largest total, attention sum and collective sum lie on three ranks and are never combined."""
    ranks = [
        _profile(0, graph=10, attention=900, collective=10),
        _profile(1, graph=10, attention=10, collective=800),
        _profile(2, graph=800, attention=10, collective=10),
        _profile(3, graph=1, attention=1, collective=1),
    ]
    chosen = slowest(ranks)
    sums = category_sums(chosen.kinds, chosen.interval_ns)
    assert (chosen.rank, sum(sums.values())) == (2, chosen.total_ns)
    assert sums == {"graph": 146 * 800, "collective": 97 * 10, "attention": 48 * 10}
    ranges = fold(chosen)
    assert ranges is not None
    assert (len(ranges.layers), {found.count for found in ranges.classes.values()}) == (48, {48})
    prove(
        "the slowest rank by total is chosen first, and every sum is its own",
        rank=chosen.rank,
        total_ns=chosen.total_ns,
    )


@pytest.mark.gate(1)
@pytest.mark.clause("decision-branches")
def test_the_decision_rule_has_all_its_branches(prove: Prove, campaign: Campaign) -> None:
    """With the campaign's frozen threshold, the last branch included."""
    assert campaign.event_profile is not None
    limit = campaign.event_profile.material_percent
    sums: dict[str, dict[SegmentKind, float]] = {
        "graph": {"graph": 2 * limit, "collective": 1, "attention": 1},
        "attention": {"graph": 1, "collective": 1, "attention": 2 * limit},
        "collective": {"graph": 1, "collective": 2 * limit, "attention": 1},
        "nothing material": {"graph": 1, "collective": 1, "attention": 1},
    }
    actions = {name: decide_action(each, limit) for name, each in sums.items()}
    assert len({*actions.values()}) == len(sums)
    prove("each branch of the decision rule is reached", material_percent=limit, actions={**actions})


# The real engine


@pytest.fixture(scope="module")
def arms(campaign: Campaign, arm_runner: ArmRunner, tmp_path_factory: pytest.TempPathFactory) -> dict[Arm, ArmRecord]:
    """The teacher and the profiled arm over the generated pair, each in a fresh supervised process."""
    rehearsal = campaign.rehearsal
    assert rehearsal is not None
    directory = tmp_path_factory.mktemp("engine")
    pair = arm_runner.tiny_pair(directory / "models", interpreter=INTERPRETER)
    kinds: list[SegmentKind] = ["graph", "attention"] * rehearsal.breaks + ["graph"]  # type: ignore[assignment]
    return {
        arm: arm_runner.arm(
            ArmRequest(
                arm=arm,
                lane="cpu",
                target=str(pair.target),
                draft=str(pair.draft) if arm.speculates else None,
                prompt=pair.prompts[rehearsal.prompt],
                tokens=rehearsal.completion_tokens,
                tensor_parallel_size=1,
                collective_breaks=False,
                planted=Planted.NONE,
                profile_samples=0,
                event_profile=order_sha256(kinds) if arm.graphs else None,
                isolated=True,
            ),
            directory / arm,
            interpreter=INTERPRETER,
        )
        for arm in (Arm.Q1, Arm.GRAPH_CONTROL)
    }


@pytest.mark.gate(1)
@pytest.mark.clause("engine-profiled")
def test_the_real_engine_is_profiled_and_gives_the_teachers_tokens(
    prove: Prove, campaign: Campaign, arms: dict[Arm, ArmRecord]
) -> None:
    """vLLM's breakable graphs on the cpu lane, with events around every segment of one replay."""
    rehearsal = campaign.rehearsal
    assert rehearsal is not None
    for arm, record in arms.items():
        write_new(prove.directory / f"{arm}.json", canonical_json(record.canonical()))
    teacher, profiled = arms.values()
    assert (profiled.token_ids, profiled.text_sha256) == (teacher.token_ids, teacher.text_sha256)
    assert (teacher.cached_tokens, profiled.cached_tokens, profiled.finish_reason) == (0, 0, "length")
    (report,) = profiled.ranks
    assert report.event_profile is not None
    assert report.event_profile.sha256 is not None
    (target,) = [graph for graph in report.graphs if graph.model == "target"]
    assert (target.graphs, target.breaks) == (rehearsal.graphs, rehearsal.breaks)
    prove(
        "tokens and text of the profiled arm are the teacher's bit by bit",
        tokens=len(teacher.token_ids),
        token_sha256=teacher.token_sha256,
        profile_sha256=report.event_profile.sha256,
        isolated=[record.network is not None for record in arms.values()],
    )
