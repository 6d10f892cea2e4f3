# SPDX-License-Identifier: Apache-2.0
"""Applies every rule over legs, adjacent pairs and the campaign to the recorded legs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from pytest_laguna.analysis.endpoint.campaign_rules import CAMPAIGN_RULES
from pytest_laguna.analysis.endpoint.case import CAMPAIGN, CampaignCase, leg_place
from pytest_laguna.analysis.endpoint.figures import ADJACENT, leg_figures, pair_figures
from pytest_laguna.analysis.endpoint.leg_rules import LEG_RULES
from pytest_laguna.analysis.endpoint.pair_rules import PAIR_RULES, control_health, same_prompts
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence.endpoint.analysis import LegFigures, PairFigures
from pytest_laguna.evidence.endpoint.leg import LegName, LegRecord

Checked: TypeAlias = tuple[str, str, Finding | None]
"""Rule id, place and finding of one check."""
Figures: TypeAlias = Mapping[tuple[int, LegName], LegFigures]


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """Findings of the rules, with the figures of legs and pairs."""

    legs: Figures
    pairs: Sequence[PairFigures]
    checked: Sequence[Checked]

    @property
    def against(self) -> list[str]:
        """Findings, one line each."""
        return [f"{where}: {rule}: {found[1]}" for rule, where, found in self.checked if found is not None]

    def median_throughputs(self, block: int) -> dict[LegName, float]:
        """Legacy median throughput of each leg with figures in a block, in tokens/s."""
        return {name: leg.headline for (number, name), leg in self.legs.items() if number == block}


def judge(case: CampaignCase) -> Judged:
    """Apply every rule to the recorded legs, their adjacent pairs and the campaign."""
    figures = {(taken.block, taken.leg): taken for leg in reversed(case.legs) if (taken := leg_figures(leg))}
    neighbours = list(_neighbours(case))
    pairs = [pair for control, candidate in neighbours if (pair := _pair_figures(figures, control, candidate))]
    checked: list[Checked] = [
        (rule, leg.place, check(leg)) for leg in case.cases for rule, check in LEG_RULES.items() if case.asks(rule)
    ]
    checked += [(rule, CAMPAIGN, check(case)) for rule, check in CAMPAIGN_RULES.items() if case.asks(rule)]
    checked += [
        ("same-prompts", pair_place(candidate.request.block, candidate.request.leg), same_prompts(control, candidate))
        for control, candidate in neighbours
    ]
    checked += _of_figures(case, figures, pairs)
    return Judged({key: figures[key] for key in sorted(figures)}, pairs, checked)


def pair_place(block: int, candidate: LegName) -> str:
    """Place of an adjacent pair in a finding, as in ``block 1 B1-A1``."""
    return f"{leg_place(block, candidate)}-A{candidate[1]}"


def _neighbours(case: CampaignCase) -> Iterator[tuple[LegRecord, LegRecord]]:
    """Adjacent controls and candidates, never other pairs."""
    for block in range(1, case.plan.blocks + 1):
        for names in ADJACENT:
            control, candidate = (case.leg(block, name) for name in names)
            if control is not None and candidate is not None:
                yield control, candidate


def _pair_figures(figures: Figures, control: LegRecord, candidate: LegRecord) -> PairFigures | None:
    """Figures of a pair; None without both legs' figures over as many rows, a finding of a rule over legs."""
    taken = [figures.get((leg.request.block, leg.request.leg)) for leg in (control, candidate)]
    if taken[0] is None or taken[1] is None or len(taken[0].row_rates) != len(taken[1].row_rates):
        return None
    return pair_figures(taken[0], taken[1])


def _of_figures(case: CampaignCase, figures: Figures, pairs: Sequence[PairFigures]) -> Iterator[Checked]:
    thresholds = case.plan.thresholds
    for pair in pairs:
        for rule, check in PAIR_RULES.items():
            yield rule, pair_place(pair.block, pair.candidate), check(pair, thresholds)
    if thresholds.control_health_percent is None:
        return
    for leg in figures.values():
        if leg.leg.startswith("A"):
            found = control_health(leg, thresholds.record, thresholds.control_health_percent)
            yield "control-health", leg_place(leg.block, leg.leg), found
