# SPDX-License-Identifier: Apache-2.0
"""Control against control: rates, intervals and limits from figures that are known, and a mutant for each rule."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.aa import noise as null_timing
from pytest_laguna.analysis.aa.noise import EXACTNESS, Start, analyse_null, judge_null, null_figures, warnings
from pytest_laguna.analysis.diagnostic.replay_profile import QUANTITIES, ArmProfile
from pytest_laguna.analysis.diagnostic.timing import GATES
from pytest_laguna.analysis.statistics import (
    binomial_interval,
    count_needed,
    minimum_detectable_effect,
    superiority_power,
)
from pytest_laguna.evidence.aa.rehearsal import Detection, NullAnalysis, NullPlan, Promotions
from pytest_laguna.evidence.arms.arm_record import ArmRecord, token_digest
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis, EndpointFinding, LegFigures
from pytest_laguna.verdict import UnusableEvidenceError, Verdict
from tests import endpoint_legs as lab
from tests.caught_first import caught_first
from tests.mutants.test_endpoint_rules import analyse

RECORD = Path(__file__).parents[2] / "data" / "arm-records" / "graph-control.json"
FLAG = "VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS"

PLAN = NullPlan(
    decides="exactness+timing",
    starts=12,
    ranks=1,
    flag=FLAG,
    control="0",
    validator="native",
    completion_tokens=272,
    collective_breaks=False,
    graphs=49,
    breaks=48,
    target_layers=48,
    samples=5,
    effect_percent=0.23,
)


def record(**changed: Any) -> ArmRecord:
    """A real record of the control."""
    value: dict[str, Any] = json.loads(RECORD.read_bytes())
    return ArmRecord.model_validate_json(json.dumps(value | changed), strict=True)


def start(number: int, *, scale: float | None = None) -> Start:
    """A start whose times are ``scale`` times those of the first; else a little up and down from start to start."""
    factor = 1.0 + 0.01 * math.sin(number) if scale is None else scale
    maxima = {name: [round(factor * (1_000_000 + 1000 * sample)) for sample in range(5)] for name in QUANTITIES}
    seconds = 2.0 * factor
    return Start(record(generation_seconds=seconds), ArmProfile((), None, {}, maxima))


def analysed(
    plan: NullPlan, starts: Sequence[Start] | None = None, endpoint: EndpointAnalysis | None = None
) -> NullAnalysis:
    return analyse_null(plan, starts or [start(number) for number in range(plan.starts)], endpoint)


def pairs(*gains: bool) -> list[Start]:
    """Two starts a trial, of which the second is faster in everything where a gain is wanted, and else slower."""
    return [start(0, scale=scale) for gain in gains for scale in (1.0, 0.99 if gain else 1.01)]


def _null_block() -> EndpointAnalysis:
    legs = lab.legs(lab.null_starts(), null=True)
    return analyse(legs, lab.plan(null=True))


def test_equal_results_and_noise_that_is_promoted_half_the_time() -> None:
    found = analysed(PLAN, pairs(True, False, True, False, True, False))
    assert found.against == {}
    assert (found.diagnostic.promoted, found.diagnostic.count, found.diagnostic.rate) == (3, 6, 0.5)
    assert found.gates == dict.fromkeys(GATES, 3)
    assert found.diagnostic.interval == pytest.approx((0.1181, 0.8819), abs=1e-4)
    finding = judge_null(found)
    assert finding is not None
    assert finding[0] is Verdict.FAIL
    assert finding[1].startswith("gate 2: seen 3 of 6 pairs of controls promoted by timing rules, 11.8 % to 88.2 %")


@pytest.mark.parametrize(("promoted", "fails"), [(0, False), (1, False), (2, False), (3, True)])
def test_only_an_interval_above_five_per_cent_fails(promoted: int, fails: bool) -> None:
    gains = [True] * promoted + [False] * (6 - promoted)
    assert (judge_null(analysed(PLAN, pairs(*gains))) is not None) is fails


def test_rules_that_do_not_decide_may_promote_noise() -> None:
    reported = PLAN.model_copy(update={"decides": "exactness"})
    assert judge_null(analysed(reported, pairs(*[True] * 6))) is None


def test_what_can_be_told_from_noise_follows_from_how_far_starts_are_apart() -> None:
    starts = [start(number) for number in range(12)]
    seen = analysed(PLAN, starts).whole_replay
    logs = [math.log(statistics.median(one.profile.maxima["whole_replay"])) for one in starts]
    assert seen.deviation == pytest.approx(statistics.stdev(logs))
    assert seen.detectable_percent is not None
    assert seen.needed is not None
    stdev = math.sqrt(2) * seen.deviation
    excess = math.log1p(seen.detectable_percent / 100)
    assert superiority_power(stdev=stdev, count=6, confidence=0.95, excess=excess) == pytest.approx(0.8, abs=1e-6)
    wanted = math.log1p(0.23 / 100)
    powers = [
        superiority_power(stdev=stdev, count=n, confidence=0.95, excess=wanted) for n in (seen.needed - 1, seen.needed)
    ]
    assert powers[0] < 0.8 <= powers[1]


def test_a_campaign_whose_effect_is_lost_in_noise_is_told_so() -> None:
    found = analysed(PLAN, endpoint=_null_block())
    told = warnings(found)
    assert told[0].startswith("whole replay: seen minimum detectable effect ")
    assert found.whole_replay.needed is not None
    assert f"expected at most 0.23 %; plan {found.whole_replay.needed} of them" in told[0]
    assert told[0] not in null_figures(found).values()
    sure = PLAN.model_copy(update={"effect_percent": 50.0})
    assert warnings(analysed(sure)) == []
    assert warnings(analysed(PLAN.model_copy(update={"effect_percent": None}))) == []


def test_starts_that_do_not_differ_have_no_detection_limit() -> None:
    seen = analysed(PLAN, [start(0, scale=1.0)] * 12)
    assert (seen.whole_replay.deviation, seen.whole_replay.detectable_percent, seen.whole_replay.needed) == (
        0.0,
        None,
        None,
    )
    assert warnings(seen) == []


def test_a_null_block_is_one_trial_of_the_endpoints_rules() -> None:
    found = analysed(PLAN, pairs(*[False] * 6), _null_block())
    assert found.endpoint is not None
    assert found.headline is not None
    assert (found.endpoint.count, found.headline.count, found.headline.detectable_percent) == (1, 1, None)
    known = (0.0, 0.975) if found.endpoint.promoted == 0 else (0.025, 1.0)
    assert found.endpoint.interval == pytest.approx(known)
    assert judge_null(found) is None


def _other(**changed: Any) -> Callable[[Start], Start]:
    return lambda good: dataclasses.replace(good, record=record(**changed))


def _rank(**changed: Any) -> Callable[[Start], Start]:
    value: dict[str, Any] = json.loads(RECORD.read_bytes())
    return _other(ranks=[value["ranks"][0] | changed])


def _graphs(model: str, **changed: Any) -> Callable[[Start], Start]:
    value: dict[str, Any] = json.loads(RECORD.read_bytes())
    graphs = [graph | changed if graph["model"] == model else graph for graph in value["ranks"][0]["graphs"]]
    return _rank(graphs=graphs)


def _good() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(RECORD.read_bytes())
    return value


MUTANTS: list[tuple[str, Callable[[Start], Start]]] = [
    ("same-request", _other(request=_good()["request"] | {"lane": "xpu"})),
    ("same-engine", _other(versions=_good()["versions"] | {"torch": "0"})),
    ("sole-treatment", _other(environment=_good()["environment"] | {FLAG: "1"})),
    ("whole-generation", _other(cached_tokens=16)),
    ("topology-frozen", _graphs("target", graphs=48)),
    ("drafts-captured", _graphs("draft", graphs=99)),
    ("second-is-stock", _rank(candidate=_good()["ranks"][0]["candidate"] | {"flag": True})),
    ("drafts-accepted", _other(acceptance=_good()["acceptance"] | {"drafts": _good()["acceptance"]["drafts"] + 1})),
    ("attention-equal", _rank(attention=_good()["ranks"][0]["attention"] | {"sha256": "f" * 64})),
]


def _token(good: Start) -> Start:
    ids = list(good.record.token_ids)
    ids[7] += 1
    return dataclasses.replace(good, record=record(token_ids=ids, token_sha256=token_digest(ids)))


MUTANTS.append(("tokens-equal", _token))


def test_every_rule_of_exactness_has_a_mutant() -> None:
    """But for the first start's own class, which stands for all of them."""
    assert {rule for rule, _ in MUTANTS} == EXACTNESS.keys() - {"control-is-stock"}


@caught_first("rule change", MUTANTS)
def test_a_control_that_differs_is_refused(rule: str, change: Callable[[Start], Start]) -> list[str]:
    starts = [start(0, scale=1.0)] * 12  # no search for what could be told from noise: there is none
    starts[5] = change(starts[5])
    found = analysed(PLAN, starts)
    assert found.against[rule].startswith("start 5: ")
    assert judge_null(found) is not None
    return [*found.against]


def test_a_first_start_that_is_no_control_is_refused() -> None:
    starts = [start(0, scale=1.0)] * 12
    starts[0] = _rank(candidate=_good()["ranks"][0]["candidate"] | {"flag": True})(starts[0])
    assert analysed(PLAN, starts).against["control-is-stock"].startswith("start 1: ")


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("flag", "ANOTHER", "sole-treatment"),
        ("control", "2", "sole-treatment"),
        ("completion_tokens", 271, "whole-generation"),
        ("graphs", 48, "topology-frozen"),
        ("breaks", 47, "topology-frozen"),
        ("target_layers", 47, "control-is-stock"),
    ],
)
def test_what_is_expected_of_every_start_is_the_plans(field: str, value: object, rule: str) -> None:
    starts = [start(0, scale=1.0)] * 2
    assert analysed(TWO_STARTS, starts).against == {}
    assert rule in analysed(TWO_STARTS.model_copy(update={field: value}), starts).against


def test_of_each_rule_the_first_start_that_differs_is_told() -> None:
    starts = [start(0, scale=1.0)] * 12
    versions = _good()["versions"]
    starts[11] = _other(versions=versions | {"torch": "1"})(starts[11])
    starts[1] = _other(versions=versions | {"torch": "0"})(starts[1])
    found = analysed(PLAN, starts)
    assert [*found.against] == ["same-engine"]
    assert found.against["same-engine"].startswith("start 1: ")
    told = f"same-engine: {found.against['same-engine']} (between two controls)"
    assert judge_null(found) == (Verdict.FAIL, told)


# What is said of figures


def _said(**changed: Any) -> NullAnalysis:
    """An analysis in which timing decides, of figures that a reader can follow."""
    values: dict[str, Any] = {
        "lane": "cpu",
        "decides": "exactness+timing",
        "against": {},
        "diagnostic": Promotions(promoted=1, count=4, rate=0.25, interval=(0.0625, 0.75)),
        "gates": {},
        "whole_replay": Detection(deviation=0.01, count=4, detectable_percent=1.25, effect_percent=0.5, needed=164),
        "endpoint": Promotions(promoted=0, count=1, rate=0.0, interval=(0.0, 0.975)),
        "headline": Detection(deviation=0.02, count=1, detectable_percent=None, effect_percent=0.5, needed=None),
    }
    return NullAnalysis.model_validate(values | changed)


REPLAY_WARNING = (
    "whole replay: seen minimum detectable effect 1.25 % with 4 pairs of starts on lane cpu; expected at most 0.5 %;"
    " plan 164 of them"
)
HEADLINE_WARNING = (
    "median throughput: seen minimum detectable effect unknown with 1 blocks on lane cpu; expected at most 0.5 %;"
    " no count is enough"
)


def test_each_figure_has_its_name_and_its_number() -> None:
    gate_2 = {
        "null.lane": "cpu",
        "null.decides": "exactness+timing",
        "null.false_promotions.2": "0.25 (0.0625 to 0.75, n=4)",
        "null.detectable_percent.whole_replay": "1.25",
        "null.needed.whole_replay": "164",
    }
    gate_3 = {
        "null.false_promotions.3": "0.0 (0.0 to 0.975, n=1)",
        "null.detectable_percent.headline": "None",
        "null.needed.headline": "None",
    }
    assert null_figures(_said()) == gate_2 | gate_3
    assert null_figures(_said(endpoint=None, headline=None)) == gate_2
    assert warnings(_said()) == [REPLAY_WARNING, HEADLINE_WARNING]


def test_what_just_cannot_be_told_from_noise_does_not_seem_to_be_what_is_expected() -> None:
    near = Detection(deviation=0.01, count=4, detectable_percent=0.5001, effect_percent=0.5, needed=5)
    [told] = warnings(_said(whole_replay=near, headline=None))
    assert told.startswith("whole replay: seen minimum detectable effect 0.5001 % with 4 pairs")


@pytest.mark.parametrize(
    ("gate", "field", "low", "told"),
    [
        ("gate 2", "diagnostic", 0.0625, "1 of 4 pairs of controls promoted by timing rules, 6.2 % to 75.0 %"),
        ("gate 2", "diagnostic", 0.05, None),
        ("gate 3", "endpoint", 0.0625, "1 of 4 pairs of controls promoted by timing rules, 6.2 % to 75.0 %"),
        ("gate 3", "endpoint", 0.05, None),
        ("gate 2", "diagnostic", 0.0500001, "1 of 4 pairs of controls promoted by timing rules, 5.00001 % to 75.0 %"),
    ],
)
def test_a_rate_that_is_surely_above_five_per_cent_fails(gate: str, field: str, low: float, told: str | None) -> None:
    seldom = Promotions(promoted=0, count=1, rate=0.0, interval=(0.0, 0.975))
    often = Promotions(promoted=1, count=4, rate=0.25, interval=(low, 0.75))
    found = judge_null(_said(**{"diagnostic": seldom, "endpoint": seldom, field: often}))
    expected = f"{gate}: seen {told}; expected an interval reaching below 5 %"
    assert found == (None if told is None else (Verdict.FAIL, expected))


_RECORD = record()
TWO_STARTS = PLAN.model_copy(update={"starts": 2})


def _block(headlines: Sequence[tuple[str, float]], *findings: EndpointFinding) -> EndpointAnalysis:
    """As much of the analysis of a block as is looked at here."""
    of_legs: list[dict[str, Any]] = [{"leg": leg, "headline": headline} for leg, headline in headlines]
    values: dict[str, Any] = {
        "legs": [LegFigures.model_construct(**leg) for leg in of_legs],
        "findings": list(findings),
    }
    return EndpointAnalysis.model_construct(**values)


HEADLINES = [("A1", 100.0), ("B1", 110.0), ("B2", 100.0), ("A2", 100.0)]


@pytest.mark.parametrize(
    ("verdict", "rule", "promoted"),
    [("FAIL", "null-finds-nothing", 1), ("PASS", "null-finds-nothing", 0), ("FAIL", "another", 0)],
)
def test_a_block_of_controls_that_is_found_ahead_is_one_false_promotion(verdict: str, rule: str, promoted: int) -> None:
    finding = EndpointFinding(rule=rule, where="campaign", verdict=Verdict(verdict), reason="", decides=True)
    seen = analysed(TWO_STARTS, pairs(False), _block(HEADLINES, finding)).endpoint
    assert seen is not None
    assert (seen.promoted, seen.count, seen.rate) == (promoted, 1, float(promoted))


def test_the_headlines_of_a_block_are_as_far_apart_as_its_starts() -> None:
    seen = analysed(TWO_STARTS, pairs(False), _block(HEADLINES)).headline
    assert seen is not None
    assert seen.deviation == pytest.approx(math.log(1.1) / 2)
    excess = math.log1p(0.23 / 100)
    needed = count_needed(stdev=seen.deviation, excess=excess, confidence=0.95, power=0.8, most=1_000_000)
    assert (seen.count, seen.effect_percent, seen.detectable_percent, seen.needed) == (1, 0.23, None, needed)


def test_of_what_limits_of_detection_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The searches themselves are slow, and have tests of their own."""
    asked: list[dict[str, float]] = []

    def found(**of: float) -> float:
        asked.append(of)
        return 0.5

    def needed(**of: float) -> int:
        asked.append(of)
        return 7

    monkeypatch.setattr(null_timing, "minimum_detectable_effect", found)
    monkeypatch.setattr(null_timing, "count_needed", needed)
    scales = (1.0, math.e, math.e, 1.0)
    starts = [dataclasses.replace(start(0, scale=scale), record=_RECORD) for scale in scales]
    seen = analysed(PLAN.model_copy(update={"starts": 4}), starts, _block(HEADLINES))
    of_start, of_block = math.sqrt(1 / 3), math.log(1.1) / 2
    common = {"confidence": 0.95, "power": 0.8}
    search = {"excess": math.log1p(0.0023), "most": 1_000_000}
    expected = [
        {"stdev": math.sqrt(2) * of_start, "count": 2} | common,
        {"stdev": math.sqrt(2) * of_start} | common | search,
        {"stdev": of_block} | common | search,
    ]
    assert asked == [pytest.approx(each, rel=1e-6) for each in expected]
    replay = seen.whole_replay
    assert (replay.deviation, replay.detectable_percent) == pytest.approx((of_start, math.expm1(0.5) * 100))
    assert (replay.count, replay.effect_percent, replay.needed) == (2, 0.23, 7)
    asked.clear()
    alone = analysed(PLAN.model_copy(update={"starts": 4, "effect_percent": None}), starts).whole_replay
    assert (alone.effect_percent, alone.needed, len(asked)) == (None, None, 1)


@pytest.mark.parametrize("headlines", [HEADLINES[1:], [*HEADLINES, HEADLINES[0]]])
def test_a_block_of_other_legs_is_unusable(headlines: list[tuple[str, float]]) -> None:
    with pytest.raises(UnusableEvidenceError) as raised:
        analysed(TWO_STARTS, pairs(False), _block(headlines))
    names = [leg for leg, _ in headlines]
    assert str(raised.value) == f"A/A block: seen legs {names}; expected A1, B1, B2 and A2"


def test_what_is_missing_is_unusable() -> None:
    starts = [start(number) for number in range(12)]
    with pytest.raises(UnusableEvidenceError, match="starts: seen 11; expected 12"):
        analysed(PLAN, starts[1:])
    maxima = starts[0].profile.maxima
    for profile, told in (
        (ArmProfile((), "rank0.json: torn", {}, maxima), "rank0.json: torn"),
        (ArmProfile((), None, {"x": "rank 0 sample 1: bad"}, maxima), "rank 0 sample 1: bad"),
        (ArmProfile((), None, {}, {}), "start's profile: seen no view_preparation; expected one a replay"),
        (
            ArmProfile((), None, {}, dict(maxima) | {"whole_replay": []}),
            "start's profile: seen no whole_replay; expected one a replay",
        ),
    ):
        with pytest.raises(UnusableEvidenceError) as raised:
            analysed(PLAN, [*starts[1:], dataclasses.replace(starts[0], profile=profile)])
        assert str(raised.value) == told


# The statistics


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        (0, 1, 0.0, 0.975),
        (1, 1, 0.025, 1.0),
        (0, 10, 0.0, 0.30850),
        (3, 6, 0.11812, 0.88188),
        (2, 10, 0.02521, 0.55610),
    ],
)
def test_the_exact_interval_of_a_rate(successes: int, count: int, low: float, high: float) -> None:
    """Against published tables of Clopper and Pearson."""
    assert binomial_interval(successes, count, 0.95) == pytest.approx((low, high), abs=1e-5)


@pytest.mark.parametrize(("successes", "count"), [(-1, 3), (4, 3), (0, 0)])
def test_a_rate_of_nothing_is_refused(successes: int, count: int) -> None:
    with pytest.raises(ValueError, match="expected 0 to the number of trials"):
        binomial_interval(successes, count, 0.95)


def test_more_values_find_less_and_a_bound_is_kept() -> None:
    few, many = (minimum_detectable_effect(stdev=0.01, count=count, confidence=0.95, power=0.8) for count in (3, 30))
    assert many < few
    assert count_needed(stdev=0.01, excess=few, confidence=0.95, power=0.8, most=100) == 3
    assert count_needed(stdev=0.01, excess=1e-6, confidence=0.95, power=0.8, most=1000) is None
    assert count_needed(stdev=0.01, excess=1.0, confidence=0.95, power=0.8, most=1000) == 2
