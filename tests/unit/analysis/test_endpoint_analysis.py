# SPDX-License-Identifier: Apache-2.0
"""The analysis as a whole: after each leg, over both published campaigns, and over several blocks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pydantic
import pytest

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.analysis.endpoint.analyse import RULES
from pytest_laguna.analysis.endpoint.campaign_rules import CAMPAIGN_RULES, due_legs
from pytest_laguna.analysis.endpoint.case import CampaignCase, LegCase
from pytest_laguna.analysis.endpoint.counter_rules import acceptance_possible
from pytest_laguna.analysis.endpoint.judged import Judged, judge
from pytest_laguna.analysis.endpoint.repetition import conclude, null_narrow, power
from pytest_laguna.analysis.statistics import t_interval
from pytest_laguna.evidence.endpoint.analysis import Conclusion, Disposition, EndpointAnalysis, RepetitionFigures
from pytest_laguna.evidence.endpoint.leg import LegRecord
from pytest_laguna.evidence.endpoint.plan import (
    ABBA,
    BAAB,
    EndpointPlan,
    Repetition,
    block_orders,
    planned_legs,
)
from pytest_laguna.evidence.schemas import parse_model
from pytest_laguna.verdict import Verdict
from tests import endpoint_legs as lab
from tests.endpoint_legs import BREAKABLE_GRAPH_20260724

METADATA = lab.metadata_starts()
REPETITION = Repetition(blocks=6, margin_percent=0.5, confidence=0.95, sign_flip_level=0.025, effect_percent=1.0)
DIGESTS = [f"{number:064x}" for number in range(200)]


def analyse(legs: list[lab.Leg], plan: EndpointPlan | None = None) -> EndpointAnalysis:
    return analyse_endpoint(plan or lab.plan(), lab.records(legs), teacher=lab.TEACHER, campaign=lab.CAMPAIGN)


def conclusion(contrasts: list[float], repetition: Repetition) -> Any:
    """What follows from blocks of these contrasts."""
    headlines: Any = [{"A1": 100.0, "A2": 100.0, "B1": rate, "B2": rate} for rate in map(_rate, contrasts)]
    return conclude(repetition, block_orders(lab.CAMPAIGN, repetition.blocks), headlines)


def _rate(contrast: float) -> float:
    return 100.0 * math.exp(contrast)


@pytest.mark.parametrize(
    ("made", "plan", "value"),
    [
        (lab.metadata_starts, lab.plan(), 94.92003934159611),
        (lab.graph_starts, lab.plan(thresholds=BREAKABLE_GRAPH_20260724), 92.16352215694299),
    ],
    ids=["metadata", "graph"],
)
def test_legs_as_published_are_a_record(made: Any, plan: EndpointPlan, value: float) -> None:
    analysis = analyse(lab.legs(made()), plan)
    assert (analysis.verdict, analysis.published_verdict) == (Verdict.PASS, Verdict.PASS)
    assert analysis.disposition is Disposition.RECORD
    assert analysis.label == "single block"
    assert (analysis.exactness.teacher, analysis.exactness.teacher_planned) == (52, 52)
    assert (analysis.exactness.cross_leg, analysis.exactness.cross_leg_planned) == (39, 39)
    assert analysis.promotion is not None
    assert analysis.promotion.promoted
    assert analysis.promotion.value == pytest.approx(value, rel=1e-8)
    assert [(pair.control, pair.candidate) for pair in analysis.pairs] == [("A1", "B1"), ("A2", "B2")]
    assert analysis.declared["block 1 B2"]["no-retry"] == "what showed no_retry"


def test_the_analysis_is_a_function_of_the_legs_and_reads_back() -> None:
    first, second = (analyse(lab.legs(METADATA)) for _ in range(2))
    assert first == second
    assert parse_model(first.canonical(), EndpointAnalysis, "analysis").canonical() == first.canonical()


@pytest.mark.parametrize(
    ("count", "disposition", "reason"),
    [
        (0, Disposition.INCOMPLETE, "block 1 A1: seen no record; expected all of 4 legs"),
        (1, Disposition.INCOMPLETE, "block 1 B1: seen no record"),
        (2, Disposition.PHASE_1_PASSED, "block 1 B2: seen no record"),
        (
            3,
            Disposition.PHASE_1_PASSED,
            "block 1 A2: seen no record, though one of B2; expected it for any result of B2",
        ),
    ],
)
def test_missing_legs_prove_nothing(count: int, disposition: Disposition, reason: str) -> None:
    analysis = analyse(lab.legs(METADATA)[:count])
    assert (analysis.verdict, analysis.disposition) == (Verdict.NOT_PROVEN, disposition)
    assert reason in analysis.reason
    assert analysis.promotion is None
    assert analysis.phase_1 is None or not analysis.phase_1.stops


def test_a_failed_phase_1_is_a_whole_campaign_of_two_legs() -> None:
    analysis = analyse(lab.legs(lab.scaled(METADATA, B1=0.97))[:2])
    assert (analysis.verdict, analysis.disposition) == (Verdict.STOP, Disposition.PHASE_1_FAILED)
    assert analysis.phase_1 is not None
    assert analysis.phase_1.stops
    assert any("headline" in reason for reason in analysis.phase_1.reasons)
    assert analysis.reason.startswith("block 1 B1-A1: headline: median throughput: seen a gain of -0.5")


def test_an_inexact_phase_1_stops_too_and_is_a_failure() -> None:
    legs = lab.legs(METADATA)[:2]
    legs[1]["rows"][4]["usage"]["cached_tokens"] = 1
    analysis = analyse(legs)
    assert analysis.phase_1 is not None
    assert analysis.phase_1.stops
    assert analysis.verdict is Verdict.VOID
    assert analysis.exactness.teacher == 25


def test_phase_1_does_not_look_at_later_legs() -> None:
    analysis = analyse(lab.legs(lab.scaled(METADATA, B2=0.9)))
    assert analysis.phase_1 is not None
    assert analysis.phase_1.passed
    assert (analysis.verdict, analysis.disposition) == (Verdict.STOP, Disposition.NEGATIVE)


def test_pairs_are_adjacent_and_never_others() -> None:
    """B1 beats A1, and is slower than the far A2; only the near control counts."""
    analysis = analyse(lab.legs(lab.scaled(METADATA, A2=1.05, B2=1.05)), lab.plan(thresholds=BREAKABLE_GRAPH_20260724))
    first, second = analysis.pairs
    assert analysis.legs[1].headline > analysis.legs[2].headline
    assert first.headline_change_percent == pytest.approx(2.5612442236238477, rel=1e-7)
    assert second.headline_change_percent == pytest.approx(2.3564004628315667, rel=1e-7)
    assert analysis.verdict is Verdict.PASS


def test_one_block_is_abba() -> None:
    assert {tuple(block_orders(digest, 1)) for digest in DIGESTS} == {(ABBA,)}
    assert planned_legs(lab.CAMPAIGN, 1) == [(1, "A1"), (1, "B1"), (1, "B2"), (1, "A2")]


@pytest.mark.parametrize("blocks", [2, 4, 6, 16])
def test_orders_are_balanced_and_drawn_by_the_digest(blocks: int) -> None:
    drawn = [block_orders(digest, blocks) for digest in DIGESTS]
    assert all((order.count(ABBA), order.count(BAAB)) == (blocks // 2, blocks // 2) for order in drawn)
    assert block_orders(DIGESTS[7], blocks) == drawn[7]
    assert len({tuple(order) for order in drawn}) >= min(math.comb(blocks, blocks // 2), 150)


def test_orders_of_a_known_digest() -> None:
    """Frozen: another order for the same digest would run other legs than were announced."""
    assert block_orders("0" * 64, 6) == [ABBA, BAAB, BAAB, ABBA, BAAB, ABBA]


@pytest.mark.parametrize("blocks", [1, 3, 5, 18])
def test_blocks_are_even_and_not_too_many(blocks: int) -> None:
    with pytest.raises(pydantic.ValidationError):
        REPETITION.model_validate(REPETITION.model_dump() | {"blocks": blocks})


@pytest.mark.parametrize(
    ("contrasts", "changed", "expected"),
    [
        ([0.010, 0.012, 0.009, 0.011, 0.010, 0.012], {}, Conclusion.SUPERIOR),
        ([-0.010, -0.012, -0.009, -0.011, -0.010, -0.012], {}, Conclusion.INFERIOR),
        ([0.004, 0.006, 0.005, 0.003, 0.006, 0.005], {}, Conclusion.INCONCLUSIVE),
        ([0.001, -0.001, 0.0, 0.001, -0.001, 0.0], {}, Conclusion.INCONCLUSIVE),
        ([0.010, 0.012, 0.009, 0.011, 0.010, 0.012], {"sign_flip_level": 0.015}, Conclusion.UNREACHABLE),
        ([0.010, 0.012], {"blocks": 2}, Conclusion.UNREACHABLE),
        ([0.010, 0.012, 0.009, 0.011], {"blocks": 4}, Conclusion.UNREACHABLE),
        ([0.010, 0.012, 0.009, 0.011], {"blocks": 4, "sign_flip_level": 0.0625}, Conclusion.SUPERIOR),
        ([0.020, 0.022, 0.019, 0.021, 0.020, 0.0049], {}, Conclusion.INCONCLUSIVE),
    ],
    ids=["above", "below", "at the margin", "nothing", "level", "two", "four", "four at their level", "one block low"],
)
def test_conclusion(contrasts: list[float], changed: dict[str, Any], expected: Conclusion) -> None:
    assert conclusion(contrasts, REPETITION.model_copy(update=changed)).conclusion is expected


def test_the_sign_flip_companion_can_veto() -> None:
    """The interval lies above the margin, and one block below it costs the exact test its level."""
    repetition = REPETITION.model_copy(update={"sign_flip_level": 0.02})
    seen = conclusion([0.020, 0.022, 0.019, 0.021, 0.020, 0.0049], repetition)
    assert seen.low_percent > repetition.margin_percent
    assert seen.sign_flip_p == 2 / 64
    assert seen.conclusion is Conclusion.INCONCLUSIVE


def test_the_interval_can_veto_the_sign_flip_test() -> None:
    """Every block is above the margin, and two far ones make the interval wide."""
    seen = conclusion([0.006, 0.05, 0.006, 0.03, 0.006, 0.006], REPETITION)
    assert seen.sign_flip_p == 1 / 64
    assert seen.low_percent < REPETITION.margin_percent
    assert seen.conclusion is Conclusion.INCONCLUSIVE


@pytest.mark.parametrize(
    ("low", "high", "margin", "narrow"),
    [
        (-0.4, 0.4, 0.5, True),
        (-0.6, 0.6, 0.5, False),
        (0.1, 0.9, 0.5, True),
        (0.0, 0.0, 0.0, False),
        (-0.5, 0.497, 0.5, True),
        (-0.5, 0.498, 0.5, False),
    ],
)
def test_a_null_interval_is_narrow_by_its_half(low: float, high: float, margin: float, narrow: bool) -> None:
    seen = conclusion([0.0] * 6, REPETITION)
    changed = seen.model_copy(update={"low_percent": low, "high_percent": high, "margin_percent": margin})
    assert (null_narrow(changed) is None) is narrow


def test_power_at_the_margin_is_the_level() -> None:
    at_margin = REPETITION.model_copy(update={"effect_percent": REPETITION.margin_percent})
    assert power(at_margin, 0.005) == pytest.approx(0.025, abs=1e-9)


def test_figures_of_several_blocks_by_hand() -> None:
    seen = conclusion([0.01, 0.02, 0.01, 0.02, 0.01, 0.02], REPETITION)
    half = 2.5705818366147395 * math.sqrt(3e-5) / math.sqrt(6)
    assert seen.gain_percent == pytest.approx(math.expm1(0.015) * 100)
    assert seen.low_percent == pytest.approx(math.expm1(0.015 - half) * 100)
    assert seen.high_percent == pytest.approx(math.expm1(0.015 + half) * 100)
    assert seen.sign_flip_p == 1 / 64
    assert (seen.start_stdev, seen.power) == (0.0, None)


@pytest.mark.parametrize(("blocks", "expected"), [(2, 0.17), (4, 0.76), (6, 0.97), (8, 0.998)])
def test_power_as_simulated_elsewhere(blocks: int, expected: float) -> None:
    """A true gain of 1 % over starts of 0.5 % deviation, without a margin; a simulation told two or three digits."""
    repetition = REPETITION.model_copy(update={"blocks": blocks, "margin_percent": 0.0})
    assert power(repetition, 0.005) == pytest.approx(expected, abs=0.02)


def test_a_block_of_either_order_is_analysed() -> None:
    legs = lab.blocks([lab.scaled(METADATA, A2=1 + noise, B2=1 - noise) for noise in (0.001, -0.001)])
    order = [(leg["request"]["block"], leg["request"]["leg"]) for leg in legs]
    assert {tuple(name for number, name in order if number == block) for block in (1, 2)} == {ABBA, BAAB}
    plan = lab.plan(repetition=REPETITION.model_copy(update={"blocks": 2, "sign_flip_level": 0.25}))
    analysis = analyse(legs, plan)
    assert analysis.verdict is Verdict.PASS, analysis.reason
    assert analysis.repetition is not None
    assert len(analysis.pairs) == 4
    assert {block.order for block in analysis.repetition.blocks} == {ABBA, BAAB}
    assert (analysis.exactness.teacher, analysis.exactness.cross_leg) == (104, 91)


def test_published_rules_and_the_interval_are_both_needed() -> None:
    """Two blocks whose every pair passes: the interval over so few is wide, and nothing is promoted."""
    legs = lab.blocks([lab.scaled(METADATA, A2=1 + noise, B2=1 - noise) for noise in (0.001, -0.001)])
    analysis = analyse(legs, lab.plan(repetition=REPETITION.model_copy(update={"blocks": 2})))
    assert (analysis.verdict, analysis.disposition) == (Verdict.STOP, Disposition.RECORD)
    assert analysis.promotion is not None
    assert not analysis.promotion.promoted


def test_a_null_campaign_of_one_block_finds_nothing_and_proves_nothing_of_the_candidate() -> None:
    analysis = analyse(lab.legs(lab.null_starts(), null=True), lab.plan(null=True))
    assert (analysis.null_verdict, analysis.published_verdict) == (Verdict.PASS, Verdict.STOP)
    assert (analysis.verdict, analysis.label) == (Verdict.NOT_PROVEN, "null campaign, single block")
    assert analysis.reason.startswith("campaign: candidate-ran: A/A campaign")
    assert analysis.disposition is Disposition.PHASE_1_FAILED
    assert analysis.phase_1 is not None
    assert not analysis.phase_1.stops


def test_a_treatment_in_a_null_campaign_is_void() -> None:
    analysis = analyse(lab.legs(lab.null_starts()), lab.plan(null=True))
    assert (analysis.verdict, analysis.null_verdict) == (Verdict.NOT_PROVEN, Verdict.VOID)
    found = next(finding for finding in analysis.findings if finding.rule == "leg-named")
    assert (found.where, found.verdict) == ("block 1 B1", Verdict.VOID)


@pytest.mark.parametrize(
    ("plan", "count", "not_asked"),
    [
        (lab.plan(), 4, ["interval-superior", "null-finds-nothing", "null-narrow"]),
        (
            lab.plan(thresholds=BREAKABLE_GRAPH_20260724.model_copy(update={"record": 92.0})),
            4,
            ["above-practical-floor", "control-health", "interval-superior", "null-finds-nothing", "null-narrow"],
        ),
        (
            lab.plan(),
            2,
            [
                "above-practical-floor",
                "above-record",
                "interval-superior",
                "lower-start-wins",
                "null-finds-nothing",
                "null-narrow",
            ],
        ),
    ],
    ids=["one block", "without floor and health", "phase 1"],
)
def test_what_was_not_asked_proves_nothing(plan: EndpointPlan, count: int, not_asked: list[str]) -> None:
    analysis = analyse(lab.legs(METADATA)[:count], plan)
    assert analysis.not_asked == not_asked
    assert not {finding.rule for finding in analysis.findings} & set(not_asked)


def test_what_a_campaign_can_leave_out_is_off() -> None:
    """A TOML file has no null: what a plan does without is left out."""
    told = lab.plan().model_dump()
    for name in ("teacher_sha256", "null", "repetition"):
        del told[name]
    for name in ("control_health_percent", "practical_floor"):
        del told["thresholds"][name]
    plan = EndpointPlan.model_validate(told)
    assert (plan.teacher_sha256, plan.null, plan.repetition, plan.blocks) == (None, False, None, 1)
    assert (plan.thresholds.control_health_percent, plan.thresholds.practical_floor) == (None, None)


def test_the_teacher_is_the_published_one() -> None:
    assert sum(len(row.token_ids) for row in lab.TEACHER.rows) == 6354
    rows = json.loads((lab.DATA / "lab-endpoint-teacher-tokens.json").read_bytes())["rows"]
    with pytest.raises(pydantic.ValidationError, match="prompt_index of the rows"):
        type(lab.TEACHER).model_validate({"source_sha256": "0" * 64, "rows": rows[1:]})


@pytest.mark.parametrize(
    ("drafts", "proposed", "accepted", "possible"),
    [(1, 1, 1, True), (1, 7, 7, True), (0, 7, 0, False), (2, 1, 1, False), (1, 7, 8, False), (2, 2, 0, True)],
)
def test_what_acceptance_can_be(drafts: int, proposed: int, accepted: int, possible: bool) -> None:
    legs = lab.legs(METADATA)[:1]
    counted = {"drafts": drafts, "draft_tokens": proposed, "accepted": accepted, "accepted_per_position": {"0": drafts}}
    legs[0]["counters_after"] |= counted
    [record] = lab.records(legs)
    assert (acceptance_possible(LegCase(lab.plan(), lab.TEACHER, record)) is None) is possible


def test_a_leg_may_start_the_moment_the_one_before_ends() -> None:
    legs = lab.legs(METADATA)
    legs[1]["started"] = legs[0]["ended"]
    assert analyse(legs).verdict is Verdict.PASS


def judged(legs: list[lab.Leg], plan: EndpointPlan | None = None) -> Judged:
    return judge(CampaignCase(plan or lab.plan(), lab.TEACHER, lab.CAMPAIGN, tuple(lab.records(legs))))


def test_a_block_has_its_own_headlines() -> None:
    plan = lab.plan(repetition=REPETITION.model_copy(update={"blocks": 2}))
    seen = judged(lab.blocks([METADATA, lab.scaled(METADATA, A1=2.0, B1=2.0, B2=2.0, A2=2.0)]), plan)
    first, second = seen.median_throughputs(1), seen.median_throughputs(2)
    assert first["B1"] == pytest.approx(METADATA["B1"].rates[6], rel=1e-6)
    assert second == pytest.approx({name: 2 * rate for name, rate in first.items()}, rel=1e-6)
    assert [(number, name) for number, name in seen.legs] == sorted(seen.legs)
    assert [(pair.block, pair.candidate) for pair in seen.pairs] == [(1, "B1"), (1, "B2"), (2, "B1"), (2, "B2")]


def test_a_block_that_was_not_planned_is_compared_with_nothing() -> None:
    legs = lab.legs(METADATA) + [lab.leg(name, 2, 5, METADATA[name], candidate=name > "B") for name in ("A1", "B1")]
    assert [pair.block for pair in judged(legs).pairs] == [1, 1]


@pytest.mark.parametrize("without", [0, 1])
def test_a_pair_of_which_a_leg_has_no_figures_has_none(without: int) -> None:
    legs = lab.legs(METADATA)
    legs[without]["counters_after"]["drafts"] = None
    seen = judged(legs)
    assert [pair.candidate for pair in seen.pairs] == ["B2"]
    assert len(seen.legs) == 3


def test_a_finding_names_the_pair_or_the_control_that_it_is_about() -> None:
    legs = lab.legs(lab.scaled(METADATA, A2=0.9))
    legs[1]["rows"][3]["prompt_token_sha256"] = "0" * 64
    found = {(rule, where) for rule, where, finding in judged(legs).checked if finding is not None}
    assert {("same-prompts", "block 1 B1-A1"), ("control-health", "block 1 A2")} <= found
    assert ("control-health", "block 1 A1") not in found


def test_what_a_pass_says_and_what_each_rule_that_holds_is_told_as() -> None:
    analysis = analyse(lab.legs(METADATA))
    asked = len({finding.rule for finding in analysis.findings})
    assert analysis.reason == f"{asked} rules hold over 4 legs; record_candidate"
    assert {(finding.where, finding.reason, finding.decides) for finding in analysis.findings} == {
        ("everywhere", "", True)
    }
    assert {where: len(facts) for where, facts in analysis.declared.items()} == {f"block 1 {name}": 8 for name in ABBA}
    assert [(leg.block, leg.leg) for leg in analysis.legs] == [(1, "A1"), (1, "A2"), (1, "B1"), (1, "B2")]
    assert analysis.decides == "exactness+timing"
    assert analysis.null_verdict is None
    assert analysis.phase_1 is not None
    assert analysis.phase_1.reasons == []


def test_of_two_findings_of_one_verdict_the_first_is_the_reason() -> None:
    legs = lab.legs(METADATA)
    legs[2]["posted"] = legs[3]["posted"] = 14
    legs[3]["end"]["process"] = None
    analysis = analyse(legs)
    missing = "the server's end: seen no record; expected the supervisor's"
    assert (analysis.verdict, analysis.reason) == (Verdict.NOT_PROVEN, f"block 1 A2: server-ended: {missing}")
    told = [(one.where, one.verdict) for one in analysis.findings if one.verdict is not Verdict.PASS]
    assert told == [("block 1 B2", Verdict.VOID), ("block 1 A2", Verdict.VOID), ("block 1 A2", Verdict.NOT_PROVEN)]
    assert (analysis.published_verdict, analysis.disposition) == (Verdict.NOT_PROVEN, Disposition.NEGATIVE)
    legs[3]["end"] = legs[2]["end"]
    assert analyse(legs).reason == "block 1 B2: no-retry: requests: seen 14 for 13 rows; expected one each"


def test_a_finding_that_does_not_decide_is_never_the_reason() -> None:
    legs = lab.legs(lab.scaled(METADATA, B2=0.9))
    legs[3]["posted"] = 14
    analysis = analyse(legs, lab.plan(decides="exactness"))
    assert (analysis.verdict, analysis.reason) == (
        Verdict.VOID,
        "block 1 A2: no-retry: requests: seen 14 for 13 rows; expected one each",
    )
    passed = analyse(lab.legs(lab.scaled(METADATA, B2=0.9)), lab.plan(decides="exactness"))
    deciding = sum(finding.decides for finding in passed.findings)
    assert passed.reason == f"{deciding} rules hold over 4 legs; negative_or_inconclusive_stop"


def test_exact_rows_are_counted_of_what_is_due() -> None:
    legs = lab.legs(METADATA)
    legs[0]["rows"][2]["usage"]["cached_tokens"] = 1
    legs[3]["rows"][5]["usage"]["cached_tokens"] = 1
    legs[3]["rows"].pop()
    seen = analyse(legs).exactness
    assert seen.model_dump() == {
        "teacher": 49, "teacher_planned": 26, "cross_leg": 37, "cross_leg_planned": 13,
    }  # fmt: skip
    assert analyse([]).exactness.model_dump() == {
        "teacher": 0, "teacher_planned": 52, "cross_leg": 0, "cross_leg_planned": 39,
    }  # fmt: skip


def test_a_broken_rule_decides_in_a_null_campaign_too() -> None:
    legs = lab.legs(lab.null_starts(), null=True)
    legs[3]["posted"] = 14
    analysis = analyse(legs, lab.plan(null=True))
    assert (analysis.verdict, analysis.null_verdict, analysis.published_verdict) == (
        Verdict.NOT_PROVEN,
        Verdict.VOID,
        Verdict.VOID,
    )


def test_blocks_are_numbered_from_one_and_told_with_their_figures() -> None:
    seen = conclusion([0.01, 0.02, 0.01, 0.02, 0.01, 0.02], REPETITION)
    assert [block.block for block in seen.blocks] == [1, 2, 3, 4, 5, 6]
    assert [block.contrast for block in seen.blocks] == pytest.approx([0.01, 0.02] * 3)
    assert seen.margin_percent == 0.5


@pytest.mark.parametrize(("percent", "expected"), [(0.499, Conclusion.INCONCLUSIVE), (0.501, Conclusion.SUPERIOR)])
def test_a_gain_is_superior_above_the_margin(percent: float, expected: Conclusion) -> None:
    assert conclusion([math.log1p(percent / 100)] * 6, REPETITION).conclusion is expected


@pytest.mark.parametrize(("percent", "expected"), [(-0.49, Conclusion.INCONCLUSIVE), (-0.51, Conclusion.INFERIOR)])
def test_a_loss_is_inferior_below_the_margin(percent: float, expected: Conclusion) -> None:
    assert conclusion([math.log1p(percent / 100)] * 6, REPETITION).conclusion is expected


def of_rates(candidate: Sequence[float], repetition: Repetition) -> RepetitionFigures:
    """Six blocks in which the controls run at one token a second."""
    headlines: Any = [{"A1": 1.0, "A2": 1.0, "B1": rate, "B2": rate} for rate in candidate]
    return conclude(repetition, block_orders(lab.CAMPAIGN, 6), headlines)


def test_what_lies_at_the_margin_is_neither_superior_nor_inferior() -> None:
    """The margin of 100 % is a factor of two either way; the other one is the interval's own lower end."""
    doubled = REPETITION.model_copy(update={"margin_percent": 100.0})
    assert of_rates([0.5] * 6, doubled).conclusion is Conclusion.INCONCLUSIVE
    assert of_rates([0.499] * 6, doubled).conclusion is Conclusion.INFERIOR
    rates = [2.0, 2.1, 2.0, 2.1, 2.0, 2.1]
    low = t_interval([math.log(rate) for rate in rates], 0.95).low
    margin = math.expm1(low) * 100 * (1 - 1e-14)
    while math.log1p(margin / 100) < low:
        margin = math.nextafter(margin, math.inf)
    assert math.log1p(margin / 100) == low
    seen = of_rates(rates, REPETITION.model_copy(update={"margin_percent": margin}))
    assert (seen.sign_flip_p, seen.conclusion) == (1 / 64, Conclusion.INCONCLUSIVE)
    below = REPETITION.model_copy(update={"margin_percent": margin * (1 - 1e-12)})
    assert of_rates(rates, below).conclusion is Conclusion.SUPERIOR


def test_the_power_is_that_of_the_measured_variation() -> None:
    headlines: Any = [{"A1": 100.0, "A2": 100.5, "B1": 101.0, "B2": 101.0}] * 6
    seen = conclude(REPETITION, block_orders(lab.CAMPAIGN, 6), headlines)
    assert seen.start_stdev == pytest.approx(math.log(1.005) / 2)
    assert seen.power is not None
    assert seen.power == power(REPETITION, seen.start_stdev)
    assert 0.5 < seen.power < 1
    assert power(REPETITION.model_copy(update={"blocks": 4}), 1e-05) == 1.0


TWO = REPETITION.model_copy(update={"blocks": 2})
NOBODY: Any = {"ranks_captured": [], "ranks_served": [], "sockets": []}


def bare(*starts: dict[str, lab.Start], null: bool = False) -> list[LegRecord]:
    """Legs that have figures and little else: their first two rows, and no rank that says anything."""
    legs = [leg | NOBODY | {"rows": leg["rows"][:2]} for leg in lab.blocks(starts, null=null)]
    return lab.records(legs)


BLOCKS = bare(METADATA, lab.scaled(METADATA, A1=1.01, B2=0.98))


def of_bare(legs: Sequence[LegRecord], **planned: Any) -> EndpointAnalysis:
    return analyse_endpoint(lab.plan(**planned), legs, teacher=None, campaign=lab.CAMPAIGN)


def test_blocks_are_concluded_from_and_promoted_by_their_lowest_start() -> None:
    analysis = of_bare(BLOCKS, repetition=TWO)
    figures = {(leg.block, leg.leg): leg for leg in analysis.legs}
    assert [(number, name) for number in (1, 2) for name in ("A1", "A2", "B1", "B2")] == [*figures]
    assert analysis.repetition is not None
    assert analysis.repetition == conclude(
        TWO,
        block_orders(lab.CAMPAIGN, 2),
        [{name: figures[number, name].headline for name in ABBA} for number in (1, 2)],
    )
    assert analysis.promotion is not None
    assert (
        analysis.promotion.value
        == figures[2, "B2"].headline
        == min(leg.headline for leg in analysis.legs if "B" in leg.leg)
    )
    assert analysis.promotion.value_conventional == figures[2, "B2"].headline_conventional
    assert analysis.promotion.lowest_control == figures[1, "A1"].headline
    assert {"interval-superior", "lower-start-wins", "above-record", "above-practical-floor"}.isdisjoint(
        analysis.not_asked
    )
    assert {"null-finds-nothing", "null-narrow"} <= {*analysis.not_asked}
    of_interval = next(finding for finding in analysis.findings if finding.rule == "interval-superior")
    assert (of_interval.where, of_interval.verdict) == ("campaign", Verdict.STOP)
    assert of_interval.reason.startswith("inconclusive: the sample could never reach the frozen level: seen -")


@pytest.mark.parametrize("place", range(8))
def test_where_a_leg_is_missing_nothing_is_concluded_or_promoted(place: int) -> None:
    analysis = of_bare([*BLOCKS[:place], *BLOCKS[place + 1 :]], repetition=TWO)
    assert (analysis.repetition, analysis.promotion, len(analysis.legs)) == (None, None, 7)


@pytest.mark.parametrize(
    ("planned", "label"),
    [
        ({}, "single block"),
        ({"repetition": TWO}, "2 blocks"),
        ({"null": True}, "null campaign, single block"),
        ({"null": True, "repetition": TWO}, "null campaign, 2 blocks"),
    ],
)
def test_an_analysis_says_of_what_kind_its_campaign_is(planned: dict[str, Any], label: str) -> None:
    assert of_bare([], **planned).label == label


@pytest.mark.parametrize(
    ("planned", "legs", "asked"),
    [
        ({}, 4, set()),
        ({"null": True}, 4, {"null-finds-nothing"}),
        ({"null": True, "repetition": TWO}, 7, {"null-finds-nothing"}),
        ({"null": True, "repetition": TWO}, 8, {"null-finds-nothing", "null-narrow", "interval-superior"}),
        ({"repetition": TWO}, 8, {"interval-superior"}),
    ],
)
def test_what_is_asked_of_blocks_and_of_controls_alone(planned: dict[str, Any], legs: int, asked: set[str]) -> None:
    analysis = of_bare(BLOCKS[:legs], **planned)
    told = {finding.rule: finding.where for finding in analysis.findings}
    assert told.keys() & {"null-finds-nothing", "null-narrow", "interval-superior"} == asked
    assert {told[rule] for rule in asked} <= {"campaign", "everywhere"}
    assert analysis.not_asked == sorted(RULES - told.keys())


@pytest.mark.parametrize(
    ("count", "decides", "disposition", "stops"),
    [
        (1, "exactness+timing", Disposition.INCOMPLETE, None),
        (2, "exactness+timing", Disposition.PHASE_1_FAILED, True),
        (4, "exactness+timing", Disposition.PHASE_1_FAILED, True),
        (4, "exactness", Disposition.PHASE_1_FAILED, False),
    ],
)
def test_phase_1_is_of_two_legs(count: int, decides: str, disposition: Disposition, stops: bool | None) -> None:
    """Legs of two rows break enough rules for phase 1 to fail."""
    analysis = of_bare(BLOCKS[:count], decides=decides)
    assert analysis.disposition is disposition
    assert (analysis.phase_1 and analysis.phase_1.stops) is stops
    if analysis.phase_1 is not None:
        assert not analysis.phase_1.passed
        assert not any("A2" in reason or "B2" in reason for reason in analysis.phase_1.reasons)


def test_later_legs_are_compared_with_the_first_of_them() -> None:
    other = BLOCKS[0].rows[1].model_copy(update={"prompt_id": "other"})
    first = BLOCKS[0].model_copy(update={"rows": [BLOCKS[0].rows[0], other]})
    assert of_bare([first, *BLOCKS[1:4]]).exactness.cross_leg == 3
    assert of_bare(BLOCKS[:4]).exactness.cross_leg == 6


def test_the_legs_of_several_blocks_follow_from_the_campaigns_digest() -> None:
    mine, other = (CampaignCase(lab.plan(repetition=TWO), None, one, tuple(BLOCKS)) for one in (lab.CAMPAIGN, "0" * 64))
    assert CAMPAIGN_RULES["legs-as-planned"](mine) is None
    assert due_legs(mine, None) == [(leg.request.block, leg.request.leg) for leg in BLOCKS]
    found = "leg 1: seen block 1 A1, number 1; expected block 1 B1"
    assert CAMPAIGN_RULES["legs-as-planned"](other) == (Verdict.FAIL, found)
    assert due_legs(other, None)[:2] == [(1, "B1"), (1, "A1")]


def test_phase_1_knows_the_order_of_several_blocks() -> None:
    phase_1 = of_bare(BLOCKS, repetition=TWO).phase_1
    assert phase_1 is not None
    assert not any("legs-as-planned" in reason for reason in phase_1.reasons)
