# SPDX-License-Identifier: Apache-2.0
"""Each error branch of the event profile's contract, end to end: the profiler refuses, and its root proves nothing.

Every branch ends the arm, whose last line is then in the root in the record's place. The analysis names it, and gives
neither a status nor a decision, whatever else lies there.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gates.event_fakes import FakeBatch, FakeTimeline, published_kinds
from pytest_laguna.engine import event_settings, profile_directory
from pytest_laguna.engine.event_profile import EventProfiler, Subject
from pytest_laguna.engine.profile_directory import ProfileDirectory, ProfileError
from pytest_laguna.engine.timeline import Stream
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_settings import FAILED
from pytest_laguna.evidence.arms.replay_profile import SegmentKind, order_sha256
from tests import event_root as root
from tests.diagnostic_root import without

KINDS = published_kinds()
ORDER = order_sha256(KINDS)
ENVIRONMENT = {event_settings.ROOT: "/profile", event_settings.ORDER: ORDER, event_settings.GRAPHS: "1"}
RECORD, FAILURE = "arms/graph-event/record.json", "arms/graph-event/failure.json"

Branch = Callable[[Path], object]


class Rank:
    """One rank's profiler, ready for the replay that is measured."""

    def __init__(self, place: Path, kinds: list[SegmentKind] | None = None, rank: int = 0) -> None:
        self.root = place / "profile"
        self.root.mkdir(mode=0o700)
        self.stream = FakeTimeline()
        self.batch = FakeBatch(self.stream, kinds or KINDS)
        subject = Subject(self.batch, self.batch.kinds, ORDER, (rank, 4))
        self.directory = ProfileDirectory(self.root, rank, 4, event_settings.ROOT)
        self.profiler = EventProfiler(subject, self.stream, self.directory)
        self.profiler.start(lambda: None)

    def spoil(self, **facts: object) -> None:
        """Have the 18th event say something else."""
        self.stream.spoilt[17] = facts


def settings(**changes: str | None) -> Branch:
    """An environment that asks for less, or for more."""
    names = {"graphs": event_settings.GRAPHS, "order": event_settings.ORDER, "samples": profile_directory.SAMPLES}
    values = ENVIRONMENT | {names.get(name, name): value for name, value in changes.items()}
    return lambda _: event_settings.settings_from({name: value for name, value in values.items() if value is not None})


def place(make: Callable[[Path], Path]) -> Branch:
    """A directory that may not be written to."""
    return lambda path: ProfileDirectory(make(path), 0, 4, event_settings.ROOT)


def directory(path: Path, mode: int = 0o700) -> Path:
    (path / "profile").mkdir(mode=mode)
    return path / "profile"


def linked(path: Path) -> Path:
    (path / "link").symlink_to(directory(path))
    return path / "link"


def a_file(path: Path) -> Path:
    (path / "profile").touch()
    return path / "profile"


def holding(name: str, mode: int = 0o600) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        made = directory(path)
        (made / name).touch(mode)
        return made

    return make


def subject(kinds: list[SegmentKind], tokens: int = 8, rank: int = 0) -> Branch:
    """Another batch."""

    def look(_: Path) -> None:
        batch = FakeBatch(FakeTimeline(), kinds)
        batch.tokens = tokens
        Subject(batch, kinds, ORDER, (rank, 4))

    return look


def miscounted(_: Path) -> None:
    Subject(FakeBatch(FakeTimeline(), KINDS), KINDS[:-1], ORDER, (0, 4))


def replayed(change: Callable[[Rank], object]) -> Branch:
    """A replay in which something changes."""

    def replay(path: Path) -> None:
        rank = Rank(path)
        change(rank)
        try:
            rank.batch.replay()
        finally:
            assert not rank.batch.hooked, "the plain path is back"

    return replay


def drift_within(rank: Rank) -> None:
    plain = rank.batch.segments[5]

    def segment() -> object:
        rank.stream.stream = Stream("xpu", 2, 500)
        return plain()

    rank.profiler._subject.segments[5] = rank.batch.segments[5] = segment


def drift_between(rank: Rank) -> None:
    looks = itertools.chain([rank.stream.stream] * (1 + 2 * 5), itertools.repeat(Stream("xpu", 2, 500)))
    rank.stream.current = lambda: next(looks)  # type: ignore[method-assign]


def no_stream(rank: Rank) -> None:
    def current() -> Stream:
        raise RuntimeError("no accelerator is initialised")

    rank.stream.current = current  # type: ignore[method-assign]


def exchanged(rank: Rank) -> None:
    rank.root.rename(rank.root.with_name("moved"))
    rank.root.mkdir(mode=0o700)


def second_attempt(path: Path) -> None:
    rank = Rank(path)
    rank.batch.replay()
    EventProfiler(rank.profiler._subject, rank.stream, rank.directory)


def second_replay(path: Path) -> None:
    rank = Rank(path)
    rank.batch.replay()
    rank.profiler.replay(lambda: None)


def never_started(path: Path) -> None:
    batch, stream = FakeBatch(FakeTimeline(), KINDS), FakeTimeline()
    unstarted = ProfileDirectory(directory(path), 0, 4, event_settings.ROOT)
    EventProfiler(Subject(batch, KINDS, ORDER, (0, 4)), stream, unstarted).replay(lambda: None)


MOVED = [KINDS[1], KINDS[0], *KINDS[2:]]
UNKNOWN: list[SegmentKind] = ["graph", "other", *KINDS[2:]]

BRANCHES: list[tuple[str, str, Branch]] = [
    (
        "graphs are off",
        "VLLM_USE_BREAKABLE_CUDAGRAPH: seen '0'; expected '1' with LAGUNA_EVENT_PROFILE_ROOT, since only graphs replay",
        settings(graphs="0"),
    ),
    ("a part is asked for", "expected both, or none", settings(order=None)),
    ("the host profile is on", "expected one instrument in a process", settings(samples="31")),
    ("raw evidence is on", "expected one instrument", settings(VLLM_XPU_LAGUNA_M8_EVIDENCE_ROOT="/x")),
    ("a trace is taken", "expected one instrument", settings(VLLM_XPU_LAGUNA_REPLAY_TRACE_SESSION="1")),
    ("unitrace is on", "expected one instrument", settings(VLLM_XPU_LAGUNA_REPLAY_TRACE_UNITRACE="1")),
    ("attention is captured", "expected one instrument", settings(VLLM_XPU_LAGUNA_M8_CAPTURE_ATTENTION_GRAPHS="1")),
    ("no directory", "seen No such file", place(lambda path: path / "profile")),
    ("no directory but a file", "seen Not a directory; expected a directory", place(a_file)),
    ("a relative path", "expected an absolute path without links", place(lambda path: Path(os.path.relpath(path)))),
    ("a link", "expected an absolute path without links", place(linked)),
    ("an open directory", "expected mode 0700", place(lambda path: directory(path, 0o755))),
    ("a stray file", "expected nothing but other ranks' files", place(holding("notes.txt"))),
    ("another spelling", "expected nothing but other ranks' files", place(holding("rank01.json"))),
    ("a sibling that others may read", "expected nothing but other ranks' files", place(holding("rank1.json", 0o644))),
    ("a file of this rank", "expected one attempt of each rank", place(holding("rank0.json"))),
    ("a rank out of range", "seen rank 4; expected a rank below 4", subject(KINDS, rank=4)),
    ("another payload", "seen 7; expected a batch of 8 tokens", subject(KINDS, tokens=7)),
    ("kinds and segments", "seen 290; expected 291 kinds, one a segment", miscounted),
    ("a missing callback", "seen 290 segments in order", subject(KINDS[:-1])),
    ("an extra callback", "seen 292 segments in order", subject([*KINDS, "graph"])),
    ("moved callbacks", "seen 291 segments in order", subject(MOVED)),
    ("an unknown callback", "seen 291 segments in order", subject(UNKNOWN)),
    ("a second attempt", "expected one attempt in a process", second_attempt),
    ("a second replay", "expected one measured replay", second_replay),
    ("never claimed", "expected a start before the replay", never_started),
    ("another segment", "seen another segment 7", replayed(lambda rank: rank.batch.segments.__setitem__(7, print))),
    ("a lost segment", "expected 291 segments, as captured", replayed(lambda rank: rank.batch.segments.pop())),
    ("nothing replayed", "0 of 292 events", replayed(lambda rank: setattr(rank.batch, "_replay", lambda: "output"))),
    ("no stream", "no stream to measure", replayed(no_stream)),
    ("drift before a callback", "before segment 5; expected", replayed(drift_between)),
    ("drift after a callback", "after segment 5; expected", replayed(drift_within)),
    ("an incomplete event", "seen event 17 incomplete", replayed(lambda rank: rank.spoil(complete=False))),
    (
        "not a number",
        "rank 0, event profile: interval 17: seen nan ms; expected a finite duration from 0",
        replayed(lambda rank: rank.spoil(milliseconds=math.nan)),
    ),
    (
        "infinite",
        "rank 0, event profile: interval 17: seen inf ms; expected a finite duration from 0",
        replayed(lambda rank: rank.spoil(milliseconds=math.inf)),
    ),
    (
        "negative",
        "rank 0, event profile: interval 17: seen -0.001 ms; expected a finite duration from 0",
        replayed(lambda rank: rank.spoil(milliseconds=-0.001)),
    ),
    ("an exchanged directory", "expected the directory as it was", replayed(exchanged)),
    (
        "a file that came meanwhile",
        "expected one attempt of each rank",
        replayed(lambda rank: (rank.root / "rank0.json").touch(0o600)),
    ),
]


@pytest.mark.parametrize(("reason", "branch"), [row[1:] for row in BRANCHES], ids=[row[0] for row in BRANCHES])
def test_a_branch_ends_the_arm_and_its_root_proves_nothing(reason: str, branch: Branch, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=reason) as raised:
        branch(tmp_path)
    assert_nothing_proven(f"{FAILED}ProfileError: {raised.value}", tmp_path / "root")


def assert_nothing_proven(line: str, directory: Path, profile: bytes | None = None) -> None:
    """Of a root whose profiled arm ended with a line on standard error, whatever file its ranks may have left."""
    tree = root.good()
    without(RECORD)(tree)
    without("arms/graph-event/profile/")(tree)
    if profile is not None:
        tree["arms/graph-event/profile/rank0.json"] = profile
    tree["arms/graph-event/process.json"]["wait_status"] = 256
    tree[FAILURE] = {"reason": f"arm graph-control: exited with 1: {line}"}
    analysis = root.judged(tree, directory)
    seen = root.findings(analysis)
    for rule in ("profile-complete/every-rank", "tokens-identical/equal-teacher", "decision/decided"):
        assert seen[rule][0] == "NOT_PROVEN", seen
        assert line in seen[rule][1]
    assert line in seen["arms-fresh/ended-clean"][1]
    assert (analysis.status, analysis.action, analysis.selected) == (None, None, None)


def test_a_short_write_is_carried_on_and_one_that_fails_ends_the_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: plain(descriptor, bytes(content)[:1000]))
    whole = Rank(tmp_path)
    whole.batch.replay()
    content = (whole.root / "rank0.json").read_bytes()
    assert len(content) > 1000
    assert whole.profiler.sha256 == files.sha256_bytes(content)
    (tmp_path / "other").mkdir()
    torn = Rank(tmp_path / "other")
    left = iter([1000])

    def full(descriptor: int, content: memoryview) -> int:
        size = next(left, None)
        if size is None:
            raise OSError(28, "No space left on device")
        return plain(descriptor, bytes(content)[:size])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        torn.batch.replay()
    monkeypatch.undo()
    assert (torn.profiler.sha256, torn.batch.hooked) == (None, False)
    half = (torn.root / "rank0.json").read_bytes()
    assert half == content[:1000]
    assert_nothing_proven(f"{FAILED}OSError: {raised.value}", tmp_path / "root", half)
