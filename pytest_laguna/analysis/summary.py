# SPDX-License-Identifier: Apache-2.0
"""The few figures of a gate's own analysis that a report for machines carries, by name, as text."""

from __future__ import annotations

from pytest_laguna.evidence.diagnostic.analysis import Diagnosis
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis, Promotion, RepetitionFigures


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
    """What decides and what was found; rates in tokens/s, legacy where nothing else is said, changes in per cent."""
    exact, null = analysis.exactness, analysis.null_verdict
    figures = {
        "label": analysis.label,
        "null": _word(null is not None),
        "decides": analysis.decides,
        "disposition": analysis.disposition.value,
        "published": analysis.published_verdict.value,
        "teacher_exact": f"{exact.teacher}/{exact.teacher_planned}",
        "cross_leg_exact": f"{exact.cross_leg}/{exact.cross_leg_planned}",
    }
    if null is not None:
        figures["null_verdict"] = null.value
    for leg in analysis.legs:
        figures[f"headline.{leg.block}.{leg.leg}"] = repr(leg.headline)
        figures[f"headline_conventional.{leg.block}.{leg.leg}"] = repr(leg.headline_conventional)
    for pair in analysis.pairs:
        figures[f"headline_change_percent.{pair.block}.{pair.candidate}"] = repr(pair.headline_change_percent)
    if analysis.promotion is not None:
        figures |= _promotion_figures(analysis.promotion)
    if analysis.repetition is not None:
        figures |= _repetition_figures(analysis.repetition)
    return figures


def _promotion_figures(promotion: Promotion) -> dict[str, str]:
    return {
        "lower_candidate_start": repr(promotion.value),
        "lower_candidate_start_conventional": repr(promotion.value_conventional),
        "record": repr(promotion.record),
        "practical_floor": "none" if promotion.practical_floor is None else repr(promotion.practical_floor),
        "promoted": _word(promotion.promoted),
    }


def _repetition_figures(several: RepetitionFigures) -> dict[str, str]:
    return {
        "gain_percent": repr(several.gain_percent),
        "interval_low_percent": repr(several.low_percent),
        "interval_high_percent": repr(several.high_percent),
        "margin_percent": repr(several.margin_percent),
        "sign_flip_p": repr(several.sign_flip_p),
        "conclusion": several.conclusion.value,
        "power": "unknown" if several.power is None else repr(several.power),
    }


def _word(value: bool) -> str:  # noqa: FBT001 - the one thing that is said
    return str(value).lower()
