# SPDX-License-Identifier: Apache-2.0
"""The figures that a report for machines carries are those of the analysis, to the last digit."""

from __future__ import annotations

from pathlib import Path

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.analysis.summary import diagnosis_figures, endpoint_figures
from tests import diagnostic_root, endpoint_legs


def test_of_an_endpoint_campaign() -> None:
    legs = endpoint_legs.records(endpoint_legs.legs(endpoint_legs.metadata_starts()))
    plan, teacher = endpoint_legs.plan(), endpoint_legs.TEACHER
    analysis = analyse_endpoint(plan, legs, teacher=teacher, campaign=endpoint_legs.CAMPAIGN)
    figures = endpoint_figures(analysis)
    assert analysis.promotion is not None
    assert float(figures["lower_candidate_start"]) == analysis.promotion.value
    assert (figures["teacher_exact"], figures["cross_leg_exact"]) == ("52/52", "39/39")
    assert (figures["disposition"], figures["promoted"]) == ("record_candidate", "true")
    for leg in analysis.legs:
        assert float(figures[f"headline.1.{leg.leg}"]) == leg.headline
    for pair in analysis.pairs:
        assert float(figures[f"headline_change_percent.1.{pair.candidate}"]) == pair.headline_change_percent
    assert endpoint_figures(analyse_endpoint(plan, [], teacher=teacher, campaign=endpoint_legs.CAMPAIGN)) == {
        "label": "single block",
        "decides": "exactness+timing",
        "disposition": "incomplete",
        "published": "NOT_PROVEN",
        "teacher_exact": "0/0",
        "cross_leg_exact": "0/0",
    }


def test_of_a_diagnostic(tmp_path: Path) -> None:
    diagnosis = diagnostic_root.judged(diagnostic_root.published(), tmp_path)
    figures = diagnosis_figures(diagnosis)
    assert diagnosis.timing is not None
    assert {name: float(figures[f"saving_ns.{name}"]) for name in diagnosis.timing} == {
        name: gate.saving for name, gate in diagnosis.timing.items()
    }
    assert (figures["notice"], figures["published"]) == (diagnosis.notice, diagnosis.published)
