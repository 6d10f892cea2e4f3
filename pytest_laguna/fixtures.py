# SPDX-License-Identifier: Apache-2.0
"""The fixtures of gates' tests; registered only in a gate session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from pytest_laguna import crossover as endpoint_crossover
from pytest_laguna import diagnostic, event_diagnostic
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.arm_runner import ArmRunner
from pytest_laguna.attempt import Attempt
from pytest_laguna.campaign import Campaign
from pytest_laguna.card_process import CardProcess
from pytest_laguna.engine_run import EngineRun
from pytest_laguna.evidence import endpoint_reader, event_analysis, files, root
from pytest_laguna.evidence.diagnostic import DIRECTORY, NOTICE, Diagnosis
from pytest_laguna.evidence.endpoint_analysis import EndpointAnalysis
from pytest_laguna.evidence.event_analysis import EventAnalysis
from pytest_laguna.evidence.values import Lane
from pytest_laguna.leasing import LeasedCards
from pytest_laguna.machine.command import new_token
from pytest_laguna.own_analysis import clause_finding, own_analysis, read_attempted
from pytest_laguna.precondition import Gate
from pytest_laguna.rehearsal import Rehearsal
from pytest_laguna.report.progress import Progress
from pytest_laguna.verdict import JSON, NotProvenError, raise_verdict

GATE = pytest.StashKey[Gate]()
"""What the session has settled; in the configuration's stash."""

ATTEMPT = pytest.StashKey[Attempt]()
"""The open attempt; in the configuration's stash, from the end of collection on."""

CARDS = pytest.StashKey[LeasedCards]()
"""The leased cards of a device gate; in the configuration's stash."""

NOTHING_RUNS = pytest.StashKey[str]()
"""Why nothing may run on the leased cards; in the configuration's stash, and only then."""

PROGRESS = pytest.StashKey[Progress]()
"""What the terminal shows of runs; in the configuration's stash."""

CLAUSE = pytest.StashKey[str]()
"""The clause that a test proves; in the item's stash."""


class Crossover(NamedTuple):
    """What the ``crossover`` fixture gives.

    Attributes:
        analysis: of the legs.
        clauses: what speaks against each clause; None where nothing does.
    """

    analysis: EndpointAnalysis
    clauses: Mapping[str, Finding | None]


class Prove(Protocol):
    """What the ``prove`` fixture gives to a gate's test."""

    @property
    def directory(self) -> Path:
        """The clause's own directory for evidence files, mode 0700."""

    def __call__(self, statement: str, **observed: JSON) -> None:
        """Record a proof: one line that says what has been shown, and the observations behind it."""


class _Prove:
    def __init__(self, attempt: Attempt, nodeid: str, clause: str) -> None:
        self._attempt = attempt
        self._nodeid = nodeid
        self.directory = attempt.clause_directory(clause)

    def __call__(self, statement: str, **observed: JSON) -> None:
        # The journal and the analysis put it a few levels deeper.
        files.canonical_json(
            dict(observed), nesting=files.NESTING_LIMIT - 10
        )  # what cannot be written must fail in the test that said it
        self._attempt.append("proof", nodeid=self._nodeid, statement=statement, observed=dict(observed))


@pytest.fixture
def prove(request: pytest.FixtureRequest) -> Prove:
    """Record the proof of the test's clause; a gate's test that passes without one is NOT_PROVEN."""
    item: pytest.Item = request.node
    return _Prove(request.config.stash[ATTEMPT], item.nodeid, item.stash[CLAUSE])


def prove_clause(
    prove: Prove, analysis: Diagnosis | EventAnalysis, clause: str, statement: str, **observed: JSON
) -> None:
    """Prove a clause of gate 2 by the rules of its analysis, which are written down with what each came to.

    Args:
        prove: the test's.
        analysis: of everything that ran.
        clause: the test's.
        statement: what its rules show, where all of them hold.
        observed: what else is written down.

    Raises:
        Exception: as ``raise_verdict``, where a rule does not hold.
    """
    finding = clause_finding(analysis, clause)
    if finding is not None:
        verdict, reason = finding
        raise_verdict(verdict, f"{reason} ({NOTICE})")
    rules: dict[str, JSON] = {
        rule: result.reason or str(result.verdict) for rule, result in analysis.clauses[clause].items()
    }
    prove(f"{statement} ({NOTICE})", rules=rules, **observed)


@pytest.fixture(scope="session")
def campaign(request: pytest.FixtureRequest) -> Campaign:
    """The campaign that runs."""
    return request.config.stash[GATE].campaign


@pytest.fixture(scope="session")
def cards(request: pytest.FixtureRequest) -> LeasedCards:
    """The cards that the session has leased; gate 1 has none."""
    if CARDS not in request.config.stash:
        raise NotProvenError("gate 1 leases no cards; a test that needs them belongs to gate 2 or 3")
    _require_ready(request.config)
    return request.config.stash[CARDS]


def _require_ready(config: pytest.Config) -> None:
    if NOTHING_RUNS in config.stash:
        raise NotProvenError(f"nothing runs on the cards: {config.stash[NOTHING_RUNS]}")


@pytest.fixture(scope="session")
def arm_runner(
    request: pytest.FixtureRequest, campaign: Campaign, lane: Lane, tmp_path_factory: pytest.TempPathFactory
) -> ArmRunner:
    """Runs arms and other programs under supervision, on the leased cards; gate 1 runs them on the CPU."""
    _require_ready(request.config)
    bytecode = tmp_path_factory.mktemp("bytecode")
    attempt = request.config.stash[ATTEMPT]
    evidence = attempt.directory / root.EVIDENCE
    progress = request.config.stash[PROGRESS]
    if CARDS in request.config.stash:
        held = request.config.stash[CARDS]
        bounds = campaign.lanes[lane].bounds
        cores = held.cores(held.cards)
        return ArmRunner(
            held.lease.token,
            held.environment(),
            cores,
            bounds,
            bytecode,
            evidence,
            held,
            watched=progress.run,
            attempt=attempt,
        )
    if campaign.rehearsal is None:
        raise NotProvenError("the campaign has no table rehearsal; gate 1 runs the engine of one")
    bounds = campaign.rehearsal.bounds
    return ArmRunner(new_token(), {}, frozenset(), bounds, bytecode, evidence, watched=progress.run, attempt=attempt)


@pytest.fixture(scope="session")
def engine_below(
    request: pytest.FixtureRequest, campaign: Campaign, lane: Lane, cards: LeasedCards, arm_runner: ArmRunner
) -> Callable[[str], EngineRun]:
    """The campaign's engine on the leased cards, for what is carried out in a directory below the evidence."""
    attempt, project = request.config.stash[ATTEMPT], request.config.rootpath
    evidence = attempt.directory / root.EVIDENCE
    return lambda name: EngineRun(campaign, lane, cards, arm_runner, attempt, evidence / name, project)


@pytest.fixture(scope="session")
def diagnosis(engine_below: Callable[[str], EngineRun]) -> Diagnosis:
    """Carries the campaign's exact diagnostic out, once a session, and gives what its analysis found."""
    return diagnostic.carry_out(engine_below(DIRECTORY))


@pytest.fixture(scope="session")
def event_profile(engine_below: Callable[[str], EngineRun]) -> EventAnalysis:
    """Carries the campaign's event profile out, once a session, and gives what its analysis found."""
    return event_diagnostic.carry_out(engine_below(event_analysis.DIRECTORY))


@pytest.fixture(scope="session")
def crossover(request: pytest.FixtureRequest, engine_below: Callable[[str], EngineRun]) -> Crossover:
    """Carries the campaign's endpoint protocol out, once a session, and gives what its analysis found."""
    attempt, gate = request.config.stash[ATTEMPT], request.config.stash[GATE]
    previous = attempt.previous
    analysis = endpoint_crossover.carry_out(
        engine_below(endpoint_reader.DIRECTORY),
        gate.options.campaign,
        authorised_by=None if previous is None else previous.receipt,
    )
    own = own_analysis(read_attempted(attempt.directory))
    if own is None:
        raise NotProvenError("the campaign's gate 3 has no analysis of its own")
    return Crossover(analysis, own.clauses)


@pytest.fixture(scope="session")
def rehearsal(
    request: pytest.FixtureRequest,
    campaign: Campaign,
    lane: Lane,
    arm_runner: ArmRunner,
    tmp_path_factory: pytest.TempPathFactory,
) -> Rehearsal:
    """Rehearses the campaign's gates 2 and 3 inside gate 1."""
    attempt, gate = request.config.stash[ATTEMPT], request.config.stash[GATE]
    return Rehearsal(
        campaign=campaign,
        campaign_file=gate.options.campaign,
        lane=lane,
        project=request.config.rootpath,
        run=arm_runner,
        evidence=attempt.directory / root.EVIDENCE,
        scratch=tmp_path_factory.mktemp("rehearsal"),
    )


@pytest.fixture
def card_process(cards: LeasedCards, arm_runner: ArmRunner, prove: Prove) -> CardProcess:
    """Calls a function on one of the leased cards, in a process of its own."""
    return CardProcess(cards, arm_runner, prove.directory / "card-processes")


@pytest.fixture(scope="session")
def lane(request: pytest.FixtureRequest) -> Lane:
    """The lane whose evidence this is."""
    return request.config.stash[GATE].lane
