# SPDX-License-Identifier: Apache-2.0
"""The endpoint campaign of gate 3: legs of control and candidate, each a fresh server and one pass of the suite."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.analysis.endpoint.analyse import CANDIDATE_RAN
from pytest_laguna.analysis.endpoint.campaign_rules import PHASE_1_LEGS
from pytest_laguna.analysis.endpoint.clauses import CLAUSES, judge_clauses
from pytest_laguna.analysis.endpoint.identity import judge_identity
from pytest_laguna.analysis.endpoint.surroundings import Surroundings, judge_surroundings
from pytest_laguna.analysis.findings import Finding, RuleLine, decide
from pytest_laguna.analysis.machine.process import judge_cleanliness
from pytest_laguna.campaign import SIZE_LIMIT
from pytest_laguna.endpoint.kept import require_kept
from pytest_laguna.endpoint.suite import read_answers, read_suite
from pytest_laguna.evidence import files, reading, root
from pytest_laguna.evidence.endpoint import reader
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis, EndpointFinding, Promotion, RepetitionFigures
from pytest_laguna.evidence.endpoint.plan import EndpointPlan, Teacher, leg_name
from pytest_laguna.evidence.endpoint.reader import EndedLeg, EndpointEvidence
from pytest_laguna.evidence.experiments import DIAGNOSTIC, ENDPOINT
from pytest_laguna.evidence.machine.leased_cards import LeaseStart
from pytest_laguna.evidence.machine.reader import read_machine
from pytest_laguna.evidence.schema_v1 import same_content
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.experiments.experiment import Attempted, Experiment
from pytest_laguna.experiments.protocol import Protocol, parse_protocol, plan_endpoint, require_frozen
from pytest_laguna.verdict import UnusableEvidenceError, Verdict

_NOT_ASKED = "not applicable: the plan does without it, or what it looks at is not there"


@dataclasses.dataclass(frozen=True, slots=True)
class Judgeable:
    """Evidence of an endpoint campaign.

    Attributes:
        campaign: digest of the campaign; it orders the legs.
        legs: the legs, with those that left no record.
        teacher: the canonical answers; None if there are none yet.
        beside: findings on identity and surroundings by clause; they need more than the legs.
    """

    campaign: str
    legs: EndpointEvidence
    teacher: Teacher | None
    beside: Mapping[str, Finding | None]


class EndpointExperiment(Experiment[EndpointPlan, Judgeable, EndpointAnalysis]):
    """The endpoint campaign."""

    row = ENDPOINT
    plan_form = EndpointPlan

    def plan(self, attempted: Attempted, place: Path) -> EndpointPlan:
        previous = attempted.start.previous
        return plan_endpoint(
            attempted.campaign,
            attempted.start.lane,
            _protocol(attempted, place),
            ranks=len(attempted.cards),
            target_config=reading.read_config(place / reading.TARGET_CONFIG),
            authorised_by=previous.receipt if previous else None,
        )

    def read(self, attempted: Attempted, place: Path, plan: EndpointPlan) -> Judgeable:
        suite, campaign = read_suite(place / reader.SUITE, plan.suite), attempted.campaign.digest
        if plan.teacher_sha256 is not None:
            read_answers(place / reader.TEACHER, suite, plan.teacher_sha256)
        legs = reader.read_legs(place)
        for leg in legs.legs:
            require_kept(reader.leg_directory(place, leg.request.sequence, leg.request.leg), leg, suite)
        _require_phase_1(place, plan, legs, campaign)
        beside = {
            "identity-exact": _identity(attempted, place, legs),
            "cards-idle": _surroundings(attempted, place, legs),
        }
        return Judgeable(campaign, legs, reader.take_teacher(place, legs.legs), beside)

    def judge(self, plan: EndpointPlan, evidence: Judgeable) -> EndpointAnalysis:
        legs = evidence.legs
        return analyse_endpoint(plan, legs.legs, teacher=evidence.teacher, campaign=evidence.campaign, ended=legs.ended)

    def rules(self, analysis: EndpointAnalysis) -> Mapping[str, Sequence[RuleLine]]:
        return {clause: [*_lines_of(analysis, rules)] for clause, rules in CLAUSES.items()}

    def figures(self, analysis: EndpointAnalysis) -> dict[str, str]:
        return endpoint_figures(analysis)

    def notice(self, analysis: EndpointAnalysis) -> str:
        return analysis.label

    def findings(self, analysis: EndpointAnalysis, evidence: Judgeable | None = None) -> Mapping[str, Finding | None]:
        if evidence is None:
            return judge_clauses(analysis, {})
        ended = {leg: _ended(one) for leg, one in evidence.legs.ended.items()}
        return {**evidence.beside, **dict.fromkeys(CLAUSES), **judge_clauses(analysis, ended)}

    def unexercised(self, analysis: EndpointAnalysis) -> list[tuple[str, str, str]]:
        clause_of = {rule: clause for clause, rules in CLAUSES.items() for rule in rules}
        listed: list[tuple[str, str, str]] = []
        if analysis.null_verdict is not None:
            told = f"A/A campaign: control against control is {analysis.null_verdict}; the candidate did not run"
            listed.append((clause_of[CANDIDATE_RAN], CANDIDATE_RAN, told))
        listed += [(clause_of[rule], rule, _NOT_ASKED) for rule in analysis.not_asked]
        listed += [
            (clause_of[finding.rule], finding.rule, _reported(finding))
            for finding in analysis.findings
            if not finding.decides
        ]
        return listed

    def lines(self, analysis: EndpointAnalysis) -> tuple[Sequence[str], Iterator[str]]:
        return [f"{analysis.label}: {analysis.disposition}"], _figure_lines(analysis)


EXPERIMENT = EndpointExperiment()


def _protocol(attempted: Attempted, place: Path) -> Protocol:
    """Read the kept protocol; it must be the committed one, and the one of every earlier attempt."""
    content = files.read_bytes(place / reader.PROTOCOL, limit=SIZE_LIMIT)
    if not read_model(place / reader.PROTOCOL_COMMIT, reader.ProtocolCommit).holds(content):
        message = f"{reader.PROTOCOL}: not the bytes that {reader.PROTOCOL_COMMIT} names; expected the committed ones"
        raise UnusableEvidenceError(message)
    require_frozen(content, attempted.directory, attempted.start)
    return parse_protocol(content, reader.PROTOCOL)


def _require_phase_1(place: Path, plan: EndpointPlan, legs: EndpointEvidence, campaign: str) -> None:
    """Refuse a judgement of phase 1 other than the one of the first two legs."""
    first = [leg for leg in legs.legs if leg.request.sequence <= PHASE_1_LEGS]
    path = place / reader.PHASE_1
    if len(first) < PHASE_1_LEGS:
        if path.exists():
            message = f"{path.name}: there though {len(first)} of its {PHASE_1_LEGS} legs left a record; expected none"
            raise UnusableEvidenceError(message)
        return
    judged = analyse_endpoint(plan, first, teacher=reader.take_teacher(place, first), campaign=campaign)
    if not same_content(path, files.canonical_json(judged.canonical())):
        message = f"{path.name}: does not follow from the first {PHASE_1_LEGS} legs; expected what was judged of them"
        raise UnusableEvidenceError(message)


def _ended(leg: EndedLeg) -> Finding:
    """Return the finding on a leg without a record: VOID, or worse if its server left something running."""
    process = leg.end.process if leg.end is not None else None
    if process is None:
        return Verdict.VOID, leg.reason
    verdict, reason = judge_cleanliness(process)
    if verdict is not Verdict.PASS:
        return verdict, reason
    return Verdict.VOID, f"{leg.reason}; its server: {process}"


def _identity(attempted: Attempted, place: Path, legs: EndpointEvidence) -> Finding | None:
    previous = attempted.start.previous
    proven = None
    if previous is not None:
        gate = attempted.directory.parent.with_name(f"gate{previous.gate}")
        path = root.attempt_directory(gate, previous.attempt) / root.EVIDENCE / DIAGNOSTIC.directory
        proven = reading.read_identity(path) if path.is_dir() else None
    servers = {leg_name(leg.request.sequence, leg.request.leg): leg.server.argv[0] for leg in legs.legs}
    engine = attempted.campaign.lane_settings(attempted.start.lane).engine
    found = judge_identity(
        reading.read_identity(place),
        servers | dict.fromkeys(legs.ended),
        proven,
        attempted.campaign.candidate.validator,
        engine.interpreter if engine else None,
    )
    verdict, reason = decide(found, "")
    return None if verdict is Verdict.PASS else (verdict, reason)


def _surroundings(attempted: Attempted, place: Path, legs: EndpointEvidence) -> Finding | None:
    """Judge cards and host around every leg, with or without a record."""
    if not isinstance(attempted.lease, LeaseStart):
        return Verdict.NOT_PROVEN, "no lease is recorded"
    settings = attempted.campaign.lane_settings(attempted.start.lane)
    spans = {leg_name(leg.request.sequence, leg.request.leg): (leg.started, leg.ended) for leg in legs.legs}
    seen = Surroundings(
        lease=attempted.lease,
        leased=read_machine(attempted.evidence).before,
        idle=settings.idle,
        host=settings.host,
        legs=[reader.read_surroundings(place, name, spans.get(name)) for name in sorted({*spans, *legs.ended})],
    )
    return judge_surroundings(seen)


def _lines_of(analysis: EndpointAnalysis, rules: Sequence[str]) -> Iterator[RuleLine]:
    for finding in analysis.findings:
        if finding.rule in rules:
            told = f"{finding.where}: {finding.reason}" if finding.reason else ""
            yield finding.rule, *((finding.verdict, told) if finding.decides else (None, _reported(finding)))
    yield from ((rule, None, _NOT_ASKED) for rule in rules if rule in analysis.not_asked)


def _reported(finding: EndpointFinding) -> str:
    told = f"{finding.verdict} {finding.where}: {finding.reason}" if finding.reason else str(finding.verdict)
    return f"reported: {told}"


def endpoint_figures(analysis: EndpointAnalysis) -> dict[str, str]:
    """Return decision and results: rates in tokens/s, legacy unless named otherwise, and changes in per cent."""
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


def _figure_lines(analysis: EndpointAnalysis) -> Iterator[str]:
    """Yield rates in tokens/s, legacy, and changes in per cent."""
    for leg in analysis.legs:
        rates = f"{leg.headline:.6f} (conventional {leg.headline_conventional:.6f})"
        rest = f"acceptance {leg.acceptance_rate:.6f}, target cycle {leg.target_cycle_ms:.4f} ms"
        yield f"block {leg.block} {leg.leg}: median throughput {rates}, {rest}"
    for pair in analysis.pairs:
        yield (
            f"block {pair.block} {pair.candidate} against {pair.control}:"
            f" median throughput {pair.headline_change_percent:+.4f} %, rows won {pair.rows_won} of {pair.rows},"
            f" median row {pair.median_row_change_percent:+.4f} %,"
            f" cycle saving {pair.cycle_saving_ms:.4f} ms"
        )
    several = analysis.repetition
    if several is not None:
        power = "unknown" if several.power is None else f"{several.power:.3f}"
        yield (
            f"{len(several.blocks)} blocks: gain {several.gain_percent:+.4f} %"
            f" ({several.low_percent:+.4f} % to {several.high_percent:+.4f} %), {several.conclusion},"
            f" power for the frozen effect {power}"
        )
    if analysis.promotion is not None:
        yield f"lower candidate start {analysis.promotion.value}, record {analysis.promotion.record}"
    yield f"published rules: {analysis.published_verdict}; {analysis.decides} decides on this lane"
