# SPDX-License-Identifier: Apache-2.0
"""Control against control: equality of results, false promotions by timing rules, and minimum detectable effects.

Starts of one configuration follow each other; each two in a row are one trial of the rules over a control and a
candidate. The result holds for the lane of the starts alone.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from pytest_laguna.analysis.arms import arm_pair
from pytest_laguna.analysis.arms.arm_pair import Expected, Pair
from pytest_laguna.analysis.diagnostic import timing
from pytest_laguna.analysis.diagnostic.replay_profile import ArmProfile
from pytest_laguna.analysis.diagnostic.replay_rules import generation_ns
from pytest_laguna.analysis.endpoint.figures import start_stdev
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.analysis.statistics import binomial_interval, count_needed, minimum_detectable_effect, sample_stdev
from pytest_laguna.analysis.wording import shown_in_places
from pytest_laguna.evidence.aa.rehearsal import (
    CONFIDENCE,
    MOST_FALSE_PROMOTIONS,
    POWER,
    Detection,
    NullAnalysis,
    NullPlan,
    Promotions,
)
from pytest_laguna.evidence.arms.arm_record import ArmRecord
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.verdict import UnusableEvidenceError, Verdict

_MOST = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """One process of the control."""

    record: ArmRecord
    profile: ArmProfile

    def samples(self) -> dict[str, Sequence[float]]:
        """Return the values of each timing gate, in ns; UnusableEvidenceError if a profile lacks one."""
        if self.profile.unusable is not None:
            raise UnusableEvidenceError(self.profile.unusable)
        complaint = next(iter(self.profile.complaints.values()), None)
        if complaint is not None:
            raise UnusableEvidenceError(complaint)
        own: dict[str, Sequence[float]] = {}
        for name, gate in timing.GATES.items():
            values = [generation_ns(self.record)] if gate.quantity is None else self.profile.maxima.get(gate.quantity)
            if not values:
                message = f"start's profile: seen no {gate.quantity}; expected one a replay"
                raise UnusableEvidenceError(message)
            own[name] = values
        return own


def _second_is_stock(pair: Pair) -> Finding | None:
    """Rule ``second-is-stock``: ``control-is-stock``, of the second start."""
    return arm_pair.control_is_stock(dataclasses.replace(pair, control=pair.candidate))


EXACTNESS: Mapping[str, Callable[[Pair], Finding | None]] = {
    "same-request": arm_pair.same_request,
    "same-engine": arm_pair.same_engine,
    "sole-treatment": arm_pair.sole_treatment,
    "whole-generation": arm_pair.whole_generation,
    "topology-frozen": arm_pair.topology_frozen,
    "drafts-captured": arm_pair.drafts_captured,
    "control-is-stock": arm_pair.control_is_stock,
    "second-is-stock": _second_is_stock,
    "drafts-accepted": arm_pair.drafts_accepted,
    "tokens-equal": arm_pair.tokens_equal,
    "attention-equal": arm_pair.attention_equal,
}
"""Rules over two graph arms except those about the candidate: between two controls there is no difference."""


def analyse_null(plan: NullPlan, starts: Sequence[Start], endpoint: EndpointAnalysis | None) -> NullAnalysis:
    """Analyse the starts of an A/A campaign, in their order, and one block of controls if it declares gate 3.

    Raises:
        UnusableEvidenceError: there are fewer starts than planned, or one lacks a compared quantity.
    """
    if len(starts) != plan.starts:
        message = f"starts: seen {len(starts)}; expected {plan.starts}"
        raise UnusableEvidenceError(message)
    samples = [start.samples() for start in starts]
    trials = [
        {name: timing.compare(name, first[name], second[name]) for name in timing.GATES}
        for first, second in zip(samples[::2], samples[1::2], strict=True)
    ]
    promoted = sum(timing.published_verdict(trial) == "diagnostic_pass" for trial in trials)
    replays = [math.log(statistics.median(own["whole_replay"])) for own in samples]
    return NullAnalysis(
        lane=plan.lane,
        decides=plan.decides,
        against=_differences(plan, starts),
        diagnostic=_promotions(promoted, len(trials)),
        gates={name: sum(trial[name].passed for trial in trials) for name in timing.GATES},
        whole_replay=_detection(sample_stdev(replays), math.sqrt(2.0), len(trials), plan.effect_percent),
        endpoint=None if endpoint is None else _endpoint_promotions(endpoint),
        headline=None if endpoint is None else _throughput(endpoint, plan.effect_percent),
    )


def _differences(plan: NullPlan, starts: Sequence[Start]) -> dict[str, str]:
    """Return by rule the first start different from start 0, and the difference."""
    expected = Expected(
        flag=plan.flag,
        control=plan.control,
        treatment=plan.control,
        validator=plan.validator,
        completion_tokens=plan.completion_tokens,
        graphs=plan.graphs,
        breaks=plan.breaks,
        target_layers=plan.target_layers,
    )
    found: dict[str, str] = {}
    for number, start in enumerate(starts[1:], start=1):
        pair = Pair(starts[0].record, start.record, expected)
        for name, rule in EXACTNESS.items():
            finding = rule(pair)
            if finding is not None:
                found.setdefault(name, f"start {number}: {finding[1]}")
    return found


def _promotions(promoted: int, count: int) -> Promotions:
    interval = binomial_interval(promoted, count, CONFIDENCE)
    return Promotions(promoted=promoted, count=count, rate=promoted / count, interval=interval)


def _detection(deviation: float, spread: float, count: int, effect_percent: float | None) -> Detection:
    """Return the minimum detectable effect of ``count`` contrasts of ``spread`` times a start's deviation."""
    stdev = spread * deviation
    smallest = needed = None
    if stdev > 0 and count > 1:
        smallest = (
            math.expm1(minimum_detectable_effect(stdev=stdev, count=count, confidence=CONFIDENCE, power=POWER)) * 100
        )
    if stdev > 0 and effect_percent is not None:
        excess = math.log1p(effect_percent / 100)
        needed = count_needed(stdev=stdev, excess=excess, confidence=CONFIDENCE, power=POWER, most=_MOST)
    return Detection(
        deviation=deviation,
        count=count,
        detectable_percent=smallest,
        effect_percent=effect_percent,
        needed=needed,
    )


def _endpoint_promotions(endpoint: EndpointAnalysis) -> Promotions:
    """Count one block as one trial of gate 3's rules."""
    ahead = any(found.rule == "null-finds-nothing" and found.verdict is Verdict.FAIL for found in endpoint.findings)
    return _promotions(int(ahead), 1)


def _throughput(endpoint: EndpointAnalysis, effect_percent: float | None) -> Detection:
    """Return one block's minimum detectable effect on median throughput, from one start's deviation."""
    medians = {leg.leg: leg.headline for leg in endpoint.legs}
    if len(medians) != len(endpoint.legs) or medians.keys() != {"A1", "B1", "B2", "A2"}:
        message = f"A/A block: seen legs {[leg.leg for leg in endpoint.legs]}; expected A1, B1, B2 and A2"
        raise UnusableEvidenceError(message)
    return _detection(start_stdev([medians]), 1.0, 1, effect_percent)


def judge_null(analysis: NullAnalysis) -> Finding | None:
    """Return FAIL if two controls differ, or if timing decides and promotes noise; else None."""
    for rule, reason in analysis.against.items():
        return Verdict.FAIL, f"{rule}: {reason} (between two controls)"
    if analysis.decides != "exactness+timing":
        return None
    for name, seen in (("gate 2", analysis.diagnostic), ("gate 3", analysis.endpoint)):
        if seen is not None and seen.interval[0] > MOST_FALSE_PROMOTIONS:
            told = f"{seen.promoted} of {seen.count} pairs of controls promoted by timing rules"
            low, high = (shown_in_places(100 * end, 100 * MOST_FALSE_PROMOTIONS, 1) for end in seen.interval)
            return Verdict.FAIL, f"{name}: seen {told}, {low} % to {high} %; expected an interval reaching below 5 %"
    return None


def warnings(analysis: NullAnalysis) -> list[str]:
    """Warn before any card is used of effects too small for the planned campaign."""
    return [
        f"{subject}: seen minimum detectable effect {detectable_words(seen)} with {seen.count} {unit} on lane"
        f" {analysis.lane}; expected at most {seen.effect_percent} %; {_remedy(seen)}"
        for subject, unit, seen in (
            ("whole replay", "pairs of starts", analysis.whole_replay),
            ("median throughput", "blocks", analysis.headline),
        )
        if seen is not None and seen.in_vain
    ]


def _remedy(seen: Detection) -> str:
    return "no count is enough" if seen.needed is None else f"plan {seen.needed} of them"


def detectable_words(seen: Detection) -> str:
    """Format the minimum detectable effect with enough digits to compare it with the expected one."""
    if seen.detectable_percent is None:
        return "unknown"
    return f"{shown_in_places(seen.detectable_percent, seen.effect_percent or 0.0, 2)} %"


def null_figures(analysis: NullAnalysis) -> dict[str, str]:
    """Return rates with intervals and counts, and minimum detectable effects, for JUnit properties."""
    figures: dict[str, str] = {"null.lane": analysis.lane, "null.decides": analysis.decides}
    for gate, promotions in (("2", analysis.diagnostic), ("3", analysis.endpoint)):
        if promotions is not None:
            low, high = promotions.interval
            told = f"{promotions.rate!r} ({low!r} to {high!r}, n={promotions.count})"
            figures[f"null.false_promotions.{gate}"] = told
    for name, seen in (("whole_replay", analysis.whole_replay), ("headline", analysis.headline)):
        if seen is not None:
            figures[f"null.detectable_percent.{name}"] = repr(seen.detectable_percent)
            figures[f"null.needed.{name}"] = repr(seen.needed)
    return figures
