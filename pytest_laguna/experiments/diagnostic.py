# SPDX-License-Identifier: Apache-2.0
"""The exact diagnostic of gate 2: parity packets, four arms, replay profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_laguna.analysis.diagnostic.diagnosis import diagnose
from pytest_laguna.analysis.findings import RuleLine
from pytest_laguna.evidence.diagnostic.analysis import Comparison, Diagnosis, DiagnosticPlan
from pytest_laguna.evidence.diagnostic.reader import DiagnosticEvidence, read_diagnostic
from pytest_laguna.evidence.experiments import DIAGNOSTIC
from pytest_laguna.evidence.reading import TARGET_CONFIG, present, read_as, read_config
from pytest_laguna.experiments.experiment import Attempted, Experiment, rule_lines
from pytest_laguna.experiments.plans import plan_diagnostic


class DiagnosticExperiment(Experiment[DiagnosticPlan, DiagnosticEvidence, Diagnosis]):
    """The exact diagnostic."""

    row = DIAGNOSTIC
    plan_form = DiagnosticPlan

    def plan(self, attempted: Attempted, place: Path) -> DiagnosticPlan:
        config = present(read_as(place, TARGET_CONFIG, read_config))
        return plan_diagnostic(attempted.campaign, attempted.start.lane, attempted.cards, config)

    def read(self, attempted: Attempted, place: Path, plan: DiagnosticPlan) -> DiagnosticEvidence:
        del attempted, plan
        return read_diagnostic(place)

    def judge(self, plan: DiagnosticPlan, evidence: DiagnosticEvidence) -> Diagnosis:
        return diagnose(plan, evidence)

    def rules(self, analysis: Diagnosis) -> Mapping[str, Sequence[RuleLine]]:
        return rule_lines(analysis.clauses)

    def figures(self, analysis: Diagnosis) -> dict[str, str]:
        return diagnosis_figures(analysis)

    def notice(self, analysis: Diagnosis) -> str:
        return analysis.notice

    def lines(self, analysis: Diagnosis) -> tuple[Sequence[str], Iterator[str]]:
        return [self.notice(analysis)], _timing_lines(analysis)


EXPERIMENT = DiagnosticExperiment()


def diagnosis_figures(diagnosis: Diagnosis) -> dict[str, str]:
    """Return the decision, the published verdict, and the saving of each timing gate in nanoseconds."""
    figures: dict[str, str] = {
        "notice": diagnosis.notice,
        "decides": diagnosis.decides,
        "published": diagnosis.published or "none",
    }
    for name, gate in (diagnosis.timing or {}).items():
        figures[f"saving_ns.{name}"] = repr(gate.saving)
    return figures


def _timing_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the timing gates with their intervals, in milliseconds."""
    for name, gate in (diagnosis.timing or {}).items():
        yield _timing_line(name, gate)
    if diagnosis.published is not None:
        yield f"published rules: {diagnosis.published}; {diagnosis.decides} decides on this lane"


def _timing_line(name: str, gate: Comparison) -> str:
    figures = f"control {_milliseconds(gate.control)}, candidate {_milliseconds(gate.candidate)}"
    saving = f"saving {_milliseconds(gate.saving)}"
    if gate.interval is not None:
        low, high = (_milliseconds(end) for end in gate.interval)
        saving += f" (95 %: {low} to {high})"
    if gate.detectable is not None:
        saving += f", minimum detectable effect {_milliseconds(gate.detectable)}"
    return f"{name:<28} {figures}, {saving} ms: {'passed' if gate.passed else 'not passed'}"


def _milliseconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.6f}"
