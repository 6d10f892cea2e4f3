# SPDX-License-Identifier: Apache-2.0
"""What gate 3's receipt lists beside its clauses: rules that prove nothing, and whether the candidate ran at all."""

from __future__ import annotations

import pytest

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.evidence.endpoint.plan import EndpointPlan
from pytest_laguna.experiments.endpoint import EXPERIMENT
from tests import endpoint_legs as lab


def listed(plan: EndpointPlan) -> dict[str, tuple[str, str]]:
    starts = lab.null_starts() if plan.null else lab.metadata_starts()
    legs = lab.records(lab.legs(starts, null=plan.null))
    analysis = analyse_endpoint(plan, legs, teacher=lab.TEACHER, campaign=lab.CAMPAIGN)
    return {rule: (clause, why) for clause, rule, why in EXPERIMENT.unexercised(analysis)}


@pytest.mark.parametrize("decides", ["exactness", "exactness+timing"])
def test_a_null_campaign_is_in_its_receipt(decides: str) -> None:
    told = "A/A campaign: control against control is PASS; the candidate did not run"
    assert listed(lab.plan(null=True, decides=decides))["candidate-ran"] == ("sole-treatment", told)
    assert "candidate-ran" not in listed(lab.plan(decides=decides))


def test_rules_about_a_teacher_that_is_not_there_are_listed_and_prove_nothing() -> None:
    why = "not applicable: the plan does without it, or what it looks at is not there"
    found = listed(lab.plan(teacher_sha256=None))
    assert (found["teacher-exact"], found["teacher-pinned"]) == (("teacher-exact", why),) * 2
    assert "teacher-exact" not in listed(lab.plan())
