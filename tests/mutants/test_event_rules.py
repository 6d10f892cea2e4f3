# SPDX-License-Identifier: Apache-2.0
"""Every rule of the event profile has a mutant: a good directory with one fact changed, refused by it first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.arms.engine_identity import IDENTITY_RULES
from pytest_laguna.analysis.events.diagnosis import RULES
from pytest_laguna.analysis.machine.host import HOST_RULES
from pytest_laguna.evidence.arms.arm_record import token_digest
from pytest_laguna.evidence.events.analysis import CLAUSES
from tests import event_root as root
from tests.caught_first import caught_first
from tests.diagnostic_root import CARDS, FLAG, Change, at, both, idle, put, within, without

Q1, EVENTS, FITNESS = (f"arms/{arm}/record.json" for arm in ("q1", "graph-event", "graph-fitness"))
PROFILES = [f"arms/graph-event/profile/rank{rank}.json" for rank in range(2)]
SPARSE = "arms/graph-sparse/record.json"
SPARSES = [f"arms/graph-sparse/profile/rank{rank}.json" for rank in range(2)]
TRIALS = [f"arms/graph-fitness/profile/rank{rank}.json" for rank in range(2)]
OTHER = "1" * 64


def of_request(arm: str, field: str, value: Any) -> Change:
    """What an arm was told, in the request and in the record alike."""
    return both(at(f"arms/{arm}/request.json", field, value), at(f"arms/{arm}/record.json", f"request|{field}", value))


def tokens(record: str, edit: Any) -> Change:
    """Other tokens, with their own digest, on every rank."""

    def change(tree: root.Tree) -> None:
        edit(tree[record]["token_ids"])
        tree[record]["token_sha256"] = token_digest(tree[record]["token_ids"])
        for report in tree[record]["ranks"]:
            report["sampled_token_ids"] = list(tree[record]["token_ids"])

    return change


def closure(edit: Any) -> Change:
    return put(root.CLOSURE_EDIT, edit)


def kinds(ids: Any) -> Change:
    """Other kinds of segments in both ranks' profiles."""
    return both(*(within(path, "kinds", ids) for path in PROFILES))


def swap(order: list[Any]) -> None:
    order[0], order[1] = order[1], order[0]


def device(tree: root.Tree) -> None:
    """The same campaign on another lane, whose profiles tell of the host."""
    for path in list(tree):
        if isinstance(tree[path], dict) and tree[path].get("lane") == "cpu":
            tree[path]["lane"] = "cuda"
        if path.endswith("/record.json"):
            tree[path]["request"]["lane"] = "cuda"
            root.as_asked(tree[path])
    for path in PROFILES:
        profile = tree[path]
        profile |= {"clock": "device-event", "lead": root.lead(profile, 1_000)}
        profile["stream"]["device_type"] = "cuda"


def lead(**changes: Any) -> Change:
    def change(tree: root.Tree) -> None:
        device(tree)
        tree[PROFILES[1]]["lead"] |= changes

    return change


IDENTITY = {
    "models-frozen": at(EVENTS, "request|target", "/elsewhere"),
    "models-unchanged": at("identity.json", "models_around|graph-event|after|changes", ["config.json: changed"]),
    "engine-unchanged": at("identity.json", "engine_after", None),
}
"""Of each of the rules' own mutants there is one here, to see that they look at this campaign's arms."""

MUTANTS: list[tuple[str, str, str, Change]] = [
    ("arms-fresh/nothing-unexpected", "VOID", "arms/eager", put("arms/eager/request.json", {})),
    (
        "arms-fresh/arguments-as-asked",
        "VOID",
        "graph-event: argument seed: seen 2; expected 1",
        at(EVENTS, "configuration|arguments|seed", 2),
    ),
    (
        "arms-fresh/arguments-as-asked",
        "VOID",
        "q1: resolved cudagraph_mode: seen 'PIECEWISE'; expected 'NONE'",
        at(Q1, "configuration|resolved|cudagraph_mode", "PIECEWISE"),
    ),
    (
        "arms-fresh/environment-as-asked",
        "VOID",
        "graph-event: environment LD_PRELOAD: seen '/x.so'; expected None",
        at(EVENTS, "environment|LD_PRELOAD", "/x.so"),
    ),
    (
        "arms-fresh/environment-as-asked",
        "VOID",
        f"graph-event: environment {FLAG}: seen '1'; expected '0'",
        at(EVENTS, f"environment|{FLAG}", "1"),
    ),
    ("arms-fresh/ended-clean", "VOID", "graph-event: ", at("arms/graph-event/process.json", "wait_status", 256)),
    (
        "arms-fresh/ended-clean",
        "FAIL",
        "graph-event: ",
        within(
            "arms/graph-event/process.json",
            "leftovers",
            lambda left: left.append({"pid": 77, "command": "python x.py", "start_ticks": 5}),
        ),
    ),
    ("arms-fresh/as-asked", "VOID", "q1: seen a record of another", at(Q1, "request|prompt", "other")),
    ("arms-fresh/as-asked", "VOID", "q1: seen isolated False", of_request("q1", "isolated", False)),
    ("arms-fresh/as-asked", "VOID", "collective_breaks False", of_request("graph-event", "collective_breaks", False)),
    (
        "arms-fresh/same-models-and-prompt",
        "VOID",
        "graph-event: seen prompt tokens",
        at(EVENTS, "prompt_token_sha256", OTHER),
    ),
    (
        "arms-fresh/models-planned",
        "VOID",
        "target: seen '/models/target'; expected '/elsewhere'",
        at("plan.json", "models", {"target": "/elsewhere", "draft": "/models/draft", "prompt": "x"}),
    ),
    (
        "arms-fresh/vllm-planned",
        "VOID",
        "graph-event: vLLM 0.33.0+cpu; expected 0.32.0",
        at(EVENTS, "versions|vllm", "0.33.0+cpu"),
    ),
    (
        "arms-fresh/own-processes",
        "VOID",
        "graph-event rank 1: seen process 4001, started at tick 100001, as q1 rank 1",
        lambda tree: tree[EVENTS]["ranks"][1].update(process=tree[Q1]["ranks"][1]["process"]),
    ),
    (
        "arms-fresh/in-order",
        "VOID",
        "graph-event: seen started at tick 7",
        at(EVENTS, "ranks|0|process", {"pid": 9_999, "start_ticks": 7}),
    ),
    ("arms-fresh/one-generation", "FAIL", "graph-event: seen tokens and finish", at(EVENTS, "finish_reason", "stop")),
    ("cache-cold/nothing-cached", "FAIL", "graph-event: seen 5 cached tokens", at(EVENTS, "cached_tokens", 5)),
    (
        "tokens-identical/equal-teacher",
        "FAIL",
        "q1 and graph-event: differ at token 7: ",
        tokens(EVENTS, lambda ids: ids.__setitem__(7, ids[7] + 1)),
    ),
    ("tokens-identical/equal-teacher", "FAIL", "in text but not in tokens", at(EVENTS, "text_sha256", OTHER)),
    (
        "topology-unchanged/plan-derived",
        "VOID",
        " in 47 layers; expected ",
        at("plan.json", "target_layers", 47),
    ),
    ("topology-unchanged/plan-derived", "VOID", "expected the campaign's 12", at("plan.json", "models|layers", 12)),
    (
        "topology-unchanged/graphs-frozen",
        "FAIL",
        "graph-event rank 1: seen captures of the target in orders",
        within(EVENTS, "ranks|1|graphs", lambda graphs: graphs.clear()),
    ),
    ("cards-idle/before-first", "VOID", "idle-before.json: seen phase", at("idle-before.json", "phase", "after")),
    ("cards-idle/after-arms", "VOID", "graph-event: seen phase", at("arms/graph-event/idle.json", "phase", "before")),
    ("cards-idle/after-last", "NOT_PROVEN", "idle-after.json: there is none", without("idle-after.json")),
    (
        "cards-idle/one-lease",
        "VOID",
        "arms/graph-event: seen LAGUNA_LEASE",
        at(EVENTS, "environment|LAGUNA_LEASE", "x"),
    ),
    (
        "cards-idle/looks-in-order",
        "VOID",
        "arms/graph-event/host.json, before: seen 2026-07-26T21:01:",
        lambda tree: tree.update({"arms/graph-event/host.json": tree["arms/q1/host.json"]}),
    ),
    (
        "cards-idle/looks-in-order",
        "VOID",
        "idle-after.json, snapshot 0: seen 2026-07-26T21:00:",
        put("idle-after.json", idle("after", CARDS, 0)),
    ),
    (
        "closure-bound/closure-bound",
        "VOID",
        "arms/graph-event/host.json: seen ",
        closure(lambda bound: bound["files"].update({"arms/graph-event/host.json": OTHER})),
    ),
    (
        "closure-bound/closure-bound",
        "VOID",
        "expected nothing, as bound",
        closure(lambda bound: bound["files"].pop("idle-after.json")),
    ),
    (
        "closure-bound/generations-counted",
        "VOID",
        "3 generations; expected 2",
        closure(lambda bound: bound.update(model_generations=3)),
    ),
    (
        "profile-complete/every-rank",
        "VOID",
        "graph-event: seen rank2.json; expected 2 rank files",
        lambda tree: tree.update({PROFILES[0].replace("rank0", "rank2"): tree[PROFILES[0]] | {"world_size": 3}}),
    ),
    ("profile-complete/every-rank", "NOT_PROVEN", "rank1.json: seen none", without(PROFILES[1])),
    ("profile-complete/every-rank", "VOID", "rank1.json", put(PROFILES[1], b"{}")),
    (
        "profile-complete/as-recorded",
        "VOID",
        "rank1.json: ",
        at(EVENTS, "ranks|1|event_profile|sha256", OTHER),
    ),
    (
        "profile-complete/as-recorded",
        "NOT_PROVEN",
        "rank 1: seen no",
        at(EVENTS, "ranks|1|event_profile|sha256", None),
    ),
    (
        "profile-complete/of-its-place",
        "VOID",
        "rank1.json: seen rank and world size (0, 2)",
        at(PROFILES[1], "rank", 0),
    ),
    ("profile-complete/one-batch", "VOID", "batches ", at(PROFILES[1], "descriptor", "another")),
    (
        "profile-complete/one-batch",
        "VOID",
        "graph-event rank 0: ",
        both(*(at(path, "descriptor", "another") for path in PROFILES)),
    ),
    ("profile-complete/topology-exact", "FAIL", "rank0.json: seen 291 intervals in order", kinds(swap)),
    ("profile-complete/clock-of-lane", "VOID", "('device-event', 'cpu')", at(PROFILES[1], "clock", "device-event")),
    ("profile-complete/clock-of-lane", "VOID", "('host-clock', 'xpu')", at(PROFILES[0], "stream|device_type", "xpu")),
    (
        "profile-complete/clock-of-lane",
        "VOID",
        " host's lead; expected none for ",
        lambda tree: tree[PROFILES[1]].update(lead=root.lead(tree[PROFILES[1]], 1_000)),
    ),
    ("profile-complete/intervals-add-up", "VOID", "in a span of", at(PROFILES[1], "span_ns", 200_000_000)),
    (
        "profile-complete/intervals-add-up",
        "VOID",
        "rank1.json: seen 0 ns in all",
        both(at(PROFILES[1], "interval_ns", [0] * 291), at(PROFILES[1], "span_ns", 0)),
    ),
    ("profile-complete/clocks-agree", "VOID", "rank 1: seen the stream's end ", lead(synchronised_ns=300_000)),
]

TRIAL_MUTANTS: list[tuple[str, str, str, Change]] = [
    (
        "arms-fresh/same-models-and-prompt",
        "VOID",
        "graph-sparse: seen draft",
        of_request("graph-sparse", "draft", "/other"),
    ),
    ("instrument-fit/trial-as-planned", "NOT_PROVEN", "graph-fitness", without("arms/graph-fitness/")),
    ("instrument-fit/trial-whole", "NOT_PROVEN", "graph-fitness: rank1.json: seen none", without(TRIALS[1])),
    (
        "instrument-fit/trial-whole",
        "VOID",
        "graph-fitness: rank1.json: seen another rank, number of ranks or rounds, or kinds",
        within(TRIALS[1], "rounds", lambda rounds: rounds.pop()),
    ),
    (
        "instrument-fit/trial-whole",
        "VOID",
        "as its rank wrote it",
        at(FITNESS, "ranks|1|event_profile|sha256", OTHER),
    ),
    (
        "profile-complete/sparse-whole",
        "VOID",
        "as its rank wrote it",
        at(SPARSE, "ranks|1|event_profile|sha256", OTHER),
    ),
    ("profile-complete/sparse-whole", "NOT_PROVEN", "rank1.json: seen none", without(SPARSES[1])),
    ("profile-complete/sparse-whole", "VOID", "rank1.json", put(SPARSES[1], b"{}")),
    (
        "profile-complete/sparse-whole",
        "VOID",
        " rank, number of ranks or replays, or kinds",
        within(SPARSES[1], "replays", lambda replays: replays.pop()),
    ),
    (
        "instrument-fit/slowdown-bounded",
        "STOP",
        " 1.100005 times as long ",
        both(*(at(TRIALS[1], f"rounds|{number}|events_ns", 220_001) for number in range(root.ROUNDS))),
    ),
    (
        "instrument-fit/slowdown-bounded",
        "STOP",
        " 5.900 times as long (graph 1.040",
        both(*(at(TRIALS[1], f"rounds|{number}|events_ns", 1_180_000) for number in range(root.ROUNDS))),
    ),
]

NEVER_ALONE = {
    # It says what the others find in figures that are only reported, or falls with what it rests on.
    "instrument-fit/slowdown-by-kind",
    "decision/decided",
    "decision/decision-listed",
    "decision/network-isolated",
}


TOLD_FIRST = {"arms-fresh/vllm-planned-12": "identity-exact/versions-installed"}
"""Another version than the campaign's is another than the installed one too, which is asked before."""

TRIAL_TOLD_FIRST = {
    "arms-fresh/same-models-and-prompt-0": "identity-exact/models-frozen",
    "instrument-fit/trial-as-planned-1": "identity-exact/engine-mapped",
}
"""Another model than the others' was not hashed; of an arm that left nothing, what it mapped is missed first."""


def test_a_good_directory_passes(tmp_path: Path) -> None:
    for fitness in (False, True):
        analysis = root.judged(root.good(fitness=fitness), tmp_path / str(fitness))
        assert root.findings(analysis) == {}
        assert analysis.status == "exact_event_profile_stop"
        assert analysis.fitness == ("fit" if fitness else "unmeasured")
        assert analysis.action == "replay_plan_submission_research_only"
        assert analysis.network_isolated is True
        assert tuple(analysis.clauses) == CLAUSES


@caught_first("rule verdict reason change", MUTANTS, TOLD_FIRST)
def test_a_mutant_is_refused_by_its_rule(
    rule: str, verdict: str, reason: str, change: Change, tmp_path: Path
) -> list[str]:
    tree = root.good()
    change(tree)
    analysis = root.judged(tree, tmp_path)
    seen = root.findings(analysis)
    assert seen[rule][0] == verdict, seen
    assert reason in seen[rule][1]
    assert analysis.status is None
    assert analysis.action is None
    return [*seen]


@caught_first("rule verdict reason change", TRIAL_MUTANTS, TRIAL_TOLD_FIRST)
def test_a_mutant_of_the_trial_is_refused_by_its_rule(
    rule: str, verdict: str, reason: str, change: Change, tmp_path: Path
) -> list[str]:
    tree = root.good(fitness=True)
    change(tree)
    seen = root.findings(root.judged(tree, tmp_path))
    assert seen[rule][0] == verdict, seen
    assert reason in seen[rule][1]
    return [*seen]


@pytest.mark.parametrize("rule", IDENTITY)
def test_the_rules_of_identity_look_at_these_arms(rule: str, tmp_path: Path) -> None:
    tree = root.good()
    IDENTITY[rule](tree)
    assert f"identity-exact/{rule}" in root.findings(root.judged(tree, tmp_path))


def test_sparse_shares_are_listed_and_decide_nothing(tmp_path: Path) -> None:
    analysis = root.judged(root.good(fitness=True), tmp_path / "with")
    assert analysis.selected is not None
    assert analysis.selected.category_percent is not None
    assert analysis.sparse.keys() == {"0", "1"}
    for kind, share in analysis.sparse["1"].items():
        assert share.percent == pytest.approx(analysis.selected.category_percent[kind], abs=0.01)
    without_it = root.judged(root.good(), tmp_path / "without")
    assert (without_it.sparse, without_it.sparse_classes, without_it.action) == ({}, {}, analysis.action)
    for kinds, classes in zip(analysis.sparse.values(), analysis.sparse_classes.values(), strict=True):
        assert sum(share.percent for share in classes.values()) == pytest.approx(100)
        assert sum(share.drawn for share in classes.values()) == sum(share.drawn for share in kinds.values())


def test_too_few_drawn_intervals_are_listed_and_give_no_shares(tmp_path: Path) -> None:
    tree = root.good(fitness=True)
    tree["plan.json"]["sparse_replays"] = 1
    for path in ("arms/graph-sparse/request.json", SPARSE):
        request = tree[path]["request"] if path == SPARSE else tree[path]
        request["event_sparse_replays"] = 1
    root.as_asked(tree[SPARSE])
    for report in tree[SPARSE]["ranks"]:
        report["event_profile"]["replays"] = 1
    for path in SPARSES:
        del tree[path]["replays"][1:]
    analysis = root.judged(tree, tmp_path)
    assert root.findings(analysis) == {}
    listed = analysis.clauses["profile-complete"]["sparse-whole"]
    assert listed.verdict is None
    assert "in 1 replays; expected 2 at least; measure more replays" in listed.reason
    assert (analysis.sparse, analysis.sparse_classes) == ({}, {})
    assert analysis.status == "exact_event_profile_stop"


def test_a_sparse_profile_that_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    tree = root.good()
    tree[SPARSES[0]] = root.sparse(0)
    seen = root.findings(root.judged(tree, tmp_path))
    assert "expected none: the plan has no such arm" in seen["profile-complete/sparse-whole"][1]


def test_the_trial_of_a_campaign_that_asks_for_none_is_refused(tmp_path: Path) -> None:
    tree = root.good()
    tree[TRIALS[0]] = root.good(fitness=True)[TRIALS[0]]
    seen = root.findings(root.judged(tree, tmp_path))
    assert "expected none: the plan has no trial" in seen["instrument-fit/trial-as-planned"][1]


def test_an_unfit_instrument_withholds_its_shares(tmp_path: Path) -> None:
    tree = root.good(fitness=True)
    TRIAL_MUTANTS[-1][3](tree)
    analysis = root.judged(tree, tmp_path)
    assert (analysis.fitness, analysis.action) == ("unfit", "instrument_unfit")
    assert analysis.selected is not None
    assert analysis.selected.category_percent is None
    assert analysis.fitness_figures is not None
    assert analysis.fitness_figures.slowdown == pytest.approx(5.9)
    assert analysis.fitness_figures.spread == pytest.approx(1.075 / 1.04)


def test_a_decision_that_turns_on_the_hosts_lead_is_withheld(tmp_path: Path) -> None:
    tree = root.good()
    device(tree)
    ahead = root.judged(tree, tmp_path / "ahead")
    assert root.findings(ahead) == {}
    assert ahead.selected is not None
    assert ahead.selected.host is not None
    assert sum(ahead.selected.host.waiting_most_ns.values()) <= 1_000
    assert ahead.action == "replay_plan_submission_research_only"
    for path in PROFILES:
        profile = tree[path]
        # The host comes to each boundary when the stream does: the stream may have waited all the time.
        stream = [sum(profile["interval_ns"][:number]) for number in range(len(root.KINDS) + 1)]
        profile["lead"] = {"boundary_ns": stream, "synchronised_ns": stream[-1]}
    behind = root.judged(tree, tmp_path / "behind")
    assert root.findings(behind) == {}
    assert behind.selected is not None
    assert behind.selected.host is not None
    assert behind.selected.host.waiting_most_ns == dict(behind.selected.category_ns)
    assert behind.selected.host.smallest_lead_ns == 0
    assert behind.action == "withheld_host_lead"


def test_isolation_that_is_not_proven_is_absent(tmp_path: Path) -> None:
    for number, network in enumerate((None, {"namespace": 5, "left": 5, "interfaces": ["lo"]})):
        tree = root.good()
        tree[EVENTS]["network"] = network
        analysis = root.judged(tree, tmp_path / str(number))
        assert root.findings(analysis) == {}
        assert analysis.network_isolated is None
    tree = root.good()
    tree[Q1]["network"]["interfaces"] = ["eth0", "lo"]
    assert root.judged(tree, tmp_path / "eth0").network_isolated is None


def test_nothing_at_all_is_not_proven(tmp_path: Path) -> None:
    tree = {name: value for name, value in root.good().items() if name in {"plan.json", "target-config.json"}}
    analysis = root.judged(tree, tmp_path)
    assert {verdict for verdict, _ in root.findings(analysis).values()} <= {"NOT_PROVEN", "VOID"}
    assert (analysis.status, analysis.action, analysis.selected) == (None, None, None)


def test_every_rule_has_a_mutant() -> None:
    ours = {f"{clause}/{rule}" for clause, rules in RULES.items() for rule in rules}
    elsewhere = {f"identity-exact/{rule}" for rule in IDENTITY_RULES} | {f"host-within-limits/{r}" for r in HOST_RULES}
    elsewhere |= {"arms-fresh/ranks-answered", "tokens-identical/ranks-sampled-alike"}  # test_rank_rules.py
    assert ours - elsewhere - NEVER_ALONE == {mutant[0] for mutant in (*MUTANTS, *TRIAL_MUTANTS)}
