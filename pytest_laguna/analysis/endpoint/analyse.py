# SPDX-License-Identifier: Apache-2.0
"""Derives the analysis of the campaign from the recorded legs: phase 1, promotion, interval and verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from pytest_laguna.analysis.endpoint import promotion as promotions
from pytest_laguna.analysis.endpoint.campaign_rules import CAMPAIGN_RULES, PHASE_1_LEGS, PROGRESS_RULES, due_legs
from pytest_laguna.analysis.endpoint.case import CAMPAIGN, CampaignCase, inexact_rows
from pytest_laguna.analysis.endpoint.fact_rules import declared
from pytest_laguna.analysis.endpoint.judged import Checked, Judged, judge
from pytest_laguna.analysis.endpoint.leg_rules import LEG_RULES
from pytest_laguna.analysis.endpoint.pair_rules import PAIR_RULES
from pytest_laguna.analysis.endpoint.repetition import conclude, interval_superior, null_finds_nothing, null_narrow
from pytest_laguna.evidence.endpoint.analysis import (
    Disposition,
    EndpointAnalysis,
    EndpointFinding,
    Exactness,
    PhaseOne,
    Promotion,
    RepetitionFigures,
)
from pytest_laguna.evidence.endpoint.leg import LegRecord, SuiteRow
from pytest_laguna.evidence.endpoint.plan import ABBA, EndpointPlan, Teacher, TeacherRow, block_orders
from pytest_laguna.verdict import Verdict, worst

EVERYWHERE = "everywhere"
SEALED_NULL = "null"
"""Word for A/A in sealed labels, equal in all schemas."""
TIMING_RULES = frozenset({
    "headline",
    "rows-won",
    "paired-median",
    "cycle-saving",
    "control-health",
    "lower-start-wins",
    "above-record",
    "above-practical-floor",
    "interval-superior",
})
"""Rules over timing: they decide if the plan says so and never in A/A; all other rules always decide."""
NULL_RULES = frozenset({"null-finds-nothing", "null-narrow"})
"""Rules over timing in A/A, asked only there."""
CANDIDATE_RAN = "candidate-ran"
"""Rule outside the published ones, which know no A/A campaign; it always decides."""
RULES = frozenset({
    *LEG_RULES,
    *PAIR_RULES,
    *CAMPAIGN_RULES,
    *PROGRESS_RULES,
    *TIMING_RULES,
    *NULL_RULES,
    "same-prompts",
})


def analyse_endpoint(
    plan: EndpointPlan,
    legs: Sequence[LegRecord],
    *,
    teacher: Teacher | None,
    campaign: str,
    ended: Collection[str] = (),
) -> EndpointAnalysis:
    """Judge the recorded legs, after any leg; NOT_PROVEN as long as one is missing.

    Args:
        plan: as frozen by the campaign.
        legs: in the order of their runs.
        teacher: the canonical q1 answers; the first control's if the plan has none; None without a control.
        campaign: the campaign's digest, from which the order of the legs follows.
        ended: directory names of legs without a record, as in ``03-B2``; they keep their places.

    Raises:
        UnusableEvidenceError: a rank's proof of the candidate has another form.
    """
    case = CampaignCase(plan, teacher, campaign, tuple(legs), frozenset(ended))
    judged = judge(case)
    phase_1 = _phase_1(case)
    several = _repetition(case, judged)
    promotion = _promotion(case, judged)
    disposition = _disposition(phase_1, promotion, gates_hold=not judged.against)
    checked = [*judged.checked, *_progress(case, phase_1), *_decisions(plan, disposition, promotion, several)]
    findings = list(_findings(plan, checked))
    verdict = worst(finding.verdict for finding in findings if finding.decides)
    promoted = verdict is Verdict.PASS and timing_decides(plan)  # then the published rules hold, and the interval
    return EndpointAnalysis(
        verdict=verdict,
        reason=_reason(findings, verdict, case, disposition),
        published_verdict=worst(
            finding.verdict for finding in findings if finding.rule not in {*NULL_RULES, CANDIDATE_RAN}
        ),
        null_verdict=_null_verdict(findings) if plan.null else None,
        label=_label(plan),
        decides=plan.decides,
        disposition=disposition,
        exactness=_exactness(case, len(due_legs(case, phase_1))),
        phase_1=phase_1,
        promotion=promotion and promotion.model_copy(update={"promoted": promoted}),
        repetition=several,
        legs=list(judged.legs.values()),
        pairs=list(judged.pairs),
        declared={leg.place: declared(leg) for leg in case.cases},
        findings=findings,
        not_asked=sorted(RULES - {finding.rule for finding in findings}),
    )


def timing_decides(plan: EndpointPlan) -> bool:
    """True if timing can stop the campaign or promote its candidate."""
    return plan.decides == "exactness+timing" and not plan.null


def _label(plan: EndpointPlan) -> str:
    blocks = "single block" if plan.blocks == 1 else f"{plan.blocks} blocks"
    return f"{SEALED_NULL} campaign, {blocks}" if plan.null else blocks


def _null_verdict(findings: Sequence[EndpointFinding]) -> Verdict:
    """Worst deciding verdict, ignoring ``candidate-ran``."""
    return worst(finding.verdict for finding in findings if finding.decides and finding.rule != CANDIDATE_RAN)


def _phase_1(case: CampaignCase) -> PhaseOne | None:
    """Judge the first adjacent pair alone; None before both of its legs ran."""
    legs = tuple(leg for leg in case.legs if leg.request.sequence <= PHASE_1_LEGS)
    if len(legs) < PHASE_1_LEGS:
        return None
    first = CampaignCase(case.plan, case.teacher, case.campaign, legs)
    judged = judge(first)
    passed = not judged.against and len(judged.pairs) == 1
    return PhaseOne(passed=passed, stops=not passed and timing_decides(case.plan), reasons=judged.against)


def _repetition(case: CampaignCase, judged: Judged) -> RepetitionFigures | None:
    plan = case.plan
    medians = [judged.median_throughputs(block) for block in range(1, plan.blocks + 1)]
    if plan.repetition is None or any(len(block) < len(ABBA) for block in medians):
        return None
    return conclude(plan.repetition, block_orders(case.campaign, plan.blocks), medians)


def _promotion(case: CampaignCase, judged: Judged) -> Promotion | None:
    legs = judged.legs.values()
    candidates = [(leg.headline, leg.headline_conventional) for leg in legs if leg.leg.startswith("B")]
    controls = [leg.headline for leg in legs if leg.leg.startswith("A")]
    if len(candidates) < 2 * case.plan.blocks or len(controls) < 2 * case.plan.blocks:
        return None
    return promotions.weigh(candidates, controls, case.plan.thresholds)


def _disposition(phase_1: PhaseOne | None, promotion: Promotion | None, *, gates_hold: bool) -> Disposition:
    if phase_1 is None:
        return Disposition.INCOMPLETE
    if not phase_1.passed:
        return Disposition.PHASE_1_FAILED
    return Disposition.PHASE_1_PASSED if promotion is None else promotions.dispose(promotion, gates_hold=gates_hold)


def _progress(case: CampaignCase, phase_1: PhaseOne | None) -> Iterator[Checked]:
    for rule, check in PROGRESS_RULES.items():
        yield rule, CAMPAIGN, check(case, phase_1)


def _decisions(
    plan: EndpointPlan, disposition: Disposition, promotion: Promotion | None, several: RepetitionFigures | None
) -> Iterator[Checked]:
    if promotion is not None:
        for rule, found in promotions.check(promotion).items():
            yield rule, CAMPAIGN, found
    if several is not None:
        yield "interval-superior", CAMPAIGN, interval_superior(several)
    if plan.null:
        yield "null-finds-nothing", CAMPAIGN, null_finds_nothing(disposition, several)
        if several is not None:
            yield "null-narrow", CAMPAIGN, null_narrow(several)


def _findings(plan: EndpointPlan, checked: Iterable[Checked]) -> Iterator[EndpointFinding]:
    """Findings by rule, with one PASS for a rule without any."""
    of_rule: dict[str, list[Checked]] = {}
    for one in checked:
        of_rule.setdefault(one[0], []).append(one)
    for rule, asked in of_rule.items():
        decides = _decides(plan, rule)
        against = [
            EndpointFinding(rule=rule, where=where, verdict=found[0], reason=found[1], decides=decides)
            for _, where, found in asked
            if found is not None
        ]
        yield from against or [
            EndpointFinding(rule=rule, where=EVERYWHERE, verdict=Verdict.PASS, reason="", decides=decides)
        ]


def _decides(plan: EndpointPlan, rule: str) -> bool:
    if rule in NULL_RULES:
        return plan.decides == "exactness+timing"
    return rule not in TIMING_RULES or timing_decides(plan)


def _reason(findings: Sequence[EndpointFinding], verdict: Verdict, case: CampaignCase, disposition: Disposition) -> str:
    for finding in findings:
        if finding.decides and finding.verdict is verdict is not Verdict.PASS:
            return f"{finding.where}: {finding.rule}: {finding.reason}"
    decided = sum(finding.decides for finding in findings)
    return f"{decided} rules hold over {len(case.legs)} legs; {disposition}"


def _exactness(case: CampaignCase, legs: int) -> Exactness:
    """Count exact rows out of all planned legs."""
    prompts, later = case.plan.suite.prompts, case.legs[1:]
    rows = [] if case.teacher is None else case.teacher.rows
    compared = [] if case.plan.teacher_sha256 is None else case.legs
    return Exactness(
        teacher=sum(_exact_rows(leg, rows) for leg in compared),
        teacher_planned=0 if case.plan.teacher_sha256 is None else prompts * legs,
        cross_leg=sum(_exact_rows(leg, case.legs[0].rows) for leg in later),
        cross_leg_planned=prompts * (legs - 1),
    )


def _exact_rows(leg: LegRecord, reference: Sequence[SuiteRow | TeacherRow]) -> int:
    inexact = inexact_rows(leg.rows, reference)
    return sum(place not in inexact for place in range(len(leg.rows)))
