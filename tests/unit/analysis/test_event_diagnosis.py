# SPDX-License-Identifier: Apache-2.0
"""What a whole event campaign's analysis says of its closure, of what holds, and of its instrument."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import event_root as root
from tests.diagnostic_root import put

OTHER = "1" * 64


@pytest.mark.parametrize("path", ["arms/graph-event/profile/rank1.json", "arms/q1/record.json"])
def test_a_closure_without_a_file_that_every_check_needs_binds_nothing(path: str, tmp_path: Path) -> None:
    tree = root.good()
    del tree[path]
    seen = root.findings(root.judged(tree, tmp_path))["closure-bound/closure-bound"]
    assert seen == ("NOT_PROVEN", f"closure.json: without {path}; expected every check's file")


def test_a_file_that_is_bound_and_gone_is_told_so(tmp_path: Path) -> None:
    tree = root.good()
    put(root.CLOSURE_EDIT, lambda bound: bound["files"].update({"arms/more.json": OTHER}))(tree)
    assert root.findings(root.judged(tree, tmp_path)) == {
        "closure-bound/closure-bound": (
            "VOID",
            f"closure.json: arms/more.json bound as {OTHER}, found as nothing; expected them equal",
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
    "stack-fits": "no part of it is an XPU's",
    "closure-whole": "no part of it is an XPU's",
    "closure-mapped": "no part of it is an XPU's",
}
ANYWHERE = {f"identity-exact/{rule}": f"not applicable: {reason}" for rule, reason in IDENTITY.items()} | {
    "profile-complete/clocks-agree": "not applicable: the host is the device",
    "decision/decision-listed": (
        "reported: replay_plan_submission_research_only; neither an endpoint nor a submission is authorised"
    ),
    "decision/network-isolated": "reported: every arm ran in a network namespace with loopback alone",
}
UNTRIED = {
    "profile-complete/sparse-whole": "not applicable: the campaign asks for no sparse profile",
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
