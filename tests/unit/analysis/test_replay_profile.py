# SPDX-License-Identifier: Apache-2.0
"""The one pass over an arm's profiles: maxima over ranks, the first complaint of each check, one file at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pytest_laguna.analysis.diagnostic.replay_checks import CONTAINMENT, preparation_checks
from pytest_laguna.analysis.diagnostic.replay_profile import QUANTITIES, Check, reduce_profiles
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.arms.profile_file import Profiles
from pytest_laguna.evidence.arms.replay_profile import ProfileHeader, RankProfile, ReplaySample, ViewPreparation
from pytest_laguna.verdict import UnusableEvidenceError

KINDS = ["graph", "collective", "graph", "other", "graph", "attention", "graph"]


def sample(**changes: Any) -> ReplaySample:
    values = {
        "segment_ns": [1, 20, 2, 0, 3, 40, 4],
        "loop_ns": 100,
        "debug_guard_ns": None,
        "offloader_sync_ns": 7,
        "signature_collect_ns": None,
        "signature_compare_ns": None,
        "host_ns": 110,
        "synchronize_ns": 5,
        "whole_ns": 120,
        "views": None,
    }
    return ReplaySample.model_validate(values | changes)


def rank(number: int, samples: list[ReplaySample]) -> RankProfile:
    header = ProfileHeader.model_validate({"rank": number, "world_size": 16, "descriptor": "8 tokens", "kinds": KINDS})
    return RankProfile("0" * 64, header, iter(samples))


def profiles(*ranks: list[ReplaySample]) -> Profiles:
    def reader(number: int, samples: list[ReplaySample]) -> Any:
        return lambda: rank(number, samples)

    return {f"rank{number}.json": reader(number, samples) for number, samples in enumerate(ranks)}


def test_segments_are_summed_by_kind() -> None:
    maxima = reduce_profiles(profiles([sample()]), {}).maxima
    sums = {name: list(maxima[name]) for name in ("graph_host", "attention_host", "collective_host", "other_host")}
    assert sums == {"graph_host": [10], "attention_host": [40], "collective_host": [20], "other_host": [0]}


def test_each_sample_is_the_maximum_over_ranks_whatever_their_order() -> None:
    rng = random.Random(7)  # noqa: S311 - a test
    wholes = [[rng.randrange(1000) for _ in range(9)] for _ in range(12)]
    reduced = reduce_profiles(profiles(*[[sample(whole_ns=whole) for whole in each] for each in wholes]), {})
    assert list(reduced.maxima["whole_replay"]) == [max(column) for column in zip(*wholes, strict=True)]
    assert [facts.name for facts in reduced.ranks] == [f"rank{number}.json" for number in range(12)]
    assert {facts.samples for facts in reduced.ranks} == {9}


@pytest.mark.parametrize("without", [0, 1, 2])
def test_a_step_that_one_rank_has_not_is_nobodys(without: int) -> None:
    ranks = [[sample(debug_guard_ns=3), sample(debug_guard_ns=3)] for _ in range(3)]
    assert list(reduce_profiles(profiles(*ranks), {}).maxima["debug_guard"]) == [3, 3]
    ranks[without][1] = sample()
    assert "debug_guard" not in reduce_profiles(profiles(*ranks), {}).maxima


def test_every_quantity_is_reduced_where_every_rank_has_it() -> None:
    views = dict.fromkeys(("forward_calls", "update_calls", "incumbent_calls", "persistent_calls"), 0)
    views |= {"persistent_hits": 0, "persistent_builds": 0, "forward_ns": 30, "update_ns": 4}
    whole = sample(debug_guard_ns=0, signature_collect_ns=1, signature_compare_ns=2, views=views)
    maxima = reduce_profiles(profiles([whole], [whole]), {}).maxima
    assert list(maxima) == list(QUANTITIES)
    assert list(maxima["view_preparation"]) == [34]


def test_a_check_tells_the_first_replay_that_it_refuses() -> None:
    ranks = [[sample(), sample()], [sample(), sample(loop_ns=1)], [sample(loop_ns=2), sample()]]
    checks = {"loop": lambda replay: f"loop {replay.sample.loop_ns}" if replay.sample.loop_ns < 9 else None}
    assert reduce_profiles(profiles(*ranks), checks).complaints == {"loop": "rank 1 sample 1: loop 1"}


def torn() -> Iterator[ReplaySample]:
    yield sample()
    raise UnusableEvidenceError("rank1.json: sample 1: torn")


def test_an_unusable_file_is_told_and_the_others_are_read_all_the_same() -> None:
    good = profiles([sample()], [sample()], [sample()])
    broken = dict(good) | {"rank1.json": lambda: RankProfile("0" * 64, rank(1, []).header, torn())}
    reduced = reduce_profiles(broken, {})
    assert reduced.unusable == "rank1.json: sample 1: torn"
    assert [facts.name for facts in reduced.ranks] == ["rank0.json", "rank2.json"]


def test_one_file_at_a_time_is_open() -> None:
    opened: list[str] = []

    def reader(name: str) -> Any:
        def read() -> RankProfile:
            assert opened in ([], [f"end of {opened[-1].removeprefix('end of ')}"] if opened else [])
            opened[:] = [name]
            return RankProfile("0" * 64, rank(0, []).header, samples(name))

        return read

    def samples(name: str) -> Iterator[ReplaySample]:
        yield sample()
        opened[:] = [f"end of {name}"]

    reduced = reduce_profiles({f"rank{number}.json": reader(f"rank{number}.json") for number in range(4)}, {})
    assert len(reduced.ranks) == 4


def test_what_is_kept_of_a_rank() -> None:
    reduced = reduce_profiles(profiles([sample(whole_ns=120), sample(whole_ns=130)], []), {})
    assert reduced.unusable is None
    assert [(facts.sha256, facts.header, facts.samples, facts.whole_ns) for facts in reduced.ranks] == [
        ("0" * 64, rank(0, []).header, 2, 250),
        ("0" * 64, rank(1, []).header, 0, 0),
    ]


@pytest.mark.parametrize(("kinds", "shortest"), [(KINDS, 1), (["other"] * 7, 0), (["other"] * 5 + ["graph"] * 2, 4)])
def test_the_shortest_segment_is_none_of_the_others(kinds: list[str], shortest: int) -> None:
    header = rank(0, []).header.model_copy(update={"kinds": kinds})
    seen: list[int] = []
    checks = {"seen": lambda replay: seen.append(replay.shortest)}
    reduce_profiles({"rank0.json": lambda: RankProfile("0" * 64, header, iter([sample()]))}, checks)
    assert seen == [shortest]


VIEWS = ViewPreparation(
    forward_calls=48,
    update_calls=0,
    incumbent_calls=48,
    persistent_calls=0,
    persistent_hits=0,
    persistent_builds=0,
    forward_ns=40,
    update_ns=0,
)
CONTROL, CANDIDATE = (preparation_checks(arm, 48) for arm in (Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE))
SERVED = {"incumbent_calls": 0, "persistent_calls": 48, "persistent_hits": 48}


@pytest.mark.parametrize(
    ("checks", "changes", "views", "told"),
    [
        (CONTAINMENT, {}, None, {}),
        (CONTAINMENT, {"synchronize_ns": 1}, None, {}),
        (CONTAINMENT, {"loop_ns": 70, "host_ns": 70, "whole_ns": 75}, {}, {}),
        (
            CONTAINMENT,
            {"segment_ns": [1, 20, 0, 0, 3, 40, 4]},
            None,
            {"segments-timed": "seen a segment of 0 ns; expected every segment but other to take time"},
        ),
        (
            CONTAINMENT,
            {"loop_ns": 69, "host_ns": 68, "whole_ns": 72},
            {"forward_ns": 41},
            {
                "loop-contains-segments": "seen loop of 69 ns; expected at least the 70 ns of its segments",
                "host-contains-loop": "seen host of 68 ns; expected at least the 69 ns of its loop",
                "whole-contains-host": "seen whole of 72 ns; expected at least the 73 ns of host and synchronise",
                "views-within-attention": "seen attention of 40 ns; expected at least the 41 ns of its views",
            },
        ),
        (
            CONTAINMENT,
            {"synchronize_ns": 0},
            None,
            {"synchronise-timed": "seen a synchronise of 0 ns; expected it to take time"},
        ),
        (CONTROL, {}, {}, {}),
        (
            CONTROL,
            {},
            None,
            {"preparations-counted": "seen no view preparations; expected their counts"},
        ),
        (
            CONTROL,
            {},
            SERVED | {"update_ns": 3},
            {
                "preparations-counted": "seen forward, update and ns of update (48, 0, 3); expected (48, 0, 0)",
                "control-incumbent": (
                    "seen incumbent, persistent, hits and builds (0, 48, 48, 0); expected (48, 0, 0, 0)"
                ),
            },
        ),
        (CANDIDATE, {}, SERVED, {}),
        (
            CANDIDATE,
            {},
            {},
            {
                "candidate-persistent": (
                    "seen incumbent, persistent, hits and builds (48, 0, 0, 0); expected (0, 48, 48, 0)"
                ),
            },
        ),
    ],
)
def test_what_is_wrong_with_a_replay(
    checks: Mapping[str, Check],
    changes: dict[str, Any],
    views: dict[str, int] | None,
    told: dict[str, str],
) -> None:
    seen = None if views is None else VIEWS.model_copy(update=views)
    reduced = reduce_profiles(profiles([sample(**changes, views=seen)]), checks)
    assert reduced.complaints == {name: f"rank 0 sample 0: {complaint}" for name, complaint in told.items()}
