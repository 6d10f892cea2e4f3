# SPDX-License-Identifier: Apache-2.0
"""The few figures of a gate's own analysis that a report for machines carries, by name, as text."""

from __future__ import annotations

from pytest_laguna.evidence.diagnostic import Diagnosis
from pytest_laguna.evidence.endpoint_analysis import EndpointAnalysis


def diagnosis_figures(diagnosis: Diagnosis) -> dict[str, str]:
    """What decides, what the published rules say, and the saving of each timing gate in nanoseconds."""
    figures: dict[str, str] = {
        "notice": diagnosis.notice,
        "decides": diagnosis.decides,
        "published": diagnosis.published or "none",
    }
    for name, gate in (diagnosis.timing or {}).items():
        figures[f"saving_ns.{name}"] = repr(gate.saving)
    return figures


def endpoint_figures(analysis: EndpointAnalysis) -> dict[str, str]:
    """What decides, what the published rules make of it, exact rows, headlines, pairs, promotion; rates are legacy."""
    exact = analysis.exactness
    figures = {
        "label": analysis.label,
        "decides": analysis.decides,
        "disposition": analysis.disposition.value,
        "published": analysis.published_verdict.value,
        "teacher_exact": f"{exact.teacher}/{exact.teacher_planned}",
        "cross_leg_exact": f"{exact.cross_leg}/{exact.cross_leg_planned}",
    }
    for leg in analysis.legs:
        figures[f"headline.{leg.block}.{leg.leg}"] = repr(leg.headline)
    for pair in analysis.pairs:
        figures[f"headline_change_percent.{pair.block}.{pair.candidate}"] = repr(pair.headline_change_percent)
    if analysis.promotion is not None:
        figures["lower_candidate_start"] = repr(analysis.promotion.value)
        figures["promoted"] = str(analysis.promotion.promoted).lower()
    return figures
