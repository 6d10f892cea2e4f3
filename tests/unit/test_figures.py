# SPDX-License-Identifier: Apache-2.0
"""The figures that a report for machines carries are those of the analysis, to the last digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.evidence.endpoint.plan import Repetition
from pytest_laguna.experiments.diagnostic import diagnosis_figures
from pytest_laguna.experiments.endpoint import endpoint_figures
from tests import diagnostic_root, endpoint_legs


def test_of_an_endpoint_campaign() -> None:
    legs = endpoint_legs.records(endpoint_legs.legs(endpoint_legs.metadata_starts()))
    plan, teacher = endpoint_legs.plan(), endpoint_legs.TEACHER
    analysis = analyse_endpoint(plan, legs, teacher=teacher, campaign=endpoint_legs.CAMPAIGN)
    figures = endpoint_figures(analysis)
    assert analysis.promotion is not None
    assert float(figures["lower_candidate_start"]) == analysis.promotion.value
    assert float(figures["lower_candidate_start_conventional"]) == analysis.promotion.value_conventional
    assert (figures["record"], figures["practical_floor"]) == ("92.16352215694299", "92.393930962335")
    assert "conclusion" not in figures
    assert (figures["teacher_exact"], figures["cross_leg_exact"]) == ("52/52", "39/39")
    assert (figures["disposition"], figures["promoted"]) == ("record_candidate", "true")
    for leg in analysis.legs:
        assert float(figures[f"headline.1.{leg.leg}"]) == leg.headline
        assert float(figures[f"headline_conventional.1.{leg.leg}"]) == leg.headline_conventional
    for pair in analysis.pairs:
        assert float(figures[f"headline_change_percent.1.{pair.candidate}"]) == pair.headline_change_percent
    assert endpoint_figures(analyse_endpoint(plan, [], teacher=teacher, campaign=endpoint_legs.CAMPAIGN)) == {
        "label": "single block",
        "null": "false",
        "decides": "exactness+timing",
        "disposition": "incomplete",
        "published": "NOT_PROVEN",
        "teacher_exact": "0/52",
        "cross_leg_exact": "0/39",
    }


@pytest.mark.parametrize("null", [False, True], ids=["treatment", "null"])
def test_of_several_blocks(null: bool) -> None:
    made = endpoint_legs.null_starts() if null else endpoint_legs.metadata_starts()
    several = [endpoint_legs.scaled(made, A2=1 + noise, B2=1 - noise) for noise in (0.001, -0.001)]
    repetition = Repetition(blocks=2, margin_percent=0.5, confidence=0.95, sign_flip_level=0.25, effect_percent=1.0)
    analysis = analyse_endpoint(
        endpoint_legs.plan(repetition=repetition, null=null),
        endpoint_legs.records(endpoint_legs.blocks(several, null=null)),
        teacher=endpoint_legs.TEACHER,
        campaign=endpoint_legs.CAMPAIGN,
    )
    figures, seen = endpoint_figures(analysis), analysis.repetition
    assert seen is not None
    told = ("gain_percent", "interval_low_percent", "interval_high_percent", "margin_percent", "sign_flip_p")
    expected = [seen.gain_percent, seen.low_percent, seen.high_percent, seen.margin_percent, seen.sign_flip_p]
    assert [float(figures[name]) for name in told] == expected
    assert (figures["conclusion"], float(figures["power"])) == (seen.conclusion.value, seen.power)
    assert (figures["label"], figures["null"]) == ("null campaign, 2 blocks" if null else "2 blocks", str(null).lower())
    assert figures.get("null_verdict") == (str(analysis.null_verdict) if null else None)


def test_a_power_that_nothing_varies_for_is_unknown_and_a_floor_that_is_absent_is_none() -> None:
    repetition = Repetition(blocks=2, margin_percent=0.5, confidence=0.95, sign_flip_level=0.25, effect_percent=1.0)
    starts = endpoint_legs.scaled(endpoint_legs.null_starts(), B1=1.03, B2=1.03)
    thresholds = endpoint_legs.METADATA_20260725.model_copy(update={"practical_floor": None})
    figures = endpoint_figures(
        analyse_endpoint(
            endpoint_legs.plan(repetition=repetition, thresholds=thresholds),
            endpoint_legs.records(endpoint_legs.blocks([starts, starts])),
            teacher=endpoint_legs.TEACHER,
            campaign=endpoint_legs.CAMPAIGN,
        )
    )
    assert (figures["power"], figures["practical_floor"]) == ("unknown", "none")


def test_of_a_diagnostic(tmp_path: Path) -> None:
    diagnosis = diagnostic_root.judged(diagnostic_root.published(), tmp_path)
    figures = diagnosis_figures(diagnosis)
    assert diagnosis.timing is not None
    assert {name: float(figures[f"saving_ns.{name}"]) for name in diagnosis.timing} == {
        name: gate.saving for name, gate in diagnosis.timing.items()
    }
    assert (figures["notice"], figures["published"]) == (diagnosis.notice, diagnosis.published)
    assert figures["decides"] == "exactness+timing"


def test_of_a_diagnostic_that_the_published_rules_call_nothing(tmp_path: Path) -> None:
    tree = diagnostic_root.good()
    diagnostic_root.at("arms/q1/record.json", "cached_tokens", 1)(tree)
    assert diagnosis_figures(diagnostic_root.judged(tree, tmp_path))["published"] == "none"
