# SPDX-License-Identifier: Apache-2.0
"""The event profile's arithmetic: the published numbers again, the slowest rank before any category, all branches."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest

from gates.event_fakes import FakeBatch, FakeTimeline, published_kinds
from pytest_laguna.analysis.events.diagnosis import select
from pytest_laguna.analysis.events.profile import category_sums, decide_action, largest, shares, slowest
from pytest_laguna.analysis.events.ranges import fold, form_of, places
from pytest_laguna.analysis.events.rules import possible_sums
from pytest_laguna.analysis.events.work import Waiting, waiting
from pytest_laguna.campaign import read_campaign
from pytest_laguna.engine import event_loop
from pytest_laguna.engine.event_loop import EventLoop
from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.evidence.events.profile import EventProfile, HostLead
from pytest_laguna.verdict import UnusableEvidenceError
from tests import event_root
from tests.lab_event_profile import parse_lab_event_profile, read_lab_event_profile

LAB = json.loads((Path(__file__).parents[2] / "data" / "event-diagnostic-20260725.json").read_bytes())
KINDS = published_kinds()
CAMPAIGN = Path(__file__).parents[3] / "campaigns" / "laguna-current-stream-events.toml"


def ours(rank: int) -> EventProfile:
    return parse_lab_event_profile(event_root.lab_profile(LAB, rank), f"rank{rank}.json")


@pytest.fixture(scope="module")
def published() -> list[EventProfile]:
    """Four rank files in the published form, with the published totals, sums and class sums."""
    return [ours(rank) for rank in range(4)]


def test_the_published_numbers(published: list[EventProfile]) -> None:
    selected = select(published, withheld=False)
    expected = LAB["selected_rank"]
    assert {str(profile.rank): profile.total_ns for profile in published} == LAB["rank_total_duration_ns"]
    assert (selected.rank, selected.total_ns) == (2, expected["total_duration_ns"])
    assert selected.category_ns == expected["category_duration_ns"]
    assert selected.category_percent == expected["category_share_percent"]
    assert selected.stream.canonical() == expected["stream_identity"]
    assert selected.host is None
    sums = category_sums(published[2].kinds, published[2].interval_ns)
    assert largest(sums) == LAB["decision"]["largest_kind_on_selected_rank"] == "graph"
    frozen = read_campaign(CAMPAIGN).event_profile
    assert frozen is not None
    assert decide_action(sums, frozen.material_percent) == LAB["decision"]["frozen_analyzer_next_action"]


def test_the_published_source_ranges(published: list[EventProfile]) -> None:
    ranges = fold(published[2])
    assert ranges is not None
    audit = LAB["post_run_source_audit"]
    topology = audit["source_verified_topology"]
    assert (len(ranges.prefix_ns), len(ranges.layers), len(ranges.tail_ns)) == (2, topology["decoder_layers"], 1)
    assert {len(layer) for layer in ranges.layers} == {topology["intervals_per_decoder_layer"]}
    told = {
        name: {"count": found.count, "total_ns": found.total_ns, "mean_ns": round(found.mean_ns)}
        for name, found in ranges.classes.items()
    }
    assert told == {
        name.replace("post_attention_local_mlp", "local_mlp"): found
        for name, found in topology["selected_rank_repeated_graph_classes"].items()
    }
    by_index = audit["selected_rank_graph_interval_classes"]
    assert by_index["index_mod_6_0"]["total_ns"] == ranges.prefix_ns[0] + told["local_mlp"]["total_ns"]
    assert by_index["index_mod_6_2"]["total_ns"] == ranges.tail_ns[0] + told["pre_attention"]["total_ns"]
    assert ranges.outliers == []


# The slowest rank, and no other


def test_sums_come_from_the_slowest_rank_alone() -> None:
    """The largest total, attention sum and collective sum lie on three ranks."""
    ranks = [
        event_root.event_profile(0, graph=10, attention=900, collective=10),
        event_root.event_profile(1, graph=10, attention=10, collective=800),
        event_root.event_profile(2, graph=800, attention=10, collective=10),
    ]
    selected = select(ranks, withheld=False)
    assert selected.rank == 2
    assert selected.category_ns == {"graph": 146 * 800, "collective": 97 * 10, "attention": 48 * 10}
    assert sum(selected.category_ns.values()) == selected.total_ns


def test_of_equal_totals_the_lowest_rank() -> None:
    ranks = [event_root.event_profile(rank, graph=5, attention=5, collective=5) for rank in (3, 1, 2)]
    assert slowest(ranks).rank == 1


# The decision


@pytest.mark.parametrize(
    ("sums", "action"),
    [
        ({"graph": 60, "collective": 20, "attention": 20}, "replay_plan_submission_research_only"),
        ({"graph": 20, "collective": 20, "attention": 60}, "eager_fa2_submission_candidate_design_only"),
        ({"graph": 20, "collective": 60, "attention": 20}, "collective_completion_join_proof_only"),
        ({"graph": 49, "collective": 26, "attention": 25}, "stop_host_side_micro_optimisation"),
        ({"graph": 10, "attention": 10, "other": 80}, "stop_host_side_micro_optimisation"),
        ({"graph": 50, "collective": 25, "attention": 25}, "replay_plan_submission_research_only"),
        ({"graph": 0, "attention": 0}, "stop_host_side_micro_optimisation"),
    ],
    ids=["graph", "attention", "collective", "nothing-material", "other", "exactly-material", "nothing"],
)
def test_every_branch(sums: dict[SegmentKind, float], action: str) -> None:
    assert decide_action(sums, 50.0) == action


def test_shares_have_six_places_and_nothing_has_none() -> None:
    assert shares({"graph": 1, "attention": 2}) == {"graph": 33.333333, "attention": 66.666667}
    assert shares({"graph": 0}) == {"graph": 0.0}


def test_of_equal_sums_the_largest_is_the_first_of_the_kinds_wherever_it_stands() -> None:
    assert largest({"other": 5, "attention": 5, "collective": 5, "graph": 4}) == "collective"
    assert largest({"collective": 5, "graph": 5}) == "graph"


# The source


def test_one_rank_has_layers_of_two_intervals_and_an_outlier_is_named() -> None:
    kinds: list[SegmentKind] = [*("graph", "attention") * 4, "graph"]
    profile = event_root.event_profile(0, kinds=kinds, graph=10, attention=20, collective=0)
    slow = profile.model_copy(update={"interval_ns": [10, 20, 10, 20, 31, 20, 10, 20, 5]})
    ranges = fold(slow)
    assert ranges is not None
    assert (ranges.prefix_ns, ranges.tail_ns) == ([], [5])
    assert ranges.layers == [[10, 20], [10, 20], [31, 20], [10, 20]]
    (outlier,) = ranges.outliers
    assert (outlier.layer, outlier.range_class, outlier.duration_ns, outlier.median_ns) == (
        2,
        "between_attentions",
        31,
        10,
    )
    assert [place.layer for place in places(kinds)] == [0, 0, 1, 1, 2, 2, 3, 3, None]


@pytest.mark.parametrize("kinds", [["graph"], ["graph", "attention"], ["attention", "graph"], [*KINDS, "graph"]])
def test_another_form_is_not_folded(kinds: list[SegmentKind]) -> None:
    assert form_of(kinds) is None
    assert fold(event_root.event_profile(0, kinds=kinds, graph=1, attention=1, collective=1)) is None
    assert places(kinds) == [(None, kind) for kind in kinds]


def test_every_interval_has_its_layer_and_its_part() -> None:
    graphs = ["pre_attention", "attention", "post_attention_local_o", "collective", "local_mlp", "collective"]
    body = [(layer, part) for layer in range(48) for part in graphs]
    assert places(KINDS) == [(None, "prefix"), (None, "prefix"), *body, (None, "tail")]


def test_one_layer_is_enough_for_a_form() -> None:
    assert places(["graph", "attention", "graph"]) == [(0, "between_attentions"), (0, "attention"), (None, "tail")]


def test_an_interval_twice_as_long_as_the_median_is_no_outlier_yet() -> None:
    kinds: list[SegmentKind] = [*("graph", "attention") * 3, "graph"]
    profile = event_root.event_profile(0, kinds=kinds, graph=10, attention=20, collective=0)
    for longest, named in ((20, []), (21, [1])):
        ranges = fold(profile.model_copy(update={"interval_ns": [10, 20, longest, 20, 10, 20, 10]}))
        assert ranges is not None
        assert [outlier.layer for outlier in ranges.outliers] == named


# Work, and waiting for the host


def simulate(monkeypatch: pytest.MonkeyPatch, host: dict[str, int], work: dict[str, int], queued: int = 0) -> Any:
    """A profile of the simulated stream: nanoseconds of the host and of the stream by kind of segment."""
    stream = FakeTimeline()
    stream.free += queued  # work from before the replay
    monkeypatch.setattr(event_loop, "time", types.SimpleNamespace(perf_counter_ns=stream.perf_counter_ns))
    batch = FakeBatch(stream, KINDS, host_ns=host.__getitem__, work_ns=work.__getitem__)
    loop = EventLoop(batch.segments, stream, "simulation")
    loop.run()
    measured = loop.read()
    profile = event_root.event_profile(0, graph=1, attention=1, collective=1)
    lead = HostLead(boundary_ns=measured.boundary_ns, synchronised_ns=measured.synchronised_ns)
    values = {"interval_ns": measured.interval_ns, "span_ns": measured.span_ns, "lead": lead.model_dump()}
    return EventProfile.model_validate({**dict(profile.model_dump(by_alias=True)), **values})


FAST = {"graph": 10, "attention": 10, "collective": 10}
WORK = {"graph": 100, "attention": 100, "collective": 100}


@pytest.mark.parametrize("kind", ["graph", "attention", "collective"])
def test_a_delay_of_the_stream_is_work(kind: SegmentKind, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = simulate(monkeypatch, FAST, WORK)
    delayed = simulate(monkeypatch, FAST, WORK | {kind: 5_000})
    waited = waiting(delayed)
    assert waited is not None
    # Nothing but the first segment's own submission may have been waited for.
    assert category_sums(KINDS, waited.most) == {"graph": 10, "collective": 0, "attention": 0}
    work = [interval - idle for interval, idle in zip(delayed.interval_ns, waited.most, strict=True)]
    extra = category_sums(KINDS, work)[kind] - category_sums(KINDS, plain.interval_ns)[kind]
    assert extra == pytest.approx(4_900 * KINDS.count(kind), abs=10)


@pytest.mark.parametrize("kind", ["graph", "attention", "collective"])
def test_a_delay_of_the_host_is_waiting(kind: SegmentKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host takes 5 us for each segment of one kind, in which the stream has nothing to do."""
    delayed = simulate(monkeypatch, FAST | {kind: 5_000}, WORK)
    sums, waited = category_sums(KINDS, delayed.interval_ns), waiting(delayed)
    assert waited is not None
    assert sums[kind] > 0.85 * delayed.total_ns, "the intervals alone would blame the kind"
    most = category_sums(KINDS, waited.most)
    work = {name: sums[name] - most[name] for name in sums}
    for name, value in work.items():
        # A segment that the host submits quickly may be waited for too, by its own 10 ns.
        assert value == pytest.approx(100 * KINDS.count(name), abs=10 * KINDS.count(name)), name
    least = category_sums(KINDS, waited.least)
    assert most[kind] - least[kind] <= 100 * KINDS.count(kind), "the clocks are tied to within one segment's work"


def test_a_decision_that_turns_on_the_hosts_lead_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    starved = simulate(monkeypatch, FAST | {"attention": 5_000}, WORK)
    assert {decide_action(sums, 50.0) for sums in possible_sums(starved)} == {
        "eager_fa2_submission_candidate_design_only",
        "replay_plan_submission_research_only",
    }
    busy = simulate(monkeypatch, FAST, WORK)
    assert {decide_action(sums, 50.0) for sums in possible_sums(busy)} == {"replay_plan_submission_research_only"}


def test_the_smallest_lead_is_that_of_any_boundary_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = simulate(monkeypatch, FAST, WORK)
    waited, host = waiting(plain), select([plain], withheld=False).host
    assert waited is not None
    assert host is not None
    assert waited.lead[0] < waited.lead[1] < min(waited.lead[2:])
    assert host.smallest_lead_ns == waited.lead[1]


def test_a_queue_from_before_the_replay_is_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first event is recorded long before the stream comes to it; the host's lead shows it."""
    behind = simulate(monkeypatch, FAST, WORK, queued=1_000_000)
    waited = waiting(behind)
    assert waited is not None
    assert set(waited.least) == {0}
    assert behind.interval_ns == [100] * 291


def test_clocks_that_cannot_both_be_true_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = simulate(monkeypatch, FAST, WORK)
    lead = HostLead(boundary_ns=profile.lead.boundary_ns, synchronised_ns=profile.total_ns // 2)
    with pytest.raises(
        UnusableEvidenceError,
        match=r"rank 0: seen the stream's end 14555 ns after the synchronise returned; expected clocks that agree",
    ):
        waiting(profile.model_copy(update={"lead": lead}))


def with_lead(intervals: list[int], boundary: list[int], synchronised: int) -> EventProfile:
    kinds: list[SegmentKind] = ["graph", "attention", "graph"]
    profile = event_root.event_profile(2, kinds=kinds, graph=1, attention=1)
    lead = HostLead(boundary_ns=boundary, synchronised_ns=synchronised)
    return profile.model_copy(update={"interval_ns": intervals, "span_ns": sum(intervals), "lead": lead})


def test_waiting_and_lead_are_the_differences_done_by_hand() -> None:
    """The second boundary ties the clocks at 15 ns at least, and the synchronise at 20 ns at most."""
    waited = waiting(with_lead([10, 20, 30], [0, 25, 35, 50], 80))
    assert waited == Waiting(least=(5, 5, 0), most=(10, 10, 5), lead=(15, 0, 10, 25))


@pytest.mark.parametrize(
    ("intervals", "boundary"), [([10, 20, 30], [0, 30, 31, 32]), ([5, 5, 5], [0, 100, 200, 300]), ([0, 9, 0], [0] * 4)]
)
def test_no_interval_is_waited_in_beyond_its_end(intervals: list[int], boundary: list[int]) -> None:
    waited = waiting(with_lead(intervals, boundary, 1_000))
    assert waited is not None
    for least, most, interval in zip(waited.least, waited.most, intervals, strict=True):
        assert 0 <= least <= most <= interval


def test_clocks_may_run_apart_by_a_thousandth_of_the_replay_and_no_more() -> None:
    """Of 10 us: the stream began 0 ns after the host did at least, and 10 or 11 ns before it at most."""
    intervals, boundary = [5_000, 4_000, 1_000], [0, 1, 2, 3]
    waited = waiting(with_lead(intervals, boundary, 9_990))
    assert waited == Waiting(least=(1, 0, 0), most=(1, 0, 0), lead=(0, 4_999, 8_998, 9_997))
    with pytest.raises(UnusableEvidenceError) as raised:
        waiting(with_lead(intervals, boundary, 9_989))
    told = "rank 2: seen the stream's end 11 ns after the synchronise returned"
    assert str(raised.value) == f"{told}; expected clocks that agree to a thousandth of the replay"


# The published form


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lab: lab.update(status="partial"), "status"),
        (lambda lab: lab.update(world_size=2), "world_size"),
        (lambda lab: lab.update(rank=4), "profile: Value error, rank 4 of 4"),
        (lambda lab: lab.update(rank="1"), "rank: Input should be a valid integer"),
        (lambda lab: lab.update(event_count=291), "event_count 291; expected 292"),
        (lambda lab: lab.update(interval_count=290), "interval_count 290; expected 291"),
        (lambda lab: lab.update(graphs=145), "graphs 145; expected 146"),
        (lambda lab: lab.update(eager_breaks=144), "eager_breaks 144; expected 145"),
        (lambda lab: lab["boundary_categories"].update(attention=47), "boundary_categories"),
        (lambda lab: lab.update(total_duration_ns=1), "total_duration_ns 1; expected"),
        (lambda lab: lab.update(segment_kind_order_sha256="0" * 64), "segment_kind_order_sha256"),
        (lambda lab: lab.update(global_critical_path_validated=True), "global_critical_path_validated"),
        (lambda lab: lab.update(collective_cross_stream_completion_validated=True), "collective_cross_stream"),
        (lambda lab: lab.update(diagnostic_only=False), "diagnostic_only"),
        (
            lambda lab: lab.update(not_benchmark_or_submission_evidence=1),
            "not_benchmark_.*: .* 1; expected true or false",
        ),
        (lambda lab: lab["stream_identity"].update(device_type="cuda"), "stream_identity.device_type"),
        (lambda lab: lab["intervals"][3].update(index=4), "intervals out of order"),
        (lambda lab: lab["intervals"][3].update(kind="other"), "intervals.3.kind"),
        (lambda lab: lab["intervals"][3].update(duration_ns=-1), "intervals.3.duration_ns"),
        (lambda lab: lab["intervals"][4].update(duration_ns=1.5), "intervals.4.duration_ns"),
        (lambda lab: lab.pop("rank_local_only"), "rank_local_only"),
        (lambda lab: lab.update(extra=1), "extra"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_form_is_refused(change: Any, message: str) -> None:
    lab = event_root.lab_profile(LAB, 1)
    change(lab)
    with pytest.raises(
        UnusableEvidenceError, match=rf"^rank1\.json: (.*[ .])?{message}.*; expected the published form"
    ):
        parse_lab_event_profile(lab, "rank1.json")


def test_a_published_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank1.json"
    path.write_text(json.dumps(event_root.lab_profile(LAB, 1)))
    assert read_lab_event_profile(path) == ours(1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", r"not text \(invalid start byte\); expected an event profile"),
        (b"{", "not strict JSON"),
        (b"{}", "schema: Field required; expected the published form"),
        ((2**20 + 1) * b" ", "larger than 1048576 bytes"),
    ],
    ids=["text", "JSON", "form", "size"],
)
def test_another_file_is_refused_by_its_name(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rank1.json"
    path.write_bytes(content)
    with pytest.raises(UnusableEvidenceError, match=rf"^rank1\.json: {message}"):
        read_lab_event_profile(path)
