# SPDX-License-Identifier: Apache-2.0
"""What a whole event campaign's analysis says of its closure, of what holds, and of its instrument."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.evidence.arms.replay_profile import order_sha256
from pytest_laguna.evidence.files import sha256_file
from pytest_laguna.verdict import Verdict
from tests import event_root as root
from tests.diagnostic_root import DESCRIPTOR, LAYERS, Change, at, both, put, without
from tests.mutants.test_engine_identity_rules import COMPILED
from tests.mutants.test_event_rules import device

OTHER = "1" * 64
EVENTS, FITNESS, SPARSE = (f"arms/{arm}/record.json" for arm in ("graph-event", "graph-fitness", "graph-sparse"))
SECOND = "arms/graph-event/profile/rank1.json"


@pytest.mark.parametrize("path", ["arms/graph-event/profile/rank1.json", "arms/q1/record.json"])
def test_a_closure_without_a_file_that_every_check_needs_binds_nothing(path: str, tmp_path: Path) -> None:
    tree = root.good()
    del tree[path]
    seen = root.findings(root.judged(tree, tmp_path))["closure-bound/closure-bound"]
    assert seen == ("NOT_PROVEN", f"closure.json: seen no {path}; expected every check's file")


def test_a_file_that_is_bound_and_gone_is_told_so(tmp_path: Path) -> None:
    tree = root.good()
    put(root.CLOSURE_EDIT, lambda bound: bound["files"].update({"arms/more.json": OTHER}))(tree)
    assert root.findings(root.judged(tree, tmp_path)) == {
        "closure-bound/closure-bound": (
            "VOID",
            f"closure.json: arms/more.json: seen nothing; expected {OTHER}, as bound",
        )
    }


def test_what_holds_has_nothing_to_say(tmp_path: Path) -> None:
    analysis = root.judged(root.good(), tmp_path)
    assert [*analysis.rank_total_ns] == ["0", "1"]
    results = [result for rules in analysis.clauses.values() for result in rules.values()]
    assert {result.reason for result in results if result.verdict == "PASS"} == {""}


IDENTITY = {
    "binaries-equal-arms": "one graph arm runs",
    "native-mapped": "no arm runs the candidate",
    "stack-fits": "no XPU engine is recorded",
    "closure-whole": "no XPU engine is recorded",
    "closure-mapped": "no XPU engine is recorded",
}
ANYWHERE = {f"identity-exact/{rule}": f"not applicable: {reason}" for rule, reason in IDENTITY.items()} | {
    "profile-complete/clocks-agree": "not applicable: the host is the device",
    "decision/decision-listed": (
        "reported: replay_plan_submission_research_only; neither an endpoint nor a submission is authorised"
    ),
    "decision/network-isolated": "reported: every arm ran in a network namespace with loopback alone",
}
UNTRIED = {
    "profile-complete/sparse-whole": "not applicable: the campaign plans no sparse profile",
    "instrument-fit/trial-whole": (
        "not applicable: the campaign does not try its instrument: its fitness is unmeasured"
    ),
    "instrument-fit/slowdown-bounded": (
        "not applicable: fitness is unmeasured; the shares are those of a replay that the instrument slowed"
    ),
    "instrument-fit/slowdown-by-kind": "not applicable: fitness is unmeasured",
}
TRIED = {
    "instrument-fit/slowdown-by-kind": (
        "reported: graph 1.040, collective 1.050, attention 1.075; the largest is 1.034 times the smallest"
    ),
}


@pytest.mark.parametrize(("fitness", "expected"), [(False, UNTRIED), (True, TRIED)], ids=["untried", "tried"])
def test_what_decides_nothing_says_why(fitness: bool, expected: dict[str, str], tmp_path: Path) -> None:
    analysis = root.judged(root.good(fitness=fitness), tmp_path)
    listed = {
        f"{clause}/{rule}": result.reason
        for clause, rules in analysis.clauses.items()
        for rule, result in rules.items()
        if result.verdict is None
    }
    assert listed == ANYWHERE | expected
    figures = analysis.fitness_figures
    assert (figures.stamped_slowdown if figures else None) == (pytest.approx(1.005) if fitness else None)


def test_figures_of_a_trial_that_proves_nothing_make_no_instrument_fit(tmp_path: Path) -> None:
    tree = root.good(fitness=True)
    record = "arms/graph-fitness/record.json"
    tree[record]["ranks"][1]["event_profile"]["sha256"] = OTHER
    analysis = root.judged(tree, tmp_path)
    assert [*root.findings(analysis)] == ["instrument-fit/trial-whole"]
    assert analysis.action is None
    assert analysis.selected is not None
    assert analysis.selected.category_percent is None
    assert analysis.fitness_figures is not None
    assert (analysis.fitness, analysis.status) == ("not_proven", None)


def swapped(tree: root.Tree) -> None:
    """Two kinds of the first rank's profile in another order."""
    kinds = tree["arms/graph-event/profile/rank0.json"]["kinds"]
    kinds[0], kinds[1] = kinds[1], kinds[0]


def slow_trial(tree: root.Tree, events_ns: int = 1_180_000) -> None:
    for each in tree["arms/graph-fitness/profile/rank1.json"]["rounds"]:
        each["events_ns"] = events_ns


MOVED = [root.KINDS[1], root.KINDS[0], *root.KINDS[2:]]
PLANNED = order_sha256(root.KINDS)
IN_FULL: list[tuple[str, str, str, Change]] = [
    (
        "profile-complete/every-rank",
        "NOT_PROVEN",
        "graph-event: rank1.json: seen none; expected a profile of each rank",
        without(SECOND),
    ),
    (
        "profile-complete/as-recorded",
        "VOID",
        f"{SECOND}: seen nothing; expected {root.WRITTEN}, as its rank wrote it",
        without(SECOND),
    ),
    (
        "profile-complete/as-recorded",
        "VOID",
        f"{SECOND}: seen {{digest}}; expected {OTHER}, as its rank wrote it",
        at(EVENTS, "ranks|1|event_profile|sha256", OTHER),
    ),
    (
        "profile-complete/as-recorded",
        "NOT_PROVEN",
        "graph-event rank 1: seen no profile; expected one replay at least",
        at(EVENTS, "ranks|1|event_profile|sha256", None),
    ),
    (
        "profile-complete/one-batch",
        "VOID",
        f"graph-event rank 1: seen captures of ['another']; expected {DESCRIPTOR}",
        at(EVENTS, "ranks|1|graphs|0|descriptor", "another"),
    ),
    (
        "profile-complete/topology-exact",
        "FAIL",
        f"rank0.json: seen 291 intervals in order {order_sha256(MOVED)}; expected 291 in {PLANNED}",
        swapped,
    ),
    (
        "profile-complete/sparse-whole",
        "NOT_PROVEN",
        "arms/graph-sparse/profile/rank1.json: seen none; expected 20 replays at least",
        at(SPARSE, "ranks|1|event_profile|sha256", None),
    ),
    (
        "instrument-fit/trial-whole",
        "VOID",
        (
            "arms/graph-fitness/profile/rank1.json: seen "
            "9314100afeea29bdee9d38ff8c811371849f724322b46d030b21feecc8541c3c;"
            " expected None, as its rank wrote it"
        ),
        at(FITNESS, "ranks|1|event_profile|sha256", None),
    ),
    (
        "instrument-fit/slowdown-bounded",
        "STOP",
        (
            "replay with events: seen 5.900 times as long (graph 1.040, collective 1.050, attention 1.075);"
            " expected at most 1.1; shares are withheld"
        ),
        slow_trial,
    ),
    (
        "instrument-fit/slowdown-bounded",
        "STOP",
        (
            "replay with events: seen 1.100005 times as long (graph 1.040, collective 1.050, attention 1.075);"
            " expected at most 1.1; shares are withheld"
        ),
        functools.partial(slow_trial, events_ns=220_001),
    ),
]


@pytest.mark.parametrize(("rule", "verdict", "reason", "change"), IN_FULL)
def test_what_is_told_in_full(rule: str, verdict: str, reason: str, change: Change, tmp_path: Path) -> None:
    tree = root.good(fitness=True)
    change(tree)
    seen = root.findings(root.judged(tree, tmp_path))
    digest = sha256_file(tmp_path / SECOND) if "{digest}" in reason else ""
    assert seen[rule] == (verdict, reason.format(digest=digest))


@pytest.mark.parametrize(("missed", "verdict"), [(100_000, None), (100_001, "VOID")])
def test_a_thousandth_of_the_span_may_be_missing_and_no_more(missed: int, verdict: str | None, tmp_path: Path) -> None:
    intervals = [1_000] * 290 + [100_000_000 - missed - 290_000]
    tree = root.good()
    both(at(SECOND, "interval_ns", intervals), at(SECOND, "span_ns", 100_000_000))(tree)
    seen = root.findings(root.judged(tree, tmp_path)).get("profile-complete/intervals-add-up", (None, ""))
    assert seen[0] == verdict


@pytest.mark.parametrize(
    ("attention", "ratio", "spread"),
    [((1, 3), 3.0, 3.0 / 1.04), ((0, 3), 3.0, 3.0 / 1.04), ((100, 50), 0.5, 1.05 / 0.5), ((100, 0), 0.0, 1.05 / 1e-9)],
    ids=["of 1 ns", "of nothing", "quicker", "without any"],
)
def test_how_unevenly_kinds_are_slowed(attention: tuple[int, int], ratio: float, spread: float, tmp_path: Path) -> None:
    """Nanoseconds of attention without events and with them."""
    tree = root.good(fitness=True)
    for each in tree["arms/graph-fitness/profile/rank1.json"]["rounds"]:
        each["stamped_kind_ns"]["attention"], each["events_kind_ns"]["attention"] = attention
    figures = root.judged(tree, tmp_path).fitness_figures
    assert figures is not None
    assert figures.kind_slowdown["attention"] == pytest.approx(ratio)
    assert figures.spread == pytest.approx(spread)


@pytest.mark.parametrize("network", [None, {"namespace": 5, "left": 5, "interfaces": ["lo"]}])
def test_isolation_that_is_not_proven_is_told_so(network: Any, tmp_path: Path) -> None:
    tree = root.good()
    tree[EVENTS]["network"] = network
    told = root.judged(tree, tmp_path).clauses["decision"]["network-isolated"]
    assert (told.verdict, told.reason) == (None, "reported: not proven")


def test_what_an_arm_of_events_compiled_for_itself_may_be_gone_with_its_caches(tmp_path: Path) -> None:
    tree = root.good()
    binaries = tree["identity.json"]["binaries"]
    binaries[:] = [binary for binary in binaries if COMPILED not in binary["path"]]
    assert root.findings(root.judged(tree, tmp_path)) == {}


def test_the_selected_rank_has_its_intervals_by_source(tmp_path: Path) -> None:
    selected = root.judged(root.good(), tmp_path).selected
    assert selected is not None
    assert selected.ranges is not None
    assert len(selected.ranges.layers) == LAYERS


def test_of_profiles_that_are_not_whole_no_shares_are_given(tmp_path: Path) -> None:
    tree = root.good(fitness=True)
    at(SECOND, "rank", 0)(tree)
    analysis = root.judged(tree, tmp_path)
    assert [*root.findings(analysis)] == ["profile-complete/of-its-place"]
    assert (analysis.selected, analysis.rank_total_ns) == (None, {})
    assert (analysis.sparse, analysis.sparse_classes) == ({}, {})


def test_the_two_clocks_of_a_device_are_judged(tmp_path: Path) -> None:
    tree = root.good()
    device(tree)
    judged = root.judged(tree, tmp_path).clauses["profile-complete"]["clocks-agree"]
    assert (judged.verdict, judged.reason) == (Verdict.PASS, "")


@pytest.mark.parametrize(
    ("arm", "rule", "verdict"),
    [
        ("graph-event", "profile-complete/as-recorded", "NOT_PROVEN"),
        ("graph-sparse", "profile-complete/sparse-whole", "NOT_PROVEN"),
        ("graph-fitness", "instrument-fit/trial-whole", "VOID"),
    ],
)
def test_an_arm_that_was_asked_for_no_events_is_told(arm: str, rule: str, verdict: str, tmp_path: Path) -> None:
    tree = root.good(fitness=True)
    record = tree[f"arms/{arm}/record.json"]
    for request in (record["request"], tree[f"arms/{arm}/request.json"]):
        request |= {"event_profile": None, "event_fitness_rounds": 0, "event_sparse_replays": 0}
    for report in record["ranks"]:
        report["event_profile"] = None
    assert root.findings(root.judged(tree, tmp_path))[rule][0] == verdict
