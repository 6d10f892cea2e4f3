# SPDX-License-Identifier: Apache-2.0
"""Plan and evidence of a campaign with arms, and the judge of rules over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeAlias, TypeVar

from pytest_laguna.analysis import root_cause
from pytest_laguna.analysis.findings import Finding, RuleFinding, decide_clause
from pytest_laguna.evidence.arms.arm_record import ArmRecord
from pytest_laguna.evidence.arms.evidence import ArmsEvidence
from pytest_laguna.evidence.arms.plan import ArmsPlan
from pytest_laguna.evidence.diagnostic.analysis import RuleResult
from pytest_laguna.evidence.reading import Missing
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict

Content = TypeVar("Content")
Judged = TypeVar("Judged")
Plan_co = TypeVar("Plan_co", bound=ArmsPlan, covariant=True)
Evidence_co = TypeVar("Evidence_co", bound=ArmsEvidence, covariant=True)


@dataclasses.dataclass(frozen=True)
class ArmsCase(Generic[Plan_co, Evidence_co]):
    """Plan and evidence."""

    plan: Plan_co
    evidence: Evidence_co

    def record(self, arm: str) -> ArmRecord:
        """Return the record of an arm.

        Raises:
            NotProvenError: it left no record; the reason names the cause, or the first failure before it.
            UnusableEvidenceError: its record cannot be used.
        """
        return self.piece(self.evidence.arms[arm].record)

    def records(self, arms: Iterable[str] | None = None) -> Iterator[tuple[str, ArmRecord]]:
        """Yield arms with their records, all of them in their order by default; raises as ``record``."""
        return ((arm, self.record(arm)) for arm in (self.evidence.arms if arms is None else arms))

    def piece(self, piece: Content | Missing) -> Content:
        """Return the content of a piece; raises as ``record``."""
        return root_cause.found(piece, self.evidence.runs())

    def first_failure(self) -> str:
        """Return the first failure of any run as the end of a line; empty if there is none."""
        return root_cause.first_failure(self.evidence.runs())


AnyCase: TypeAlias = ArmsCase[ArmsPlan, ArmsEvidence]
AnyRule: TypeAlias = Callable[[AnyCase], RuleFinding]
"""Rule of every campaign with arms."""


def judge(
    rules: Mapping[str, Mapping[str, Callable[[Judged], RuleFinding]]], case: Judged
) -> dict[str, dict[str, RuleResult]]:
    """Apply every rule of every clause, whatever the others find; results by clause and rule."""
    return {clause: {name: _result(rule, case) for name, rule in named.items()} for clause, named in rules.items()}


def _result(rule: Callable[[Judged], RuleFinding], case: Judged) -> RuleResult:
    try:
        finding = rule(case)
    except NotProvenError as error:
        finding = Verdict.NOT_PROVEN, str(error)
    except UnusableEvidenceError as error:
        finding = Verdict.VOID, str(error)
    if finding is None:
        return RuleResult(verdict=Verdict.PASS, reason="")
    return RuleResult(verdict=finding[0], reason=finding[1])


def clause_verdict(results: Mapping[str, RuleResult]) -> Finding:
    """Return the finding of one clause; ``results`` as ``judge`` returns them."""
    return decide_clause([(name, result.verdict, result.reason) for name, result in results.items()])


def exercised(results: Mapping[str, RuleResult]) -> str:
    """Return the names of the proving rules of one clause's results, as a part of a sentence."""
    return ", ".join(name for name, result in results.items() if result.verdict is not None)
