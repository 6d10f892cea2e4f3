# SPDX-License-Identifier: Apache-2.0
"""The current-stream event profile of gate 2: one teacher, one profiled replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_laguna.analysis.events.diagnosis import analyse_events
from pytest_laguna.analysis.findings import RuleLine
from pytest_laguna.analysis.wording import shown_in_places
from pytest_laguna.evidence.diagnostic.analysis import NOTICE
from pytest_laguna.evidence.events.analysis import EventAnalysis, EventPlan
from pytest_laguna.evidence.events.reader import EventEvidence, read_events
from pytest_laguna.evidence.experiments import EVENTS
from pytest_laguna.evidence.reading import TARGET_CONFIG, present, read_as, read_config
from pytest_laguna.experiments.experiment import Attempted, Experiment, rule_lines
from pytest_laguna.experiments.plans import plan_events


class EventsExperiment(Experiment[EventPlan, EventEvidence, EventAnalysis]):
    """The event profile."""

    row = EVENTS
    plan_form = EventPlan

    def plan(self, attempted: Attempted, place: Path) -> EventPlan:
        config = present(read_as(place, TARGET_CONFIG, read_config))
        return plan_events(attempted.campaign, attempted.start.lane, attempted.cards, config)

    def read(self, attempted: Attempted, place: Path, plan: EventPlan) -> EventEvidence:
        del attempted
        return read_events(place, plan.arms)

    def judge(self, plan: EventPlan, evidence: EventEvidence) -> EventAnalysis:
        return analyse_events(plan, evidence)

    def rules(self, analysis: EventAnalysis) -> Mapping[str, Sequence[RuleLine]]:
        return rule_lines(analysis.clauses)

    def figures(self, analysis: EventAnalysis) -> dict[str, str]:
        del analysis
        return {}

    def notice(self, analysis: EventAnalysis) -> str:
        del analysis
        return NOTICE

    def lines(self, analysis: EventAnalysis) -> tuple[Sequence[str], Iterator[str]]:
        return [self.notice(analysis)], _profile_lines(analysis)


EXPERIMENT = EventsExperiment()


def _profile_lines(analysis: EventAnalysis) -> Iterator[str]:
    """Yield the selected rank with its categories, in nanoseconds and per cent."""
    if analysis.selected is not None:
        chosen = analysis.selected
        yield f"slowest rank {chosen.rank} of {len(analysis.rank_total_ns)}: {chosen.total_ns} ns by {chosen.clock}"
        for kind, nanoseconds in chosen.category_ns.items():
            share = "withheld" if chosen.category_percent is None else f"{chosen.category_percent[kind]:.6f} %"
            yield f"{kind:<28} {nanoseconds} ns, {share}"
    figures = analysis.fitness_figures
    ratio = ""
    if figures is not None:
        ratio = f", {shown_in_places(figures.slowdown, figures.limit, 3)} times with a limit of {figures.limit}"
    yield f"instrument: {analysis.fitness}{ratio}; device work only: {analysis.device_work_only}"
    yield f"status: {analysis.status}; next: {analysis.action}; no endpoint and no submission is authorised"
