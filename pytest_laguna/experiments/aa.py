# SPDX-License-Identifier: Apache-2.0
"""A/A: starts of the control alone, from which gate 1 measures the noise of the timing rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_laguna.analysis.aa.noise import Start, analyse_null, judge_null, null_figures
from pytest_laguna.analysis.diagnostic.replay_checks import CONTAINMENT, preparation_checks
from pytest_laguna.analysis.diagnostic.replay_profile import reduce_profiles
from pytest_laguna.analysis.findings import Finding, RuleLine
from pytest_laguna.evidence import root
from pytest_laguna.evidence.aa.rehearsal import NULL_TIMING, NullAnalysis, NullPlan, read_starts, rehearsed_attempt
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.evidence.experiments import AA, ENDPOINT
from pytest_laguna.evidence.reading import TARGET_CONFIG, read_config
from pytest_laguna.evidence.schema_v1 import read_raised
from pytest_laguna.experiments.experiment import Attempted, Experiment
from pytest_laguna.experiments.plans import plan_null


class AAEvidence(NamedTuple):
    """The starts in their order, and the analysis of the rehearsed A/A endpoint block, if gate 3 is declared."""

    starts: Sequence[Start]
    endpoint: EndpointAnalysis | None


class AAExperiment(Experiment[NullPlan, AAEvidence, NullAnalysis]):
    """Control against control."""

    row = AA
    plan_form = NullPlan

    def plan(self, attempted: Attempted, place: Path) -> NullPlan:
        config = read_config(place / TARGET_CONFIG)
        return plan_null(attempted.campaign, attempted.start.lane, config)

    def read(self, attempted: Attempted, place: Path, plan: NullPlan) -> AAEvidence:
        checks = {**CONTAINMENT, **preparation_checks(Arm.GRAPH_CONTROL, plan.target_layers)}
        starts = [Start(record, reduce_profiles(profiles, checks)) for record, profiles in read_starts(place)]
        if ENDPOINT.gate not in attempted.campaign.gates:
            return AAEvidence(starts, None)
        block = rehearsed_attempt(attempted.evidence, attempted.campaign.name, ENDPOINT.gate, null=True)
        path = block / root.EVIDENCE / ENDPOINT.directory / root.ANALYSIS
        return AAEvidence(starts, read_raised(path, EndpointAnalysis))

    def judge(self, plan: NullPlan, evidence: AAEvidence) -> NullAnalysis:
        return analyse_null(plan, evidence.starts, evidence.endpoint)

    def rules(self, analysis: NullAnalysis) -> Mapping[str, Sequence[RuleLine]]:
        del analysis  # its findings carry no verdict of their own
        return {}

    def figures(self, analysis: NullAnalysis) -> dict[str, str]:
        return null_figures(analysis)

    def notice(self, analysis: NullAnalysis) -> str:
        del analysis
        return "control against control"

    def findings(self, analysis: NullAnalysis, evidence: AAEvidence | None = None) -> Mapping[str, Finding | None]:
        # A passed gate 1 may run again, so a recorded analysis alone closes nothing.
        return {} if evidence is None else {NULL_TIMING: judge_null(analysis)}

    def lines(self, analysis: NullAnalysis) -> tuple[Sequence[str], Iterator[str]]:
        return [self.notice(analysis)], super().lines(analysis)[1]


EXPERIMENT = AAExperiment()
