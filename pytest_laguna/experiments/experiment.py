# SPDX-License-Identifier: Apache-2.0
"""The interface of an experiment, and the derivation of its analysis from the raw files of an attempt.

An experiment is registered by one row in ``evidence.experiments``. Gates run it, verification derives its analysis
again, and the report shows it, all through this interface.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from pytest_laguna.analysis.findings import Finding, RuleLine, decide_clause
from pytest_laguna.campaign import SIZE_LIMIT, Campaign, CampaignError, parse_campaign
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.diagnostic.analysis import RuleResult
from pytest_laguna.evidence.experiments import ROWS, Row, rows_asked
from pytest_laguna.evidence.machine.leased_cards import LeaseStart
from pytest_laguna.evidence.machine.reader import read_machine
from pytest_laguna.evidence.reading import FAILURE, PLAN, Failure, Missing, read_piece
from pytest_laguna.evidence.schema_v1 import read_raised, same_content
from pytest_laguna.evidence.schemas import AttemptStart, Schema, read_model
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict

Plan = TypeVar("Plan", bound=Schema)
Evidence = TypeVar("Evidence")
Analysis = TypeVar("Analysis", bound=Schema)


@dataclasses.dataclass(frozen=True, slots=True)
class Attempted:
    """An attempt under analysis."""

    directory: Path
    start: AttemptStart
    campaign: Campaign
    lease: LeaseStart | Missing | None

    @property
    def evidence(self) -> Path:
        """Directory of the attempt's raw files."""
        return self.directory / root.EVIDENCE

    @property
    def cards(self) -> list[str]:
        """Identities of the leased cards.

        Raises:
            NotProvenError: no lease is recorded.
        """
        if not isinstance(self.lease, LeaseStart):
            raise NotProvenError("no lease is recorded; nothing can have run on its cards")
        return [card.identity for card in self.lease.cards]


class Experiment(abc.ABC, Generic[Plan, Evidence, Analysis]):
    """One kind of experiment; instances hold no state.

    Attributes:
        row: its static facts.
        plan_form: form of its ``plan.json``.
    """

    row: Row
    plan_form: type[Plan]

    @abc.abstractmethod
    def plan(self, attempted: Attempted, place: Path) -> Plan:
        """Derive the plan from the campaign, the lease and the kept configuration.

        Args:
            attempted: the attempt.
            place: the experiment's directory in it.

        Raises:
            NotProvenError: the plan needs something that is missing.
            UnusableEvidenceError: the plan needs something that cannot be used.
        """

    @abc.abstractmethod
    def read(self, attempted: Attempted, place: Path, plan: Plan) -> Evidence:
        """Read the evidence of the experiment; raises as ``plan``."""

    @abc.abstractmethod
    def judge(self, plan: Plan, evidence: Evidence) -> Analysis:
        """Judge the evidence; a pure function of its arguments; raises as ``plan``."""

    @abc.abstractmethod
    def rules(self, analysis: Analysis) -> Mapping[str, Sequence[RuleLine]]:
        """Return the results of all rules by clause."""

    @abc.abstractmethod
    def figures(self, analysis: Analysis) -> dict[str, str]:
        """Return the figures of a report for machines, by name, as text."""

    @abc.abstractmethod
    def notice(self, analysis: Analysis) -> str:
        """Return a remark on the worth of the analysis, for every proof."""

    def findings(self, analysis: Analysis, evidence: Evidence | None = None) -> Mapping[str, Finding | None]:
        """Return the deciding finding of each clause, or None if it is proven.

        Args:
            analysis: of the evidence.
            evidence: what was judged; None if only the analysis is at hand, as after a session that died.
        """
        del evidence
        verdicts = {clause: decide_clause(lines) for clause, lines in self.rules(analysis).items()}
        return {clause: None if found[0] is Verdict.PASS else found for clause, found in verdicts.items()}

    def unexercised(self, analysis: Analysis) -> list[tuple[str, str, str]]:
        """Return clause, rule and reason of every listed rule."""
        return [
            (clause, rule, reason)
            for clause, lines in self.rules(analysis).items()
            for rule, verdict, reason in lines
            if verdict is None
        ]

    def lines(self, analysis: Analysis) -> tuple[Sequence[str], Iterator[str]]:
        """Return the lines before and after the list of clauses in a text for people."""
        return [], (f"{name}: {value}" for name, value in self.figures(analysis).items())


def rule_lines(clauses: Mapping[str, Mapping[str, RuleResult]]) -> dict[str, list[RuleLine]]:
    """Return the results of an analysis whose clauses are tables of rules, as ``Experiment.rules`` does."""
    return {
        clause: [(rule, result.verdict, result.reason) for rule, result in results.items()]
        for clause, results in clauses.items()
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Derived(Generic[Analysis]):
    """The analysis of an attempt's experiment, derived from the raw files.

    Attributes:
        experiment: whose it is.
        analysis: the typed content of ``analysis.json``.
        clauses: the finding that decides each clause, or None if it is proven.
    """

    experiment: Experiment[Any, Any, Analysis]
    analysis: Analysis
    clauses: Mapping[str, Finding | None]

    @property
    def content(self) -> bytes:
        """Bytes of ``analysis.json``."""
        return files.canonical_json(self.analysis.canonical())

    @property
    def rules(self) -> Mapping[str, Sequence[RuleLine]]:
        """Findings of the rules by clause."""
        return self.experiment.rules(self.analysis)

    @property
    def figures(self) -> dict[str, str]:
        """Figures for a report for machines."""
        return self.experiment.figures(self.analysis)

    @property
    def notice(self) -> str:
        """Remark on the worth of the analysis."""
        return self.experiment.notice(self.analysis)

    @property
    def unexercised(self) -> list[tuple[str, str, str]]:
        """Clause, rule and reason of every listed rule."""
        return self.experiment.unexercised(self.analysis)

    @property
    def text(self) -> str:
        """The analysis for people: a line a clause, then the figures."""
        head, tail = self.experiment.lines(self.analysis)
        found = [(clause, *(finding or (Verdict.PASS, ""))) for clause, finding in self.clauses.items()]
        clauses = [f"{clause:<20} {verdict} {reason}".rstrip() for clause, verdict, reason in found]
        return "".join(f"{files.printable(line)}\n" for line in [*head, *clauses, *tail])


def implementation(row: Row) -> Experiment[Any, Any, Any]:
    """Return the experiment of a row of the registry.

    Raises:
        TypeError: the row names something else.
    """
    found = pkgutil.resolve_name(row.implementation)
    if not isinstance(found, Experiment):
        raise TypeError(f"{row.implementation}: seen {type(found).__name__}; expected an Experiment")
    return found


def read_attempted(directory: Path) -> Attempted:
    """Read an attempt for analysis.

    Raises:
        UnusableEvidenceError: one of them cannot be used.
    """
    start = read_model(directory / root.ATTEMPT, AttemptStart)
    lease = read_machine(directory / root.EVIDENCE).lease if start.gate > 1 else None
    return Attempted(directory, start, campaign_copy(directory), lease)


def campaign_copy(directory: Path) -> Campaign:
    """Read the campaign file in an attempt's evidence.

    Raises:
        UnusableEvidenceError: it is not a campaign.
    """
    content = files.read_bytes(directory / root.CAMPAIGN, limit=SIZE_LIMIT)
    try:
        return parse_campaign(content, root.CAMPAIGN)
    except CampaignError as error:
        raise UnusableEvidenceError(str(error)) from error


def asked(attempted: Attempted) -> Experiment[Any, Any, Any] | None:
    """Return the experiment of the attempt's gate, or None."""
    rows = rows_asked(attempted.campaign, attempted.start.gate, attempted.start.lane)
    return implementation(rows[0]) if rows else None


def derive(attempted: Attempted) -> Derived[Any] | None:
    """Derive the analysis of an attempt's experiment, and compare it with the written one.

    Returns:
        None if the gate runs no experiment.

    Raises:
        NotProvenError: the experiment did not end, or it needs something that is missing.
        UnusableEvidenceError: something cannot be used, or the written analysis does not follow from the raw files.
    """
    experiment = asked(attempted)
    if experiment is None:
        return None
    path = attempted.evidence / experiment.row.directory / root.ANALYSIS
    name = str(path.relative_to(attempted.directory))
    failure = read_piece(path.parent, FAILURE, Failure)
    told = failure.reason if isinstance(failure, Failure) else None
    if not path.exists():
        raise NotProvenError(f"{name}: missing; {told or 'it was not carried out to its end'}")
    if told is not None:
        raise UnusableEvidenceError(f"{name}: there beside a {FAILURE} ({told}); expected one of them")
    derived = derive_from_files(experiment, attempted)
    if not same_content(path, derived.content):
        raise UnusableEvidenceError(f"{name}: does not follow from the files beside it")
    return derived


def derive_from_files(experiment: Experiment[Any, Any, Analysis], attempted: Attempted) -> Derived[Analysis]:
    """Derive an experiment's analysis from its files; raises as ``derive``."""
    place = attempted.evidence / experiment.row.directory
    plan = read_model(place / PLAN, experiment.plan_form)
    if plan != experiment.plan(attempted, place):
        raise UnusableEvidenceError(f"{PLAN}: not what the campaign, the lease and the target's configuration give")
    evidence = experiment.read(attempted, place, plan)
    analysis = experiment.judge(plan, evidence)
    return Derived(experiment, analysis, experiment.findings(analysis, evidence))


def recorded_verdicts(evidence: Path) -> Iterator[Verdict]:
    """Yield the verdict of every clause with a finding, from every readable analysis of a session.

    Args:
        evidence: an attempt's directory of that name.
    """
    for row in ROWS.values():
        experiment = implementation(row)
        for name in row.judged_files:
            with contextlib.suppress(UnusableEvidenceError):
                analysis = read_raised(evidence / row.directory / name, row.analysis)
                found = experiment.findings(analysis).values()
                yield from (finding[0] for finding in found if finding is not None)
