# SPDX-License-Identifier: Apache-2.0
"""A diagnostic with a control in the candidate's slot: every rule holds, and what is none of a control's is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.campaign import Campaign, read_campaign
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.experiments.protocol import plan_endpoint, read_protocol
from pytest_laguna.verdict import UnusableEvidenceError
from tests import diagnostic_root as root
from tests.diagnostic_root import Change, at, both

CAMPAIGNS = Path(__file__).parents[3] / "campaigns"
CONTROL, CANDIDATE = (f"arms/{arm}/record.json" for arm in (Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE))
NULL = "not applicable: A/A campaign: the candidate's slot held a control"


def null_tree() -> root.Tree:
    """A good diagnostic whose candidate arm did what the control did."""
    tree = root.good()
    tree["plan.json"]["null"] = True
    control, candidate = tree[CONTROL], tree[CANDIDATE]
    for arm in Arm:
        tree[f"arms/{arm}/request.json"]["null"] = True
        tree[f"arms/{arm}/record.json"]["request"]["null"] = True
    candidate["environment"][root.FLAG] = "0"
    for own, other in zip(candidate["ranks"], control["ranks"], strict=True):
        same: dict[str, Any] = {name: other[name] for name in ("candidate", "kernel_views")}
        own.update(copy.deepcopy(same))
        own["mapped"] = [file for file in own["mapped"] if "/laguna_kv/" not in file["path"]]
    for rank in range(len(root.CARDS)):
        tree[f"arms/graph-candidate/profile/rank{rank}.json"] = root.profile(Arm.GRAPH_CONTROL, rank)
    root.as_reported(tree)
    return tree


def test_every_rule_holds_and_nothing_is_said_of_the_candidate(tmp_path: Path) -> None:
    diagnosis = root.judged(null_tree(), tmp_path)
    assert root.findings(diagnosis) == {}
    selector = diagnosis.clauses["selector-proven"]
    assert {rule for rule, result in selector.items() if result.reason == NULL} == {
        "views-built-once",
        "views-reach-kernel",
    }
    assert diagnosis.published is None
    assert diagnosis.timing is not None
    assert {gate.saving for gate in diagnosis.timing.values()} == {0.0, 1e9}  # the arms' generations differ


MUTANTS: dict[str, tuple[Change, str, str]] = {
    "the candidate ran all the same": (
        both(*(at(CANDIDATE, f"ranks|{rank}|candidate|flag", True) for rank in range(2))),
        "selector-proven/candidate-active",
        "the control ",
    ),
    "its flag is on": (
        at(CANDIDATE, f"environment|{root.FLAG}", "1"),
        "sole-treatment/sole-treatment",
        " '0' and '1'; expected '0' and '0'",
    ),
    "an arm was told otherwise": (
        both(at("arms/eager/request.json", "null", False), at("arms/eager/record.json", "request|null", False)),
        "arms-fresh/as-asked",
        "eager: seen null False; expected True",
    ),
    "stored views answered": (
        lambda tree: tree.update({
            "arms/graph-candidate/profile/rank1.json": root.profile(Arm.GRAPH_CANDIDATE, 1),
        }),
        "view-preparations/control-incumbent",
        "graph-candidate rank 1 sample 0: seen incumbent, persistent, hits and builds",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_no_controls_is_refused(name: str, tmp_path: Path) -> None:
    change, rule, reason = MUTANTS[name]
    tree = null_tree()
    change(tree)
    root.as_reported(tree)
    found = root.findings(root.judged(tree, tmp_path))
    assert reason in found[rule][1]


def test_a_candidate_in_a_campaign_that_is_none_is_as_before(tmp_path: Path) -> None:
    tree = root.good()
    for name in ("arms/q1/request.json",):
        tree[name]["null"] = True
    tree["arms/q1/record.json"]["request"]["null"] = True
    found = root.findings(root.judged(tree, tmp_path))
    assert found["arms-fresh/as-asked"][1] == "q1: seen null True; expected False"


def test_a_null_gate_2_leads_to_a_null_gate_3_alone() -> None:
    campaign = read_campaign(CAMPAIGNS / "laguna-persistent-kv-views-quick.toml")
    content = campaign.model_dump(by_alias=True)
    content["diagnostic"]["null"] = True
    protocol = read_protocol(CAMPAIGNS / "laguna-persistent-kv-views-quick-endpoint-cpu.toml")
    for null in (True, False):
        asked = protocol.model_copy(update={"null": null})
        arguments: dict[str, Any] = {"ranks": 1, "target_config": root.TARGET_CONFIG, "authorised_by": None}
        if null:
            assert plan_endpoint(Campaign.model_validate(content), "cpu", asked, **arguments).null
            continue
        with pytest.raises(UnusableEvidenceError, match="expected true, as in gate 2"):
            plan_endpoint(Campaign.model_validate(content), "cpu", asked, **arguments)
