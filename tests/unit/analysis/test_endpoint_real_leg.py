# SPDX-License-Identifier: Apache-2.0
"""The rules over a leg that a real server wrote: everything holds but what needs a whole suite."""

from __future__ import annotations

from pathlib import Path

from pytest_laguna.analysis.endpoint.case import LegCase
from pytest_laguna.analysis.endpoint.leg_rules import LEG_RULES
from pytest_laguna.evidence.endpoint.leg import LegRecord
from pytest_laguna.evidence.endpoint.plan import (
    CaptureCounts,
    EndpointPlan,
    Selector,
    Teacher,
)
from pytest_laguna.verdict import Verdict
from tests.endpoint_legs import METADATA_20260725

RECORD = Path(__file__).parents[2] / "data" / "legs" / "three-prompts.json"
LEG = LegRecord.model_validate_json(RECORD.read_bytes(), strict=True)
TEACHER = Teacher.of(LEG.rows, "0" * 64)
PLAN = EndpointPlan(
    suite=LEG.request.suite,
    selector=Selector(flag="VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS", control="0", treatment="1"),
    topology=CaptureCounts(ranks=1, graphs=49, breaks=48, target_layers=48),
    validator="native",
    decides="exactness",
    thresholds=METADATA_20260725.model_copy(update={"rows_won": 3}),
)


def findings(leg: LegRecord) -> dict[str, tuple[Verdict, str]]:
    found = {rule: check(LegCase(PLAN, TEACHER, leg)) for rule, check in LEG_RULES.items()}
    return {rule: finding for rule, finding in found.items() if finding is not None}


def test_a_real_leg_keeps_every_rule_that_three_short_prompts_can() -> None:
    """Its answers have 24 tokens and none of its prompts is long: no rate, and no rollover row."""
    assert {rule: verdict for rule, (verdict, _) in findings(LEG).items()} == {
        "rows-complete": Verdict.VOID,
        "rollover": Verdict.VOID,
        "figures-taken": Verdict.NOT_PROVEN,
    }


def test_a_counter_of_a_real_server_that_lies_is_found() -> None:
    after = LEG.counters_after.model_copy(update={"generated_tokens": 71})
    found = findings(LEG.model_copy(update={"counters_after": after}))
    assert found["counters-add-up"] == (Verdict.VOID, "generated tokens: seen 71; expected 72")
