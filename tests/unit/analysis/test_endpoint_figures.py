# SPDX-License-Identifier: Apache-2.0
"""Figures of legs, pairs and blocks: by hand on known times, and the published ones to the last bit."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from pytest_laguna.analysis.endpoint import figures
from pytest_laguna.analysis.endpoint.pair_rules import PAIR_RULES, control_health
from pytest_laguna.analysis.endpoint.promotion import check as rules_of
from pytest_laguna.analysis.endpoint.promotion import dispose, lower_start_wins, weigh
from pytest_laguna.evidence.endpoint.analysis import Disposition, LegFigures, PairFigures
from pytest_laguna.evidence.endpoint.leg import Counters
from pytest_laguna.evidence.endpoint.plan import (
    ABBA,
    EndpointThresholds,
)
from pytest_laguna.verdict import Verdict
from tests import endpoint_legs as lab
from tests.endpoint_legs import BREAKABLE_GRAPH_20260724, METADATA_20260725

METADATA = lab.published("metadata-20260725")
GRAPH = lab.published("breakable-graph-20260724")
CAMPAIGNS = [
    pytest.param(METADATA, METADATA_20260725, ("graph_metadata_off", "graph_metadata_on"), id="metadata"),
    pytest.param(GRAPH, BREAKABLE_GRAPH_20260724, ("eager", "graph"), id="graph"),
]


def published_pairs(record: dict[str, Any], names: tuple[str, str]) -> list[PairFigures]:
    """Both adjacent pairs with the published figures; the headline change is computed from the published starts."""
    pairs = []
    for number in (1, 2):
        pair = record["pairs"][f"B{number}_vs_A{number}"]
        won, _, rows = pair["row_wins"].partition("/")
        control, candidate = (record["starts"][f"{arm}{number}_{name}"] for arm, name in zip("AB", names, strict=True))
        change = figures.change_percent(control, candidate)
        values = {"block": 1, "control": f"A{number}", "candidate": f"B{number}", "rows_won": won, "rows": rows}
        pairs.append(
            PairFigures.model_validate(
                values
                | {
                    "headline_change_percent": change,
                    "median_row_change_percent": pair["median_paired_delta_pct"],
                    "cycle_saving_ms": pair["aggregate_cycle_saving_ms"],
                    "acceptance_rate_change": pair["acceptance_rate_delta"],
                }
            )
        )
    return pairs


def as_conventional(legacy: float) -> float:
    """The rate that counts intervals, of a published one that counts tokens."""
    return legacy / 100 * 99


def starts(record: dict[str, Any], arm: str) -> list[float]:
    return [value for name, value in record["starts"].items() if name.startswith(arm)]


def test_both_rates_of_a_known_row() -> None:
    """One token every 10 ms: 99 intervals take 0.99 s."""
    arrivals = [7_000_000 + token * 10_000_000 for token in range(120)]
    assert figures.conventional_rate(arrivals) == 100.0
    assert figures.legacy_rate(arrivals) == 100 / 0.99


def test_tokens_after_the_hundredth_do_not_count() -> None:
    arrivals = [token * 10_000_000 for token in range(100)]
    assert figures.legacy_rate([*arrivals, 10**12]) == figures.legacy_rate(arrivals)
    assert figures.has_rate(arrivals)
    assert not figures.has_rate(arrivals[:99])
    assert not figures.has_rate([5] * 100)
    assert figures.has_rate([5] * 99 + [6])


def test_the_published_record_in_conventional_terms() -> None:
    assert as_conventional(94.92003934159611) == 93.97083894818014


@pytest.mark.parametrize(("number", "name"), [(1, "B1_vs_A1"), (2, "B2_vs_A2")])
def test_published_headline_changes_to_the_last_bit(number: int, name: str) -> None:
    control, candidate = starts(METADATA, f"A{number}")[0], starts(METADATA, f"B{number}")[0]
    assert figures.change_percent(control, candidate) == METADATA["pairs"][name]["headline_delta_pct"]


@pytest.mark.parametrize(("record", "thresholds", "names"), CAMPAIGNS)
def test_published_promotions_to_the_last_bit(
    record: dict[str, Any], thresholds: EndpointThresholds, names: tuple[str, str]
) -> None:
    told = record["record"]
    candidates = [(rate, as_conventional(rate)) for rate in starts(record, "B")]
    promotion = weigh(candidates, [record["starts"][f"A{number}_{names[0]}"] for number in (1, 2)], thresholds)
    assert promotion.value == told["candidate_lower_start_tok_s"]
    assert promotion.record == told["prior_approved_tok_s"]
    assert promotion.practical_floor == told.get("strict_practical_floor_tok_s")
    assert promotion.above_record == told["delta_tok_s"]
    assert promotion.above_record_percent == told["delta_pct"]
    assert promotion.multiple_of_record == told["multiple"]


@pytest.mark.parametrize(
    ("made", "record", "summary", "leg"),
    [
        (lab.metadata_starts, METADATA, "b1_submission_summary", "B1"),
        (lab.graph_starts, GRAPH, "b2_submission_summary", "B2"),
    ],
    ids=["metadata", "graph"],
)
def test_published_acceptance_to_the_last_bit(made: Any, record: dict[str, Any], summary: str, leg: str) -> None:
    """Whole legs through the real function: rates and their changes follow from counts of drafts and tokens."""
    seen: dict[str, LegFigures] = {
        one.request.leg: taken
        for one in lab.records(lab.legs(made()))
        if (taken := figures.leg_figures(one)) is not None
    }
    told = record[summary]
    assert seen[leg].acceptance_rate == told["draft_acceptance_rate"]
    counts = (seen[leg].drafts, seen[leg].draft_tokens, seen[leg].accepted)
    assert counts == (told["draft_cycles"], told["draft_tokens"], told["accepted_draft_tokens"])
    for number in (1, 2):
        pair = figures.pair_figures(seen[f"A{number}"], seen[f"B{number}"])
        published = record["pairs"][f"B{number}_vs_A{number}"]
        assert pair.acceptance_rate_change == published["acceptance_rate_delta"]
        assert f"{pair.rows_won}/{pair.rows}" == published["row_wins"]
        assert pair.median_row_change_percent == pytest.approx(published["median_paired_delta_pct"], rel=1e-7)
        assert pair.cycle_saving_ms == pytest.approx(published["aggregate_cycle_saving_ms"], rel=1e-12)


@pytest.mark.parametrize(("record", "thresholds", "names"), CAMPAIGNS)
def test_published_pairs_pass_and_give_the_published_disposition(
    record: dict[str, Any], thresholds: EndpointThresholds, names: tuple[str, str]
) -> None:
    against = [check(pair, thresholds) for pair in published_pairs(record, names) for check in PAIR_RULES.values()]
    assert [finding is None for finding in against] == [True] * 10
    assert [record["pairs"][pair]["passed"] for pair in ("B1_vs_A1", "B2_vs_A2")] == [True, True]
    candidates = [(rate, as_conventional(rate)) for rate in starts(record, "B")]
    promotion = weigh(candidates, starts(record, "A"), thresholds)
    assert promotion.value_conventional == as_conventional(promotion.value)
    assert dispose(promotion, gates_hold=True) is Disposition.RECORD
    assert dispose(promotion, gates_hold=False) is Disposition.NEGATIVE


def test_published_controls_are_healthy() -> None:
    """The breakable-graph crossover had no such rule: its controls were eager."""
    for headline in starts(METADATA, "A"):
        assert control_health(leg_of([headline] * 13), METADATA_20260725.record, 2.0) is None


def leg_of(rates: list[float], **changed: Any) -> LegFigures:
    values: dict[str, Any] = {
        "block": 1,
        "leg": "A1",
        "row_rates": rates,
        "headline": statistics.median(rates),
        "headline_conventional": as_conventional(statistics.median(rates)),
        "p10": min(rates),
        "mean": statistics.mean(rates),
        "stdev": 0.0,
        "drafts": 100,
        "draft_tokens": 700,
        "accepted": 300,
        "acceptance_rate": 3 / 7,
        "target_cycle_ms": 20.0,
    }
    return LegFigures(**(values | changed))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"record": 94.92003934159611}, Disposition.BELOW_PRACTICAL_FLOOR),
        ({"practical_floor": 94.92003934159611}, Disposition.BELOW_PRACTICAL_FLOOR),
        ({"record": 94.92003934159611, "practical_floor": None}, Disposition.BELOW_RECORD_FLOOR),
        ({"record": 94.9200393415961, "practical_floor": None}, Disposition.RECORD),
    ],
    ids=["at the record", "at the floor", "at the record without a floor", "a bit above it"],
)
def test_promotion_is_strict(changed: dict[str, Any], expected: Disposition) -> None:
    thresholds = METADATA_20260725.model_copy(update=changed)
    candidates = [(rate, as_conventional(rate)) for rate in starts(METADATA, "B")]
    assert dispose(weigh(candidates, starts(METADATA, "A"), thresholds), gates_hold=True) is expected


def test_the_better_candidate_is_never_the_value() -> None:
    promotion = weigh([(95.0, 94.05), (93.0, 92.07)], [92.0, 92.5], METADATA_20260725)
    assert (promotion.value, promotion.value_conventional, promotion.lowest_control) == (93.0, 92.07, 92.0)
    assert not promotion.promoted, "that is for the rules to say"


def test_a_tie_with_the_control_is_negative() -> None:
    promotion = weigh([(95.0, 94.05), (94.0, 93.06)], [94.0, 96.0], METADATA_20260725)
    assert lower_start_wins(promotion) is not None
    assert dispose(promotion, gates_hold=True) is Disposition.NEGATIVE


PAIR = published_pairs(METADATA, ("graph_metadata_off", "graph_metadata_on"))[0]


@pytest.mark.parametrize(
    ("rule", "field", "metadata", "graph"),
    [
        ("headline", "headline_change_percent", (0.25, 0.2499999), (5e-324, 0.0)),
        ("rows-won", "rows_won", (10, 9), (9, 8)),
        ("paired-median", "median_row_change_percent", (0.25, 0.2499999), (5e-324, 0.0)),
        ("cycle-saving", "cycle_saving_ms", (0.15, 0.1499999), (0.15, 0.1499999)),
        ("acceptance-drift", "acceptance_rate_change", (0.001, 0.0010001), (-0.001, -0.0010001)),
    ],
)
def test_each_pair_rule_at_its_published_threshold(rule: str, field: str, metadata: Any, graph: Any) -> None:
    for thresholds, (enough, too_little) in ((METADATA_20260725, metadata), (BREAKABLE_GRAPH_20260724, graph)):
        assert PAIR_RULES[rule](PAIR.model_copy(update={field: enough}), thresholds) is None
        assert PAIR_RULES[rule](PAIR.model_copy(update={field: too_little}), thresholds) is not None


@pytest.mark.parametrize(("percent", "healthy"), [(1.999, True), (-1.999, True), (2.001, False), (-2.001, False)])
def test_control_health_at_its_published_threshold(percent: float, healthy: bool) -> None:
    control = leg_of([METADATA_20260725.record * (1 + percent / 100)] * 13)
    assert METADATA_20260725.control_health_percent is not None
    finding = control_health(control, METADATA_20260725.record, METADATA_20260725.control_health_percent)
    assert (finding is None) is healthy


def test_pair_figures_by_hand() -> None:
    control = leg_of([100.0, 200.0, 400.0], leg="A1")
    candidate = leg_of([110.0, 200.0, 380.0], leg="B1", target_cycle_ms=18.5, accepted=301, acceptance_rate=301 / 700)
    pair = figures.pair_figures(control, candidate)
    assert (pair.rows_won, pair.rows) == (1, 3)
    assert (pair.headline_change_percent, pair.median_row_change_percent) == (0.0, 0.0)
    assert pair.cycle_saving_ms == 1.5
    assert pair.acceptance_rate_change == pytest.approx(1 / 700)


def test_leg_figures_by_hand() -> None:
    """Rates of 10 to 130: the median is the seventh, p10 lies at place 1.2."""
    start = lab.Start([10.0 * row for row in range(1, 14)], drafts=1000, accepted=2345, cycle_ms=31.5)
    [record] = lab.records([lab.leg("A1", 1, 1, start, candidate=False)])
    seen = figures.leg_figures(record)
    assert seen is not None
    assert seen.headline == pytest.approx(70.0, rel=1e-8)
    assert seen.headline_conventional == pytest.approx(69.3, rel=1e-8)
    assert seen.p10 == pytest.approx(22.0, rel=1e-8)
    assert seen.mean == pytest.approx(70.0, rel=1e-8)
    assert seen.stdev == pytest.approx(statistics.stdev(start.rates), rel=1e-8)
    assert (seen.drafts, seen.draft_tokens, seen.accepted) == (1000, 7000, 2345)
    assert seen.acceptance_rate == 2345 / 7000
    assert seen.target_cycle_ms == pytest.approx(31.5, rel=1e-12)


def test_a_contrast_by_hand() -> None:
    block = figures.block_contrast(2, ("B1", "A1", "A2", "B2"), {"A1": 100.0, "B1": 110.0, "B2": 121.0, "A2": 100.0})
    assert block.contrast == pytest.approx(1.5 * math.log(1.1))
    assert (block.block, block.order) == (2, ("B1", "A1", "A2", "B2"))


def test_a_contrast_is_the_same_for_both_rates() -> None:
    headlines = dict(zip(ABBA, (92.5, 94.9, 95.1, 92.9), strict=True))
    conventional = {name: as_conventional(rate) for name, rate in headlines.items()}
    seen = [figures.block_contrast(1, ABBA, rates).contrast for rates in (headlines, conventional)]
    assert seen[0] == pytest.approx(seen[1], rel=1e-12)


def test_variation_of_starts_by_hand() -> None:
    """Two starts that differ by a log of d have a sample deviation of d over the root of two; two pairs are pooled."""
    step = math.exp(0.02)
    blocks: Any = [{"A1": 100.0, "A2": 100.0 * step, "B1": 120.0, "B2": 120.0}]
    assert figures.start_stdev(blocks) == pytest.approx(math.sqrt((0.02**2 / 2 + 0) / 2))
    assert figures.start_stdev([blocks[0] | {"B2": 120.0 * step}]) == pytest.approx(0.02 / math.sqrt(2))


@pytest.mark.parametrize(
    "counted",
    [
        {"drafts": None},
        {"draft_tokens": None},
        {"accepted": None},
        {"decode_seconds": None},
        {"drafts": 0},
        {"draft_tokens": 0, "accepted": 0},
        {"accepted": -1},
        {"accepted": 8000},
    ],
    ids=str,
)
def test_a_leg_without_its_counters_has_no_figures(counted: dict[str, Any]) -> None:
    start = lab.Start([10.0] * 13, drafts=1000, accepted=2345, cycle_ms=31.5)
    value = lab.leg("A1", 1, 1, start, candidate=False)
    value["counters_after"] |= counted
    assert figures.leg_figures(lab.records([value])[0]) is None


def test_a_leg_of_one_row_or_of_a_short_one_has_no_figures() -> None:
    start = lab.Start([10.0] * 13, drafts=1000, accepted=2345, cycle_ms=31.5)
    [record] = lab.records([lab.leg("A1", 1, 1, start, candidate=False)])
    short = record.rows[1].model_copy(update={"arrival_ns": record.rows[1].arrival_ns[:99]})
    assert figures.leg_figures(record.model_copy(update={"rows": record.rows[:2]})) is not None
    assert figures.leg_figures(record.model_copy(update={"rows": record.rows[:1]})) is None
    assert figures.leg_figures(record.model_copy(update={"rows": [record.rows[0], short]})) is None


def test_figures_at_their_least() -> None:
    start = lab.Start([10.0] * 13, drafts=1, accepted=0, cycle_ms=31.5)
    value = lab.leg("A1", 1, 1, start, candidate=False)
    value["counters_after"]["draft_tokens"] = 1
    seen = figures.leg_figures(lab.records([value])[0])
    assert seen is not None
    assert (seen.drafts, seen.draft_tokens, seen.accepted) == (1, 1, 0)


def test_what_was_counted_before_is_taken_off() -> None:
    start = lab.Start([10.0] * 13, drafts=1000, accepted=2345, cycle_ms=31.5)
    value = lab.leg("A1", 1, 1, start, candidate=False)
    value["counters_before"] |= {"drafts": 200, "draft_tokens": 1400, "accepted": 345, "decode_seconds": 3.5}
    [record] = lab.records([value])
    seen = figures.leg_figures(record)
    assert seen is not None
    assert (seen.drafts, seen.draft_tokens, seen.accepted) == (800, 5600, 2000)
    assert figures.decode_seconds(record) == pytest.approx(28.0)
    value["counters_before"]["decode_seconds"] = None
    assert figures.leg_figures(lab.records([value])[0]) is None


def counters(**counted: Any) -> Counters:
    """A reading of a server that exposes nothing but what is told."""
    absent: dict[str, Any] = dict.fromkeys(Counters.model_fields)
    bare = {"file": "metrics.prom", "sha256": "e" * 64, "accepted_per_position": {}, "finished": {}}
    return Counters.model_validate(absent | bare | counted, strict=True)


def test_a_counter_changes_by_what_it_gained_and_a_new_label_began_at_zero() -> None:
    before = counters(drafts=3, accepted=2, decode_seconds=1.0, finished={"stop": 2, "abort": 1})
    after = counters(drafts=10, draft_tokens=4, decode_seconds=9.0, finished={"stop": 7, "length": 4})
    assert figures.counter_changes(before, after) == {
        "drafts": 7, "finished stop": 5, "finished length": 4, "finished abort": -1,
    }  # fmt: skip
    accepted = counters(accepted_per_position={"0": 3})
    assert figures.counter_changes(counters(), accepted) == {"accepted_per_position 0": 3}


@pytest.mark.parametrize(
    ("rule", "changed", "reason"),
    [
        ("acceptance-drift", {"acceptance_rate_change": -0.002},
            "acceptance rate: seen a change of -0.002; expected at most 0.001"),
        (
            "headline",
            {"headline_change_percent": 0.1},
            "median throughput: seen a gain of 0.1 %; expected at least 0.25 %",
        ),
        ("rows-won", {"rows_won": 9}, "rows won: seen 9 of 13; expected at least 10"),
        (
            "paired-median",
            {"median_row_change_percent": 0.1},
            "median row: seen a gain of 0.1 %; expected at least 0.25 %",
        ),
        ("cycle-saving", {"cycle_saving_ms": 0.1}, "target cycle: seen a saving of 0.1 ms; expected at least 0.15 ms"),
    ],
)  # fmt: skip
def test_a_rule_over_a_pair_says_what_it_saw_and_what_it_expected(
    rule: str, changed: dict[str, Any], reason: str
) -> None:
    assert PAIR_RULES[rule](PAIR.model_copy(update=changed), METADATA_20260725) == (Verdict.STOP, reason)


@pytest.mark.parametrize(("headline", "percent"), [(102.0, None), (98.0, None), (102.5, 2.5), (97.5, -2.5)])
def test_a_control_is_healthy_up_to_the_bound(headline: float, percent: float | None) -> None:
    told = f"control: seen {percent} % off the record 100.0; expected at most 2.0 %"
    assert control_health(leg_of([headline] * 13), 100.0, 2.0) == (None if percent is None else (Verdict.STOP, told))


def test_what_is_not_enough_for_promotion_is_told_with_its_bar() -> None:
    promotion = weigh(
        [(94.0, 93.06), (95.0, 94.05)], [94.5, 96.0], METADATA_20260725.model_copy(update={"record": 94.0})
    )
    told = "lower candidate start: seen 94; expected"
    assert rules_of(promotion) == {
        "lower-start-wins": (Verdict.STOP, f"{told} more than the control's 94.5"),
        "above-record": (Verdict.STOP, f"{told} strictly more than 94.0"),
        "above-practical-floor": None,
    }
    assert promotion.practical_floor == METADATA_20260725.practical_floor
    floored = promotion.model_copy(update={"practical_floor": 94.0})
    assert rules_of(floored)["above-practical-floor"] == (Verdict.STOP, f"{told} strictly more than 94.0")
    without = promotion.model_copy(update={"practical_floor": None})
    assert rules_of(without).keys() == {"lower-start-wins", "above-record"}
