# SPDX-License-Identifier: Apache-2.0
"""A fifth experiment, as small as one can be: does a sum that a run left equal the sum of the planned addends?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from pytest_laguna.analysis.findings import RuleFinding, RuleLine
from pytest_laguna.evidence.diagnostic.analysis import RuleResult
from pytest_laguna.evidence.experiments import Row
from pytest_laguna.evidence.reading import Missing, present, read_piece
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.experiments.experiment import Attempted, Experiment, rule_lines
from pytest_laguna.verdict import Verdict


class SumPlan(Schema):
    addends: list[int]


class SumRecord(Schema):
    total: int


class SumAnalysis(Schema):
    file_schema: Annotated[Literal["sum-v1"], pydantic.Field(alias="schema")] = "sum-v1"
    clauses: dict[str, dict[str, RuleResult]]


def adds_up(plan: SumPlan, record: SumRecord) -> RuleFinding:
    """Rule ``adds-up``."""
    expected = sum(plan.addends)
    return None if record.total == expected else (Verdict.FAIL, f"total: seen {record.total}; expected {expected}")


class SumExperiment(Experiment[SumPlan, SumRecord | Missing, SumAnalysis]):
    row = Row(
        name="sum",
        gate=2,
        directory="sum",
        clauses=("only",),
        analysis=SumAnalysis,
        implementation="tests.fifth_experiment:EXPERIMENT",
        asked=lambda campaign, _: "only" in campaign.gate_clauses(2),
        files={"only": ("sum/*.json",)},
    )
    plan_form = SumPlan

    def plan(self, attempted: Attempted, place: Path) -> SumPlan:  # noqa: ARG002 - the interface
        return SumPlan(addends=[attempted.start.gate, len(attempted.cards)])

    def read(self, attempted: Attempted, place: Path, plan: SumPlan) -> SumRecord | Missing:  # noqa: ARG002
        return read_piece(place, "record.json", SumRecord)

    def judge(self, plan: SumPlan, evidence: SumRecord | Missing) -> SumAnalysis:
        verdict, reason = adds_up(plan, present(evidence)) or (Verdict.PASS, "")
        return SumAnalysis(clauses={"only": {"adds-up": RuleResult(verdict=verdict, reason=reason)}})

    def rules(self, analysis: SumAnalysis) -> Mapping[str, Sequence[RuleLine]]:
        return rule_lines(analysis.clauses)

    def figures(self, analysis: SumAnalysis) -> dict[str, str]:
        return {"rules": str(len(analysis.clauses))}

    def notice(self, analysis: SumAnalysis) -> str:  # noqa: ARG002
        return "sums only"


EXPERIMENT = SumExperiment()
