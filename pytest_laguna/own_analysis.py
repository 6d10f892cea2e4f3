# SPDX-License-Identifier: Apache-2.0
"""The analysis that a device gate has beside its journal, derived again from the raw files of an attempt."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from pytest_laguna.analysis.diagnostic import clause_verdict, diagnose
from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.analysis.endpoint.analyse import CANDIDATE_RAN
from pytest_laguna.analysis.endpoint.campaign_rules import PHASE_1_LEGS
from pytest_laguna.analysis.endpoint.clauses import CLAUSES as ENDPOINT_CLAUSES
from pytest_laguna.analysis.endpoint.clauses import judge_clauses
from pytest_laguna.analysis.endpoint.identity import judge_identity
from pytest_laguna.analysis.endpoint.surroundings import Surroundings, judge_surroundings
from pytest_laguna.analysis.event_diagnosis import analyse_events
from pytest_laguna.analysis.findings import Finding, decide
from pytest_laguna.analysis.null_timing import Start, analyse_null, judge_null, null_figures
from pytest_laguna.analysis.process import judge_cleanliness
from pytest_laguna.analysis.replay_checks import CONTAINMENT, preparation_checks
from pytest_laguna.analysis.replay_profile import reduce_profiles
from pytest_laguna.analysis.summary import diagnosis_figures, endpoint_figures
from pytest_laguna.analysis.wording import shown_in_places
from pytest_laguna.campaign import SIZE_LIMIT, Campaign, CampaignError, parse_campaign
from pytest_laguna.endpoint.kept import require_kept
from pytest_laguna.endpoint.suite import read_answers, read_suite
from pytest_laguna.evidence import diagnostic_reader, event_analysis, event_reader, files, root
from pytest_laguna.evidence import endpoint_reader as reader
from pytest_laguna.evidence.arm_record import Arm
from pytest_laguna.evidence.diagnostic import DIRECTORY, NOTICE, Comparison, Diagnosis
from pytest_laguna.evidence.diagnostic_evidence import present
from pytest_laguna.evidence.endpoint_analysis import EndpointAnalysis
from pytest_laguna.evidence.endpoint_campaign import EndpointPlan, leg_name
from pytest_laguna.evidence.endpoint_reader import EndedLeg, EndpointEvidence
from pytest_laguna.evidence.files import printable
from pytest_laguna.evidence.leased_cards import LeaseStart
from pytest_laguna.evidence.machine import read_machine
from pytest_laguna.evidence.rehearsal import (
    NULL_TIMING,
    STARTS_DIRECTORY,
    NullAnalysis,
    NullPlan,
    read_starts,
    rehearsed_attempt,
)
from pytest_laguna.evidence.schemas import AttemptStart, read_model
from pytest_laguna.planning import plan_diagnostic, plan_events, plan_null
from pytest_laguna.protocol import Protocol, parse_protocol, plan_endpoint, require_frozen
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict, worst


@dataclasses.dataclass(frozen=True, slots=True)
class OwnAnalysis:
    """What it gives.

    Attributes:
        content: the bytes of its file.
        clauses: what speaks against each clause; a clause that nothing speaks against has None.
        unexercised: clause, rule and why of each rule that is reported only, or cannot be exercised here.
        text: for people.
        figures: for a report that machines read.
    """

    content: bytes
    clauses: Mapping[str, Finding | None]
    unexercised: list[tuple[str, str, str]]
    text: str
    figures: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The worst of its clauses."""
        against = [finding[0] for finding in self.clauses.values() if finding is not None]
        return worst(against) if against else Verdict.PASS


@dataclasses.dataclass(frozen=True, slots=True)
class Attempted:
    """An attempt under analysis."""

    directory: Path
    start: AttemptStart
    campaign: Campaign
    lease: LeaseStart | None

    @property
    def cards(self) -> list[str]:
        """Identities of the leased cards.

        Raises:
            NotProvenError: no lease is recorded.
        """
        if self.lease is None:
            raise NotProvenError("no lease is recorded; nothing can have run on its cards")
        return [card.identity for card in self.lease.cards]


def read_attempted(directory: Path) -> Attempted:
    """Read what every analysis starts from.

    Raises:
        UnusableEvidenceError: one of its files cannot be used.
    """
    start = read_model(directory / root.ATTEMPT, AttemptStart)
    lease = read_machine(directory / root.EVIDENCE).lease if start.gate > 1 else None
    return Attempted(directory, start, campaign_copy(directory), lease)


def own_analysis(attempted: Attempted) -> OwnAnalysis | None:
    """Derive a gate's own analysis again, and hold it against the one that was written.

    Returns:
        None where the gate has none.

    Raises:
        NotProvenError: it was not carried out to its end, or what it needs is missing.
        UnusableEvidenceError: something cannot be used, or what was written does not follow from the raw files.
    """
    kind = _kind(attempted)
    if kind is None:
        return None
    place, derive = kind
    path = attempted.directory / root.EVIDENCE / place / root.ANALYSIS
    name = f"{root.EVIDENCE}/{place}/{root.ANALYSIS}"
    failure = diagnostic_reader.read_piece(path.parent, diagnostic_reader.FAILURE, diagnostic_reader.Failure)
    told = failure.reason if isinstance(failure, diagnostic_reader.Failure) else None
    if not path.exists():
        message = f"{name}: missing; {told or 'it was not carried out to its end'}"
        raise NotProvenError(message)
    if told is not None:
        message = f"{name}: there beside a {diagnostic_reader.FAILURE} ({told}); expected one of them"
        raise UnusableEvidenceError(message)
    derived = derive(attempted)
    if files.read_bytes(path, limit=len(derived.content) + 1) != derived.content:
        message = f"{name}: does not follow from the files beside it"
        raise UnusableEvidenceError(message)
    return derived


def recorded_verdicts(evidence: Path) -> Iterator[Verdict]:
    """What each clause came to, by every analysis that a session wrote and that can still be read.

    Args:
        evidence: an attempt's directory of that name.
    """
    clause_wise: tuple[tuple[str, type[Diagnosis | event_analysis.EventAnalysis]], ...] = (
        (DIRECTORY, Diagnosis),
        (event_analysis.DIRECTORY, event_analysis.EventAnalysis),
    )
    for place, model in clause_wise:
        with contextlib.suppress(UnusableEvidenceError):
            rules = read_model(evidence / place / root.ANALYSIS, model).clauses.values()
            yield from (clause_verdict(clause)[0] for clause in rules)
    for name in (reader.PHASE_1, root.ANALYSIS):
        with contextlib.suppress(UnusableEvidenceError):
            analysis = read_model(evidence / reader.DIRECTORY / name, EndpointAnalysis)
            yield from (verdict for verdict, _ in judge_clauses(analysis, {}).values())


_Derive: TypeAlias = Callable[[Attempted], OwnAnalysis]


def _kind(attempted: Attempted) -> tuple[str, _Derive] | None:
    gate, campaign = attempted.start.gate, attempted.campaign
    if gate == 1:
        return (
            (STARTS_DIRECTORY, derive_null)
            if NULL_TIMING in campaign.gate_clauses(1) and _on_a_device(attempted)
            else None
        )
    if gate == 2 and campaign.diagnostic is not None:  # noqa: PLR2004 - the diagnostic is gate 2's
        return DIRECTORY, derive_diagnosis
    if gate == 2 and campaign.event_profile is not None:  # noqa: PLR2004 - likewise
        return event_analysis.DIRECTORY, derive_events
    engine = campaign.lane_settings(attempted.start.lane).engine if gate == 3 else None  # noqa: PLR2004 - likewise
    if engine is not None and engine.protocol is not None:
        return reader.DIRECTORY, derive_endpoint
    return None


def _on_a_device(attempted: Attempted) -> bool:
    """Whether gates 2 and 3 need cards; on the cpu lane they are their own rehearsal."""
    return attempted.start.lane != "cpu"


def judge_starts(attempted: Attempted) -> NullAnalysis:
    """What control against control comes to; raises as ``own_analysis``."""
    evidence = attempted.directory / root.EVIDENCE
    place = evidence / STARTS_DIRECTORY
    plan = read_model(place / "plan.json", NullPlan)
    config = diagnostic_reader.read_config(place / reader.TARGET_CONFIG)
    if plan != plan_null(attempted.campaign, attempted.start.lane, config):
        raise UnusableEvidenceError("plan.json: not what the campaign and the target's configuration give")
    checks = {**CONTAINMENT, **preparation_checks(Arm.GRAPH_CONTROL, plan.target_layers)}
    starts = [Start(record, reduce_profiles(profiles, checks)) for record, profiles in read_starts(place)]
    endpoint = None
    if 3 in attempted.campaign.gates:  # noqa: PLR2004 - the endpoint is gate 3's
        null = rehearsed_attempt(evidence, attempted.campaign.name, 3, null=True)
        endpoint = read_model(null / root.EVIDENCE / reader.DIRECTORY / root.ANALYSIS, EndpointAnalysis)
    return analyse_null(plan, starts, endpoint)


def derive_null(attempted: Attempted) -> OwnAnalysis:
    """Judge control against control; raises as ``own_analysis``."""
    analysis = judge_starts(attempted)
    clauses = {NULL_TIMING: judge_null(analysis)}
    figures = null_figures(analysis)
    return OwnAnalysis(
        content=files.canonical_json(analysis.canonical()),
        clauses=clauses,
        unexercised=[],
        text=_text(["control against control"], clauses, (f"{name}: {value}" for name, value in figures.items())),
        figures=figures,
    )


def derive_diagnosis(attempted: Attempted) -> OwnAnalysis:
    """Judge the exact diagnostic's files; raises as ``own_analysis``."""
    place = attempted.directory / root.EVIDENCE / DIRECTORY
    evidence, plan = diagnostic_reader.read_diagnostic(place), diagnostic_reader.read_plan(place)
    config = present(evidence.target_config)
    if plan != plan_diagnostic(attempted.campaign, attempted.start.lane, attempted.cards, config):
        raise UnusableEvidenceError("plan.json: not what the campaign, the lease and the target's configuration give")
    diagnosis = diagnose(plan, evidence)
    return _by_rules(diagnosis, _diagnosis_lines(diagnosis), diagnosis_figures(diagnosis))


def derive_events(attempted: Attempted) -> OwnAnalysis:
    """Judge the event profile's files; raises as ``own_analysis``."""
    place = attempted.directory / root.EVIDENCE / event_analysis.DIRECTORY
    plan = event_reader.read_event_plan(place)
    evidence = event_reader.read_events(place, plan.arms)
    config = present(evidence.target_config)
    if plan != plan_events(attempted.campaign, attempted.start.lane, attempted.cards, config):
        raise UnusableEvidenceError("plan.json: not what the campaign, the lease and the target's configuration give")
    analysis = analyse_events(plan, evidence)
    return _by_rules(analysis, _event_lines(analysis), {})


def _by_rules(
    analysis: Diagnosis | event_analysis.EventAnalysis, lines: Iterator[str], figures: Mapping[str, str]
) -> OwnAnalysis:
    """An analysis of gate 2, whose clauses are what their rules come to."""
    clauses = {clause: clause_finding(analysis, clause) for clause in analysis.clauses}
    return OwnAnalysis(
        content=files.canonical_json(analysis.canonical()),
        clauses=clauses,
        unexercised=[*_unjudged(analysis)],
        text=_text([NOTICE], clauses, lines),
        figures=figures,
    )


def _event_lines(analysis: event_analysis.EventAnalysis) -> Iterator[str]:
    """The selected rank with its categories, in nanoseconds and per cent."""
    if analysis.selected is not None:
        chosen = analysis.selected
        yield f"slowest rank {chosen.rank} of {len(analysis.rank_total_ns)}: {chosen.total_ns} ns by {chosen.clock}"
        for kind, nanoseconds in chosen.category_ns.items():
            share = "withheld" if chosen.category_percent is None else f"{chosen.category_percent[kind]:.6f} %"
            yield f"{kind:<28} {nanoseconds} ns, {share}"
    figures = analysis.fitness_figures
    ratio = ""
    if figures is not None:
        ratio = f", {shown_in_places(figures.slowdown, figures.limit, 3)} times with a limit of {figures.limit}"
    yield f"instrument: {analysis.fitness}{ratio}; device work only: {analysis.device_work_only}"
    yield f"status: {analysis.status}; next: {analysis.action}; no endpoint and no submission is authorised"


def _unjudged(analysis: Diagnosis | event_analysis.EventAnalysis) -> Iterator[tuple[str, str, str]]:
    """Clause, rule and why of each rule that decides nothing."""
    for clause, rules in analysis.clauses.items():
        yield from ((clause, rule, result.reason) for rule, result in rules.items() if result.verdict is None)


def clause_finding(diagnosis: Diagnosis | event_analysis.EventAnalysis, clause: str) -> Finding | None:
    """What speaks against a clause of gate 2; None when nothing does."""
    verdict, reason = clause_verdict(diagnosis.clauses[clause])
    return None if verdict is Verdict.PASS else (verdict, reason)


def derive_endpoint(attempted: Attempted) -> OwnAnalysis:
    """Judge the endpoint campaign's files; raises as ``own_analysis``."""
    place = attempted.directory / root.EVIDENCE / reader.DIRECTORY
    protocol = _endpoint_protocol(attempted, place)
    plan, previous = reader.read_plan(place), attempted.start.previous
    expected = plan_endpoint(
        attempted.campaign,
        attempted.start.lane,
        protocol,
        ranks=len(attempted.cards),
        target_config=diagnostic_reader.read_config(place / reader.TARGET_CONFIG),
        authorised_by=previous.receipt if previous else None,
    )
    if plan != expected:
        raise UnusableEvidenceError("plan.json: not what campaign, protocol, lease and configuration give")
    suite = read_suite(place / reader.SUITE, plan.suite)
    if protocol.teacher is not None:
        read_answers(place / reader.TEACHER, suite, protocol.teacher.sha256)
    evidence = reader.read_legs(place)
    for leg in evidence.legs:
        require_kept(reader.leg_directory(place, leg.request.sequence, leg.request.leg), leg, suite)
    _require_phase_1(place, plan, evidence, attempted.campaign.digest)
    teacher = reader.take_teacher(place, evidence.legs)
    analysis = analyse_endpoint(
        plan, evidence.legs, teacher=teacher, campaign=attempted.campaign.digest, ended=evidence.ended
    )
    ended = {leg: _ended(one) for leg, one in evidence.ended.items()}
    clauses: dict[str, Finding | None] = {
        "identity-exact": _endpoint_identity(attempted, place, evidence),
        "cards-idle": _endpoint_idle(attempted, place, evidence),
        **dict.fromkeys(ENDPOINT_CLAUSES),
        **judge_clauses(analysis, ended),
    }
    return OwnAnalysis(
        content=files.canonical_json(analysis.canonical()),
        clauses=clauses,
        unexercised=[*_unexercised(analysis)],
        text=_text([f"{analysis.label}: {analysis.disposition}"], clauses, _endpoint_lines(analysis)),
        figures=endpoint_figures(analysis),
    )


def _endpoint_protocol(attempted: Attempted, place: Path) -> Protocol:
    """The kept protocol: the committed one, and that of every earlier attempt of the campaign."""
    content = files.read_bytes(place / reader.PROTOCOL, limit=SIZE_LIMIT)
    if not read_model(place / reader.PROTOCOL_COMMIT, reader.ProtocolCommit).holds(content):
        message = f"{reader.PROTOCOL}: not the bytes that {reader.PROTOCOL_COMMIT} names; expected the committed ones"
        raise UnusableEvidenceError(message)
    require_frozen(content, attempted.directory, attempted.start)
    return parse_protocol(content, reader.PROTOCOL)


def _require_phase_1(place: Path, plan: EndpointPlan, evidence: EndpointEvidence, campaign: str) -> None:
    """Phase 1 was judged from the first two legs, and from nothing else."""
    first = [leg for leg in evidence.legs if leg.request.sequence <= PHASE_1_LEGS]
    path = place / reader.PHASE_1
    if len(first) < PHASE_1_LEGS:
        if path.exists():
            message = f"{path.name}: there though {len(first)} of its {PHASE_1_LEGS} legs left a record; expected none"
            raise UnusableEvidenceError(message)
        return
    judged = analyse_endpoint(plan, first, teacher=reader.take_teacher(place, first), campaign=campaign)
    expected = files.canonical_json(judged.canonical())
    if files.read_bytes(path, limit=len(expected) + 1) != expected:
        message = f"{path.name}: does not follow from the first {PHASE_1_LEGS} legs; expected what was judged of them"
        raise UnusableEvidenceError(message)


def _ended(leg: EndedLeg) -> Finding:
    """A leg without a record is VOID, unless its server left something running; how that ended is told too."""
    process = leg.end.process if leg.end is not None else None
    if process is None:
        return Verdict.VOID, leg.reason
    verdict, reason = judge_cleanliness(process)
    if verdict is not Verdict.PASS:
        return verdict, reason
    return Verdict.VOID, f"{leg.reason}; its server: {process}"


def _endpoint_identity(attempted: Attempted, place: Path, evidence: EndpointEvidence) -> Finding | None:
    previous = attempted.start.previous
    proven = None
    if previous is not None:
        gate = attempted.directory.parent.with_name(f"gate{previous.gate}")
        path = root.attempt_directory(gate, previous.attempt) / root.EVIDENCE / DIRECTORY
        proven = reader.read_identity(path) if path.is_dir() else None
    servers = {leg_name(leg.request.sequence, leg.request.leg): leg.server.argv[0] for leg in evidence.legs}
    engine = attempted.campaign.lane_settings(attempted.start.lane).engine
    found = judge_identity(
        reader.read_identity(place),
        servers | dict.fromkeys(evidence.ended),
        proven,
        attempted.campaign.candidate.validator,
        engine.interpreter if engine else None,
    )
    return _against(found)


def _endpoint_idle(attempted: Attempted, place: Path, evidence: EndpointEvidence) -> Finding | None:
    """What was seen of cards and host around every leg, whether or not it left a record."""
    if attempted.lease is None:
        return Verdict.NOT_PROVEN, "no lease is recorded"
    settings = attempted.campaign.lane_settings(attempted.start.lane)
    legs = {leg_name(leg.request.sequence, leg.request.leg): (leg.started, leg.ended) for leg in evidence.legs}
    seen = Surroundings(
        lease=attempted.lease,
        leased=read_machine(attempted.directory / root.EVIDENCE).before,
        idle=settings.idle,
        host=settings.host,
        legs=[reader.read_surroundings(place, name, legs.get(name)) for name in sorted({*legs, *evidence.ended})],
    )
    return judge_surroundings(seen)


def _against(found: Mapping[str, Finding | None]) -> Finding | None:
    verdict, reason = decide(found, "")
    return None if verdict is Verdict.PASS else (verdict, reason)


def _unexercised(analysis: EndpointAnalysis) -> Iterator[tuple[str, str, str]]:
    clause_of = {rule: clause for clause, rules in ENDPOINT_CLAUSES.items() for rule in rules}
    if analysis.null_verdict is not None:
        told = f"null campaign: control against control came to {analysis.null_verdict}, of the candidate nothing"
        yield clause_of[CANDIDATE_RAN], CANDIDATE_RAN, told
    for rule in analysis.not_asked:
        yield clause_of[rule], rule, "not applicable: the plan does without it, or what it looks at is not there"
    for finding in analysis.findings:
        if not finding.decides:
            told = f"{finding.verdict} {finding.where}: {finding.reason}" if finding.reason else finding.verdict
            yield clause_of[finding.rule], finding.rule, f"reported: {told}"


def _text(head: list[str], clauses: Mapping[str, Finding | None], figures: Iterator[str]) -> str:
    lines = list(head)
    for clause, finding in clauses.items():
        verdict, reason = finding or (Verdict.PASS, "")
        lines.append(f"{clause:<20} {verdict} {reason}".rstrip())
    return "".join(f"{printable(line)}\n" for line in [*lines, *figures])


def _diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The timing gates with what they could have shown, in milliseconds."""
    for name, gate in (diagnosis.timing or {}).items():
        yield _timing_line(name, gate)
    if diagnosis.published is not None:
        yield f"published rules: {diagnosis.published}; {diagnosis.decides} decides on this lane"


def _timing_line(name: str, gate: Comparison) -> str:
    figures = f"control {_milliseconds(gate.control)}, candidate {_milliseconds(gate.candidate)}"
    saving = f"saving {_milliseconds(gate.saving)}"
    if gate.interval is not None:
        low, high = (_milliseconds(end) for end in gate.interval)
        saving += f" (95 %: {low} to {high})"
    if gate.detectable is not None:
        saving += f", detectable {_milliseconds(gate.detectable)}"
    return f"{name:<28} {figures}, {saving} ms: {'passed' if gate.passed else 'not passed'}"


def _milliseconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.6f}"


def _endpoint_lines(analysis: EndpointAnalysis) -> Iterator[str]:
    """Rates in tokens/s, legacy; changes in per cent."""
    for leg in analysis.legs:
        yield (
            f"block {leg.block} {leg.leg}: headline {leg.headline:.6f} (conventional {leg.headline_conventional:.6f}),"
            f" acceptance {leg.acceptance_rate:.6f}, target cycle {leg.target_cycle_ms:.4f} ms"
        )
    for pair in analysis.pairs:
        yield (
            f"block {pair.block} {pair.candidate} against {pair.control}:"
            f" headline {pair.headline_change_percent:+.4f} %, rows won {pair.rows_won} of {pair.rows},"
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


def campaign_copy(directory: Path) -> Campaign:
    """The campaign file in an attempt's evidence.

    Raises:
        UnusableEvidenceError: it is not a campaign.
    """
    content = files.read_bytes(directory / root.CAMPAIGN, limit=SIZE_LIMIT)
    try:
        return parse_campaign(content, root.CAMPAIGN)
    except CampaignError as error:
        raise UnusableEvidenceError(str(error)) from error
