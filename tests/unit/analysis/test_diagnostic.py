# SPDX-License-Identifier: Apache-2.0
"""What the diagnosis makes of a whole directory: missing evidence, what decides, reductions, and equal bytes again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.arms.case import clause_verdict
from pytest_laguna.analysis.diagnostic.arms import attention_equal
from pytest_laguna.analysis.diagnostic.case import DiagnosticCase
from pytest_laguna.analysis.diagnostic.diagnosis import diagnose
from pytest_laguna.analysis.diagnostic.timing import GATES
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.diagnostic.analysis import CLAUSES, Diagnosis, DiagnosticPlan, RuleResult
from pytest_laguna.evidence.diagnostic.reader import read_diagnostic
from pytest_laguna.evidence.reading import PLAN
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import UnusableEvidenceError, Verdict
from tests import diagnostic_root as root
from tests.diagnostic_root import at, without

PUBLISHED = json.loads((root.DATA / "kv-views-diagnostic-20260725.json").read_bytes())


def verdicts(diagnosis: Diagnosis) -> dict[str, str]:
    return {clause: str(clause_verdict(rules)[0]) for clause, rules in diagnosis.clauses.items()}


def test_the_same_files_give_the_same_bytes_and_are_only_read(tmp_path: Path) -> None:
    root.write(root.good(), tmp_path)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    first, second = (
        files.canonical_json(
            diagnose(read_model(tmp_path / PLAN, DiagnosticPlan), read_diagnostic(tmp_path)).canonical()
        )
        for _ in range(2)
    )
    assert first == second
    assert b'"notice":"diagnostic only: neither benchmark nor submission evidence"' in first
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)


def test_every_clause_has_a_rule_that_decides(tmp_path: Path) -> None:
    diagnosis = root.judged(root.good(), tmp_path)
    for clause, rules in diagnosis.clauses.items():
        assert any(result.verdict is Verdict.PASS for result in rules.values()), clause


def test_what_is_only_listed_proves_nothing() -> None:
    listed = RuleResult(verdict=None, reason="not applicable: lane cpu")
    held = RuleResult(verdict=Verdict.PASS, reason="")
    stopped = RuleResult(verdict=Verdict.STOP, reason="slower")
    assert clause_verdict({"a": listed}) == (Verdict.NOT_PROVEN, "rules: seen none applied; expected at least one")
    assert clause_verdict({"a": listed, "b": held}) == (Verdict.PASS, "1 rules hold, 1 are listed only")
    assert clause_verdict({"a": held, "b": stopped, "c": listed}) == (Verdict.STOP, "b: slower")


def test_nothing_at_all_is_proven_by_an_empty_directory(tmp_path: Path) -> None:
    root.write({"plan.json": root.plan()}, tmp_path)
    diagnosis = diagnose(read_model(tmp_path / PLAN, DiagnosticPlan), read_diagnostic(tmp_path))
    assert verdicts(diagnosis) == dict.fromkeys(CLAUSES, "NOT_PROVEN")
    assert (diagnosis.timing, diagnosis.published) == (None, None)
    for clause, rules in diagnosis.clauses.items():
        held = [name for name, result in rules.items() if result.verdict is Verdict.PASS]
        assert held == (["nothing-unexpected"] if clause == "arms-fresh" else []), clause


def test_without_a_plan_nothing_can_be_judged(tmp_path: Path) -> None:
    with pytest.raises(UnusableEvidenceError, match=r"plan\.json: cannot be read"):
        read_model(tmp_path / PLAN, DiagnosticPlan)


FAILED = {"reason": "arm graph-control: exited, exit code 1 after 9.5 s: laguna-arm failed: RuntimeError: rank 1 died"}


def _arm_died(tree: root.Tree) -> None:
    """The third arm failed, and nothing ran after it."""
    without("arms/graph-control/record.json", "arms/graph-candidate/", "idle-after.json")(tree)
    tree["arms/graph-control/failure.json"] = FAILED
    at("arms/graph-control/process.json", "wait_status", 256)(tree)


def test_an_arm_that_died_is_named_wherever_its_evidence_is_missing(tmp_path: Path) -> None:
    tree = root.good()
    _arm_died(tree)
    diagnosis = root.judged(tree, tmp_path)
    seen = verdicts(diagnosis)
    assert {clause for clause, verdict in seen.items() if verdict == "PASS"} == {"parity-packets"}
    ended = diagnosis.clauses["arms-fresh"]["ended-clean"]
    assert ended.verdict is Verdict.VOID
    assert ended.reason.startswith("graph-control: ended-by-itself: exited, exit code 1")
    assert "rank 1 died" in ended.reason
    for clause, rule in (
        ("cache-cold", "nothing-cached"),
        ("tokens-identical", "required-pairs"),
        ("topology-unchanged", "graphs-frozen"),
        ("selector-proven", "candidate-active"),
        ("view-preparations", "candidate-persistent"),
    ):
        result = diagnosis.clauses[clause][rule]
        assert result.verdict is Verdict.NOT_PROVEN
        assert "arms/graph-control: no record: arm graph-control: exited" in result.reason


def test_an_arm_that_never_ran_names_what_went_wrong_before_it(tmp_path: Path) -> None:
    tree = root.good()
    without("arms/")(tree)
    tree["packets/1/failure.json"] = {"reason": "no kernel for this card"}
    del tree["packets/1/record.json"]
    diagnosis = root.judged(tree, tmp_path)
    reason = diagnosis.clauses["cache-cold"]["nothing-cached"].reason
    assert reason == "arms/q1/record.json: there is none; packets/1: no record: no kernel for this card"
    assert (
        diagnosis.clauses["parity-packets"]["outputs-equal"].reason == "packets/1: no record: no kernel for this card"
    )


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("arms/q1/record.json", "cache-cold"),
        ("arms/graph-candidate/record.json", "sole-treatment"),
        ("arms/graph-control/profile/rank1.json", "replay-samples"),
        ("packets/1/record.json", "parity-packets"),
        ("identity.json", "identity-exact"),
        ("idle-after.json", "cards-idle"),
        ("arms/eager/host.json", "host-within-limits"),
        ("arms/eager/process.json", "arms-fresh"),
        ("target-config.json", "topology-unchanged"),
    ],
)
def test_a_file_that_is_torn_is_void_and_one_that_is_missing_is_not_proven(
    name: str, clause: str, tmp_path: Path
) -> None:
    tree = root.good()
    del tree[name]
    assert verdicts(root.judged(tree, tmp_path / "missing"))[clause] == "NOT_PROVEN"
    tree = root.good()
    root.write(tree, tmp_path / "torn")
    path = tmp_path / "torn" / name
    path.write_bytes(path.read_bytes()[:-20])
    assert (
        verdicts(diagnose(read_model(tmp_path / "torn" / PLAN, DiagnosticPlan), read_diagnostic(tmp_path / "torn")))[
            clause
        ]
        == "VOID"
    )


def test_no_file_that_is_taken_away_makes_anything_better(tmp_path: Path) -> None:
    """Every file is needed: without any one of them something is not proven, and what was refused stays refused."""
    tree = root.good()
    at("arms/q1/record.json", "cached_tokens", 1)(tree)
    root.write(tree, tmp_path)
    for name in sorted(set(tree) - {"plan.json"}):
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        seen = verdicts(diagnose(read_model(tmp_path / PLAN, DiagnosticPlan), read_diagnostic(tmp_path)))
        assert set(seen.values()) != {"PASS"}, name
        assert "NOT_PROVEN" in seen.values(), name
        (tmp_path / name).write_bytes(kept)


def test_attention_outputs_decide_on_the_cpu_lane_and_are_listed_on_the_others(tmp_path: Path) -> None:
    tree = root.good()
    at("arms/graph-candidate/record.json", "ranks|1|attention|sha256", "1" * 64)(tree)
    root.write(tree, tmp_path)
    plan, evidence = read_model(tmp_path / PLAN, DiagnosticPlan), read_diagnostic(tmp_path)
    on_cpu = attention_equal(DiagnosticCase(plan, evidence))
    on_cuda = attention_equal(DiagnosticCase(plan.model_copy(update={"lane": "cuda"}), evidence))
    assert on_cpu is not None
    assert on_cpu[0] is Verdict.FAIL
    assert on_cuda == (None, f"reported: {on_cpu[1]}")


def test_a_record_beside_a_failure_is_void(tmp_path: Path) -> None:
    tree = root.good() | {"arms/q1/failure.json": {"reason": "x"}}
    diagnosis = root.judged(tree, tmp_path)
    assert diagnosis.clauses["cache-cold"]["nothing-cached"] == RuleResult(
        verdict=Verdict.VOID, reason="arms/q1: a record and a failure (x); expected one of them"
    )


def slower(tree: root.Tree) -> None:
    """The candidate saves nothing and its generation is longer."""
    tree["arms/graph-candidate/record.json"]["generation_seconds"] = 30.0
    for path in [path for path in tree if path.startswith("arms/graph-candidate/profile/")]:
        for replay in tree[path]["samples"]:
            replay["whole_ns"] += 100_000


def test_timing_stops_only_where_the_campaign_says_that_it_decides(tmp_path: Path) -> None:
    tree = root.published()
    slower(tree)
    root.as_reported(tree)
    deciding = root.judged(tree, tmp_path / "deciding")
    assert verdicts(deciding) == dict.fromkeys(CLAUSES, "PASS") | {"timing": "STOP"}
    at("plan.json", "decides", "exactness")(tree)
    listing = root.judged(tree, tmp_path / "listing")
    assert verdicts(listing) == dict.fromkeys(CLAUSES, "PASS")
    assert deciding.published == listing.published == "exact_timing_stop"
    assert deciding.timing == listing.timing
    results = listing.clauses["timing"]
    assert {name for name, result in results.items() if result.verdict is None} == set(GATES)
    assert results["whole_replay"].reason == (
        "reported: seen 10177795 ns to 10229795 ns, a saving of -52000 ns;"
        " the published rule, expected more than 0, does not hold"
    )
    assert results["generation_wall"].reason.endswith("does not hold")
    assert results["attention_host"].reason.endswith("holds")


def test_without_profiles_nothing_was_compared_wherever_timing_decides_or_not(tmp_path: Path) -> None:
    for decides, gate in (("exactness", None), ("exactness+timing", Verdict.NOT_PROVEN)):
        tree = root.good()
        at("plan.json", "decides", decides)(tree)
        without("arms/graph-control/profile/rank1.json")(tree)
        diagnosis = root.judged(tree, tmp_path / decides)
        assert diagnosis.timing is None
        assert clause_verdict(diagnosis.clauses["timing"]) == (
            Verdict.NOT_PROVEN,
            "compared: files-whole: graph-control rank 1: seen 5 of 5 replays, and no profile; expected both whole",
        )
        assert diagnosis.clauses["timing"]["whole_replay"].verdict is gate
        if gate is None:
            assert diagnosis.clauses["timing"]["whole_replay"].reason == "reported: nothing to compare"


def test_a_profile_that_contradicts_itself_is_not_compared(tmp_path: Path) -> None:
    tree = root.good()
    at("arms/graph-control/profile/rank0.json", "samples|0|whole_ns", 5)(tree)
    diagnosis = root.judged(tree, tmp_path)
    assert (diagnosis.timing, diagnosis.published) == (None, None)
    assert diagnosis.clauses["timing"]["compared"].reason.startswith(
        "whole-contains-host: graph-control rank 0 sample 0"
    )


def test_what_is_not_exact_is_called_nothing_by_the_published_rules(tmp_path: Path) -> None:
    tree = root.good()
    at("arms/q1/record.json", "cached_tokens", 1)(tree)
    diagnosis = root.judged(tree, tmp_path)
    assert diagnosis.timing is not None
    assert diagnosis.published is None


def other_q1(tree: root.Tree) -> None:
    """Q1 gives other tokens than the arms that speculate, and the plan does not ask for the same."""
    at("plan.json", "identical", [["eager", "graph-control"], ["graph-control", "graph-candidate"]])(tree)
    tree["arms/q1/record.json"]["text_sha256"] = "1" * 64


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (at("plan.json", "decides", "exactness"), "diagnostic_pass"),
        (at("plan.json", "queries", [*range(1, 10)]), None),  # packets of other lengths are not exact
        (at("plan.json", "acceptance_rate_difference", 0.0), "diagnostic_pass"),
        (at("plan.json", "acceptance_rate_difference", 1.0), None),
        (at("plan.json", "accepted_per_cycle", 0.0), None),
        (other_q1, None),
    ],
    ids=["as published", "other packets", "stricter", "any rate", "dead drafts", "other tokens"],
)
def test_the_published_names_are_for_what_was_published(change: root.Change, named: str | None, tmp_path: Path) -> None:
    tree = root.published()
    change(tree)
    assert root.judged(tree, tmp_path).published == named


def test_a_reason_is_one_line_whatever_a_file_is_called(tmp_path: Path) -> None:
    tree = root.good() | {"arms/graph-control/profile/rank1\n\x1b[2J.json": {}, "arms/x\ny/z": {}}
    diagnosis = root.judged(tree, tmp_path)
    found = root.findings(diagnosis)
    assert found["replay-samples/files-whole"][1].startswith("graph-control: seen a profile rank1\\n\\x1b[2J.json")
    assert found["arms-fresh/nothing-unexpected"][1].startswith("arms/x\\ny: seen, unplanned; expected the four arms")
    assert all(result.reason.isprintable() for rules in diagnosis.clauses.values() for result in rules.values())


@pytest.mark.parametrize(
    ("name", "path", "value", "rule"),
    [
        ("arms/graph-control/record.json", "generation_seconds", 1e300, "cache-cold/nothing-cached"),
        ("arms/q1/record.json", "start_seconds", 9e6, "cache-cold/nothing-cached"),
        (
            "arms/graph-control/profile/rank0.json",
            "samples|2|segment_ns",
            [2**53 - 1] * 291,
            "replay-samples/files-whole",
        ),
    ],
)
def test_a_time_that_no_clock_gives_is_void_and_nothing_else(
    name: str, path: str, value: Any, rule: str, tmp_path: Path
) -> None:
    tree = root.good()
    at(name, path, value)(tree)
    verdict, reason = root.findings(root.judged(tree, tmp_path))[rule]
    assert verdict == "VOID"
    assert "less than 9" in reason


@pytest.mark.parametrize("status", [10**15, -1, 0x7F])
def test_an_end_that_no_kernel_tells_is_void(status: int, tmp_path: Path) -> None:
    tree = root.good()
    at("arms/eager/process.json", "wait_status", status)(tree)
    verdict, reason = root.findings(root.judged(tree, tmp_path))["arms-fresh/ended-clean"]
    assert verdict == "VOID"
    assert reason.startswith("arms/eager/process.json: wait_status")


def test_each_sample_is_the_maximum_over_the_ranks_and_percentiles_are_linear(tmp_path: Path) -> None:
    tree = root.good()
    for rank, whole in enumerate(((0, 500, 0, 0, 900), (100, 200, 300, 400, 0))):
        for replay, more in zip(tree[f"arms/graph-control/profile/rank{rank}.json"]["samples"], whole, strict=True):
            replay["whole_ns"] = 20_000_000 + more
    seen = root.judged(tree, tmp_path).distributions["graph-control"]["whole_replay"]
    assert (seen.minimum, seen.maximum) == (20_000_100, 20_000_900)
    assert (seen.p10, seen.median, seen.p90) == (20_000_180.0, 20_000_400.0, 20_000_740.0)


def test_a_quantity_that_no_rank_has_is_not_listed(tmp_path: Path) -> None:
    distributions = root.judged(root.good(), tmp_path).distributions
    assert {arm: "debug_guard" in named for arm, named in distributions.items()} == {
        "graph-control": False,
        "graph-candidate": False,
    }
    assert distributions["graph-control"]["offloader_synchronise"].median == 400


def _published_figures(arm: Arm) -> dict[str, tuple[int, int]]:
    side = "candidate" if arm is Arm.GRAPH_CANDIDATE else "control"
    names = ("kv_view_prepare_total", "attention_host_total", "whole_replay_completion", "post_replay_synchronize")
    figures = PUBLISHED["comparison_ns"]
    return {name: (figures[name][f"{side}_median"], figures[name][f"{side}_p90"]) for name in names}


def _spread(median: int, p90: int, number: int) -> int:
    """The value of one of 31 samples whose median and 90th percentile these are: ordered values 15 and 27."""
    return median if number < 27 else p90


def _published_profile(arm: Arm, rank: int) -> dict[str, Any]:
    """A profile in which the last rank is the slowest and whose reductions are the published figures."""
    ranks = len(root.PUBLISHED_CARDS)
    profile = root.profile(arm, rank, samples=31, ranks=ranks)
    figures = _published_figures(arm)
    attention = [index for index, kind in enumerate(profile["kinds"]) if kind == "attention"]
    for number, replay in enumerate(profile["samples"]):
        value = {name: _spread(*pair, number) - (ranks - 1 - rank) for name, pair in figures.items()}
        share, rest = divmod(value["attention_host_total"], len(attention))
        for index in range(len(profile["kinds"])):
            replay["segment_ns"][index] = 1_000
        for index in attention:
            replay["segment_ns"][index] = share + (rest if index == attention[0] else 0)
        replay["loop_ns"] = sum(replay["segment_ns"])
        replay["host_ns"] = replay["loop_ns"] + 1
        replay["synchronize_ns"] = value["post_replay_synchronize"]
        replay["whole_ns"] = value["whole_replay_completion"]
        replay["views"]["forward_ns"] = value["kv_view_prepare_total"]
    return profile


def test_a_directory_with_the_published_figures_stops_as_published(tmp_path: Path) -> None:
    tree = root.published()
    wall = PUBLISHED["comparison_ns"]["fresh_generation_wall"]
    for arm, side in ((Arm.GRAPH_CONTROL, "control"), (Arm.GRAPH_CANDIDATE, "candidate")):
        tree[f"arms/{arm}/record.json"]["generation_seconds"] = wall[side] / 1e9
        for rank in range(len(root.PUBLISHED_CARDS)):
            tree[f"arms/{arm}/profile/rank{rank}.json"] = _published_profile(arm, rank)
    root.as_reported(tree)
    diagnosis = root.judged(tree, tmp_path)
    assert verdicts(diagnosis) == dict.fromkeys(CLAUSES, "PASS") | {"timing": "STOP"}
    assert diagnosis.published == PUBLISHED["status"]
    assert diagnosis.timing is not None
    figures = PUBLISHED["comparison_ns"]
    assert {name: seen.saving for name, seen in diagnosis.timing.items()} == {
        "view_preparation": figures["kv_view_prepare_total"]["median_saving"],
        "attention_host": figures["attention_host_total"]["median_saving"],
        "whole_replay": figures["whole_replay_completion"]["median_saving"],
        "whole_replay_p90": figures["whole_replay_completion"]["p90_saving"],
        "post_replay_synchronise": figures["post_replay_synchronize"]["median_saving"],
        "generation_wall": wall["saving"],
    }
    assert list(PUBLISHED["gates"].values()) == [
        diagnosis.timing[name].passed
        for name in (
            "view_preparation",
            "attention_host",
            "whole_replay",
            "generation_wall",
            "whole_replay_p90",
            "post_replay_synchronise",
        )
    ]
    stopped = {name for name, result in diagnosis.clauses["timing"].items() if result.verdict is Verdict.STOP}
    assert stopped == {"post_replay_synchronise", "generation_wall"}


def test_intervals_stand_beside_the_signs_and_one_generation_has_none(tmp_path: Path) -> None:
    timing = root.judged(root.good(), tmp_path).timing
    assert timing is not None
    for name, gate in timing.items():
        assert (gate.interval is None) == (gate.detectable is None) == (name == "generation_wall")
