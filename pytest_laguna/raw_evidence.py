# SPDX-License-Identifier: Apache-2.0
"""What an attempt's raw files come to, beside its journal: derived when it is sealed, and again by verification."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pytest_laguna.analysis.clauses import Evidence
from pytest_laguna.analysis.diagnostic import diagnose
from pytest_laguna.analysis.findings import Finding, gravest
from pytest_laguna.analysis.lease import judge_machine
from pytest_laguna.campaign import SIZE_LIMIT, Campaign, CampaignError, parse_campaign
from pytest_laguna.evidence import diagnostic_reader as reader
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.diagnostic import DIRECTORY, Comparison, Diagnosis
from pytest_laguna.evidence.diagnostic_evidence import present
from pytest_laguna.evidence.files import printable
from pytest_laguna.evidence.leased_cards import LeaseStart
from pytest_laguna.evidence.machine import read_machine
from pytest_laguna.evidence.schemas import AttemptStart, read_model
from pytest_laguna.planning import plan_diagnostic
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict, worst

DIAGNOSIS = f"{root.EVIDENCE}/{DIRECTORY}/{root.ANALYSIS}"


def judge_raw(directory: Path, start: AttemptStart) -> Evidence:
    """Judge the raw files of an attempt; a file that cannot be used counts against it, and loses nothing else.

    Args:
        directory: the attempt's.
        start: its ``attempt.json``.
    """
    if start.gate == 1:
        return Evidence()
    try:
        campaign = campaign_copy(directory)
        settings = campaign.lane_settings(start.lane)
        machine = read_machine(directory / root.EVIDENCE)
        against = judge_machine(machine, settings.idle, settings.host)
        if start.gate != 2 or campaign.diagnostic is None:  # noqa: PLR2004 - the diagnostic is gate 2's
            return Evidence(machine=against)
        diagnosis = _stored_diagnosis(directory, campaign, start, machine.lease)
    except NotProvenError as error:
        return Evidence(machine=[(Verdict.NOT_PROVEN, str(error))])
    except UnusableEvidenceError as error:
        return Evidence(machine=[(Verdict.VOID, str(error))])
    return Evidence(
        machine=against,
        clauses={clause: finding for clause in diagnosis.clauses if (finding := clause_finding(diagnosis, clause))},
        unexercised=[
            (clause, rule, result.reason)
            for clause, rules in diagnosis.clauses.items()
            for rule, result in rules.items()
            if result.verdict is None
        ],
    )


def clause_finding(diagnosis: Diagnosis, clause: str) -> Finding | None:
    """The gravest of what a clause's rules found; None when nothing speaks against it."""
    results = diagnosis.clauses[clause].items()
    return gravest([
        (result.verdict, f"{rule}: {result.reason}")
        for rule, result in results
        if result.verdict not in {None, Verdict.PASS}
    ])


def derive_diagnosis(directory: Path, campaign: Campaign, start: AttemptStart, lease: LeaseStart | None) -> Diagnosis:
    """Judge the diagnostic's files again.

    Raises:
        NotProvenError: there is no diagnostic, or no lease.
        UnusableEvidenceError: the plan is not the one that campaign, lease and models give.
    """
    place = directory / root.EVIDENCE / DIRECTORY
    if lease is None:
        raise NotProvenError("no lease is recorded; the diagnostic has no cards")
    evidence = reader.read_diagnostic(place)
    plan = reader.read_plan(place)
    cards = [card.identity for card in lease.cards]
    derived = plan_diagnostic(campaign, start.lane, cards, present(evidence.target_config))
    if plan != derived:
        raise UnusableEvidenceError("plan.json: not what the campaign, the lease and the target's configuration give")
    return diagnose(plan, evidence)


@dataclasses.dataclass(frozen=True, slots=True)
class Reanalysis:
    """What a gate's own analysis gives, made again.

    Attributes:
        content: the bytes of its file.
        verdict: the worst of its clauses.
        text: for people.
    """

    content: bytes
    verdict: Verdict
    text: str


def analyse_again(directory: Path) -> Reanalysis:
    """Run the frozen analysis of an attempt on its raw files, of which none is written.

    Args:
        directory: the attempt's, sealed or a copy.

    Raises:
        ValueError: its gate has no analysis but the journal's.
        NotProvenError: something that the analysis needs is missing.
        UnusableEvidenceError: something cannot be used, or the analysis that was sealed is another.
    """
    if not (directory / root.ATTEMPT).is_file():
        message = f"{directory}: has no {root.ATTEMPT}; expected an attempt's directory"
        raise ValueError(message)
    start = read_model(directory / root.ATTEMPT, AttemptStart)
    campaign = campaign_copy(directory)
    if start.gate != 2 or campaign.diagnostic is None:  # noqa: PLR2004 - the diagnostic is gate 2's
        message = f"{directory}: gate {start.gate} of {campaign.name} has no analysis beside its journal; use verify"
        raise ValueError(message)
    lease = read_machine(directory / root.EVIDENCE).lease
    diagnosis = _stored_diagnosis(directory, campaign, start, lease)
    findings = [finding for clause in diagnosis.clauses if (finding := clause_finding(diagnosis, clause))]
    verdict = worst(found for found, _ in findings) if findings else Verdict.PASS
    return Reanalysis(files.canonical_json(diagnosis.canonical()), verdict, describe(diagnosis))


def describe(diagnosis: Diagnosis) -> str:
    """The clauses, and the timing gates with what they could have shown; times in milliseconds."""
    lines: list[str] = [diagnosis.notice]
    for clause in diagnosis.clauses:
        verdict, reason = clause_finding(diagnosis, clause) or (Verdict.PASS, "")
        lines.append(f"{clause:<20} {verdict} {reason}".rstrip())
    for name, gate in (diagnosis.timing or {}).items():
        lines.append(_timing_line(name, gate))
    if diagnosis.published is not None:
        lines.append(f"published rules: {diagnosis.published}; {diagnosis.decides} decides on this lane")
    return "".join(f"{printable(line)}\n" for line in lines)


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


def _stored_diagnosis(directory: Path, campaign: Campaign, start: AttemptStart, lease: LeaseStart | None) -> Diagnosis:
    """The diagnosis in the evidence, which must be what the raw files give.

    Raises:
        NotProvenError: there is none.
        UnusableEvidenceError: it is not.
    """
    path = directory / DIAGNOSIS
    if not path.exists():
        message = f"{DIAGNOSIS}: missing; the diagnostic was not carried out to its end"
        raise NotProvenError(message)
    diagnosis = derive_diagnosis(directory, campaign, start, lease)
    derived = files.canonical_json(diagnosis.canonical())
    if files.read_bytes(path, limit=len(derived) + 1) != derived:
        message = f"{DIAGNOSIS}: does not follow from the files beside it"
        raise UnusableEvidenceError(message)
    return diagnosis


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
