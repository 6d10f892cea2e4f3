# SPDX-License-Identifier: Apache-2.0
"""Findings from the raw files of an attempt: derived when it is sealed, and again by verification."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_laguna.analysis.clauses import Evidence
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.analysis.machine.lease import Session, judge_machine, judge_processes, judge_records
from pytest_laguna.analysis.review import Running, judge_review, needs_review
from pytest_laguna.campaign import Campaign
from pytest_laguna.evidence import files, review, root
from pytest_laguna.evidence.aa.rehearsal import NULL_TIMING, read_shortened
from pytest_laguna.evidence.diagnostic.analysis import NOTICE
from pytest_laguna.evidence.experiments import DIAGNOSTIC, EVENTS
from pytest_laguna.evidence.journal import Event
from pytest_laguna.evidence.machine.reader import read_machine, read_processes
from pytest_laguna.evidence.reading import IDENTITY, read_identity
from pytest_laguna.evidence.review import read_reviewed
from pytest_laguna.evidence.schemas import AttemptStart
from pytest_laguna.experiments.experiment import Attempted, Derived, campaign_copy, derive
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict


def judge_raw(directory: Path, start: AttemptStart, events: Sequence[Event]) -> Evidence:
    """Judge the raw files of an attempt; a file that cannot be used counts against it, and loses nothing else.

    Args:
        directory: the attempt's.
        start: its ``attempt.json``.
        events: its journal.
    """
    against = judge_records(_recorded(events), functools.partial(_digest, directory / root.EVIDENCE))
    if start.gate == 1:
        return _judge_gate_1(directory, start, against)
    notice = ""
    try:
        campaign = campaign_copy(directory)
        notice = _notice(campaign, start.gate)
        settings = campaign.lane_settings(start.lane)
        machine = read_machine(directory / root.EVIDENCE)
        session, terms = Session.of(start, events), settings.terms
        against += judge_machine(machine, settings.idle, settings.host, session, terms)
        if needs_review(start.gate, start.lane):
            against += _judge_reviewed(directory, start, campaign)
        derived = derive(Attempted(directory, start, campaign, machine.lease))
    except NotProvenError as error:
        return Evidence(machine=[*against, (Verdict.NOT_PROVEN, str(error))], notice=notice)
    except UnusableEvidenceError as error:
        return Evidence(machine=[*against, (Verdict.VOID, str(error))], notice=notice)
    return _with_experiment(derived, against, notice)


def _judge_gate_1(directory: Path, start: AttemptStart, against: list[Finding]) -> Evidence:
    against = [*against, *judge_processes(read_processes(directory / root.EVIDENCE))]
    try:
        campaign = campaign_copy(directory)
    except UnusableEvidenceError:  # verification has a rule of its own for that
        return Evidence(machine=against)
    try:
        shortened = read_shortened(directory / root.EVIDENCE)
    except UnusableEvidenceError as error:
        return Evidence(machine=[*against, (Verdict.VOID, str(error))])
    try:
        derived = derive(Attempted(directory, start, campaign, None))
    except (NotProvenError, UnusableEvidenceError) as error:  # of its clause alone: what failed before it is told first
        verdict = Verdict.NOT_PROVEN if isinstance(error, NotProvenError) else Verdict.VOID
        return Evidence(machine=against, clauses={NULL_TIMING: (verdict, str(error))}, unexercised=shortened)
    evidence = _with_experiment(derived, against, "")
    return dataclasses.replace(evidence, unexercised=[*evidence.unexercised, *shortened])


def _with_experiment(derived: Derived[Any] | None, against: list[Finding], notice: str) -> Evidence:
    if derived is None:
        return Evidence(machine=against, notice=notice)
    return Evidence(
        machine=against,
        clauses={clause: finding for clause, finding in derived.clauses.items() if finding is not None},
        unexercised=derived.unexercised,
        figures=derived.figures,
        notice=notice,
    )


def _judge_reviewed(directory: Path, start: AttemptStart, campaign: Campaign) -> list[Finding]:
    """Return the findings on the kept records of freezing and reviewing; raises UnusableEvidenceError."""
    place = directory / root.EVIDENCE / review.DIRECTORY
    running = Running(start.identity, _models(directory / root.EVIDENCE, campaign.folders(start.lane)))
    finding = judge_review(read_reviewed(place / review.FROZEN, place / review.REVIEW), running)
    return [] if finding[0] is Verdict.PASS else [finding]


def _models(evidence: Path, named: Sequence[str]) -> dict[str, Mapping[str, str] | None]:
    """Return the files of the campaign's models by folder; None for an unrecorded one; raises likewise."""
    recorded = [row.directory for row in (DIAGNOSTIC, EVENTS) if (evidence / row.directory / IDENTITY).exists()]
    if not named or not recorded:
        return dict.fromkeys(named)
    return read_identity(evidence / recorded[0]).models.named(named)


def _recorded(events: Sequence[Event]) -> Mapping[str, str]:
    """Return the digests of recorded files by their path below the evidence."""
    return {str(event.data.get("path")): str(event.data.get("sha256")) for event in events if event.kind == "recorded"}


def _digest(evidence: Path, name: str) -> str | None:
    """Return the digest of a file, or None if it cannot be read."""
    try:
        return files.sha256_file(evidence / name)
    except (OSError, ValueError):
        return None


def _notice(campaign: Campaign, gate: int) -> str:
    """Return the remark on the worth of a gate 2 with a diagnostic or an event profile, whatever its verdict."""
    diagnostic = any(row.gate == gate for row in (DIAGNOSTIC, EVENTS) if row.asked(campaign, campaign.lane))
    return NOTICE if diagnostic else ""
