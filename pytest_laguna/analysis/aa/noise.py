# SPDX-License-Identifier: Apache-2.0
"""Control against control: whether results are equal, how often timing rules promote noise, and what they could see.

Starts of one configuration follow each other; each two that do are one trial of the rules that compare a control with
a candidate. What holds here holds for the lane on which the starts ran.
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
from pytest_laguna.analysis.statistics import binomial_interval, count_needed, detectable, sample_stdev
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
        """What each timing gate looks at, in nanoseconds.

        Raises:
            UnusableEvidenceError: a profile cannot be read, or lacks a quantity.
        """
        if self.profile.unusable is not None:
            raise UnusableEvidenceError(self.profile.unusable)
        complaint = next(iter(self.profile.complaints.values()), None)
        if complaint is not None:
            raise UnusableEvidenceError(complaint)
        own: dict[str, Sequence[float]] = {}
        for name, gate in timing.GATES.items():
            values = [generation_ns(self.record)] if gate.quantity is None else self.profile.maxima.get(gate.quantity)
            if not values:
                message = f"no {gate.quantity} in a start's profile; expected one a replay"
                raise UnusableEvidenceError(message)
            own[name] = values
        return own


def _second_is_stock(pair: Pair) -> Finding | None:
    """Rule ``second-is-stock``: what ``control-is-stock`` says, of the second start."""
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
"""The rules over two graph arms, without those about the candidate: between two controls there is no difference."""


def analyse_null(plan: NullPlan, starts: Sequence[Start], endpoint: EndpointAnalysis | None) -> NullAnalysis:
    """What control against control comes to.

    Args:
        plan: as written before the first start.
        starts: in the order in which they ran.
        endpoint: of one block of controls; None where the campaign declares no gate 3.

    Raises:
        UnusableEvidenceError: there are fewer starts than planned, or one lacks what is compared.
    """
    if len(starts) != plan.starts:
        message = f"{len(starts)} starts; expected {plan.starts}"
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
        against=_against(plan, starts),
        diagnostic=_promotions(promoted, len(trials)),
        gates={name: sum(trial[name].passed for trial in trials) for name in timing.GATES},
        whole_replay=_detection(sample_stdev(replays), math.sqrt(2.0), len(trials), plan.effect_percent),
        endpoint=None if endpoint is None else _endpoint_promotions(endpoint),
        headline=None if endpoint is None else _headline(endpoint, plan.effect_percent),
    )


def _against(plan: NullPlan, starts: Sequence[Start]) -> dict[str, str]:
    """By rule the first start that differs from the first one, and in what."""
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
    """What ``count`` contrasts can tell whose deviation is ``spread`` times a start's."""
    stdev = spread * deviation
    smallest = needed = None
    if stdev > 0 and count > 1:
        smallest = math.expm1(detectable(stdev=stdev, count=count, confidence=CONFIDENCE, power=POWER)) * 100
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
    """One block is one trial of gate 3's rules."""
    ahead = any(found.rule == "null-finds-nothing" and found.verdict is Verdict.FAIL for found in endpoint.findings)
    return _promotions(int(ahead), 1)


def _headline(endpoint: EndpointAnalysis, effect_percent: float | None) -> Detection:
    """A block's contrast has the deviation of one start."""
    headlines = {leg.leg: leg.headline for leg in endpoint.legs}
    if len(headlines) != len(endpoint.legs) or headlines.keys() != {"A1", "B1", "B2", "A2"}:
        message = f"a null block with legs {[leg.leg for leg in endpoint.legs]}; expected A1, B1, B2 and A2"
        raise UnusableEvidenceError(message)
    return _detection(start_stdev([headlines]), 1.0, 1, effect_percent)


def judge_null(analysis: NullAnalysis) -> Finding | None:
    """What speaks against the campaign's rules: two controls that differ, or noise promoted where timing decides."""
    for rule, reason in analysis.against.items():
        return Verdict.FAIL, f"{rule}: {reason}; expected control against control to differ in nothing"
    if analysis.decides != "exactness+timing":
        return None
    for name, seen in (("gate 2", analysis.diagnostic), ("gate 3", analysis.endpoint)):
        if seen is not None and seen.interval[0] > MOST_FALSE_PROMOTIONS:
            told = f"{name}'s timing rules promoted {seen.promoted} of {seen.count} pairs of controls"
            low, high = (shown_in_places(100 * end, 100 * MOST_FALSE_PROMOTIONS, 1) for end in seen.interval)
            return Verdict.FAIL, f"{told}, {low} % to {high} %; expected an interval that reaches below 5 %"
    return None


def warnings(analysis: NullAnalysis) -> list[str]:
    """What a campaign is told before any card is used: effects that it cannot tell from noise."""
    told = []
    for what, unit, seen in (
        ("whole replay", "pairs of starts", analysis.whole_replay),
        ("headline", "blocks", analysis.headline),
    ):
        if seen is not None and seen.in_vain:
            needed = "no number" if seen.needed is None else str(seen.needed)
            smallest = "nothing" if seen.detectable_percent is None else f"{detectable_words(seen)} or more"
            told.append(
                f"{what}: {seen.effect_percent} % is expected; {seen.count} {unit} on lane {analysis.lane} can tell"
                f" {smallest} from noise, and {needed} of them would be needed"
            )
    return told


def detectable_words(seen: Detection) -> str:
    """The smallest effect that can be told from noise, for a reader who sees the expected one beside it."""
    if seen.detectable_percent is None:
        return "cannot be told"
    return f"{shown_in_places(seen.detectable_percent, seen.effect_percent or 0.0, 2)} %"


def null_figures(analysis: NullAnalysis) -> dict[str, str]:
    """For a report that machines read: rates with their intervals and numbers, and what could be told from noise."""
    figures: dict[str, str] = {"null.lane": analysis.lane, "null.decides": analysis.decides}
    for gate, promotions in (("2", analysis.diagnostic), ("3", analysis.endpoint)):
        if promotions is not None:
            low, high = promotions.interval
            told = f"{promotions.rate!r} ({low!r} to {high!r}, n={promotions.count})"
            figures[f"null.false_promotions.{gate}"] = told
    for what, seen in (("whole_replay", analysis.whole_replay), ("headline", analysis.headline)):
        if seen is not None:
            figures[f"null.detectable_percent.{what}"] = repr(seen.detectable_percent)
            figures[f"null.needed.{what}"] = repr(seen.needed)
    for number, warning in enumerate(warnings(analysis), start=1):
        figures[f"null.warning.{number}"] = warning
    return figures
