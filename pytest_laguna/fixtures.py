# SPDX-License-Identifier: Apache-2.0
"""Fixtures of gates' tests; registered only in a gate session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from pytest_laguna.attempt.attempt import Attempt
from pytest_laguna.attempt.precondition import Gate
from pytest_laguna.campaign import Campaign
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.diagnostic.analysis import Diagnosis
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.evidence.events.analysis import EventAnalysis
from pytest_laguna.evidence.experiments import DIAGNOSTIC, ENDPOINT, EVENTS
from pytest_laguna.evidence.values import Lane
from pytest_laguna.experiments.experiment import Derived
from pytest_laguna.machine.command import new_token
from pytest_laguna.report.progress import Progress
from pytest_laguna.run import diagnostic
from pytest_laguna.run import endpoint as endpoint_crossover
from pytest_laguna.run import events as event_diagnostic
from pytest_laguna.run.arm_runner import ArmRunner
from pytest_laguna.run.card_process import CardProcess
from pytest_laguna.run.engine_run import EngineRun
from pytest_laguna.run.leasing import LeasedCards
from pytest_laguna.run.rehearsal import Rehearsal
from pytest_laguna.verdict import JSON, NotProvenError, raise_verdict

GATE = pytest.StashKey[Gate]()
"""Settled call of the session; in the configuration's stash."""

ATTEMPT = pytest.StashKey[Attempt]()
"""Open attempt; in the configuration's stash, from the end of collection on."""

CARDS = pytest.StashKey[LeasedCards]()
"""Leased cards of a device gate; in the configuration's stash."""

NOTHING_RUNS = pytest.StashKey[str]()
"""Reason to run nothing on the leased cards; in the configuration's stash only if there is one."""

PROGRESS = pytest.StashKey[Progress]()
"""Progress lines on the terminal; in the configuration's stash."""

CLAUSE = pytest.StashKey[str]()
"""Clause of a test; in the item's stash."""


class Prove(Protocol):
    """Value of the ``prove`` fixture."""

    @property
    def directory(self) -> Path:
        """Directory of the clause's own evidence files, mode 0700."""

    def __call__(self, statement: str, **observed: JSON) -> None:
        """Record a proof: a one-line statement, and the observations behind it."""


class _Prove:
    def __init__(self, attempt: Attempt, nodeid: str, clause: str) -> None:
        self._attempt = attempt
        self._nodeid = nodeid
        self.directory = attempt.clause_directory(clause)

    def __call__(self, statement: str, **observed: JSON) -> None:
        # Fail in the test if this cannot be written; journal and analysis nest it a few levels deeper.
        files.canonical_json(dict(observed), nesting=files.NESTING_LIMIT - 10)
        self._attempt.append("proof", nodeid=self._nodeid, statement=statement, observed=dict(observed))


@pytest.fixture
def prove(request: pytest.FixtureRequest) -> Prove:
    """Record the proof of the test's clause; a passing gate test without one is NOT_PROVEN."""
    item: pytest.Item = request.node
    return _Prove(request.config.stash[ATTEMPT], item.nodeid, item.stash[CLAUSE])


def prove_clause(prove: Prove, derived: Derived[Any], clause: str, statement: str, **observed: JSON) -> None:
    """Prove a clause by the rules of an experiment, and record each rule's result.

    The statement is proven if all its rules hold; ``observed`` are further observations to record.

    Raises:
        Exception: as ``raise_verdict``, if a rule does not hold.
    """
    finding = derived.clauses[clause]
    if finding is not None:
        verdict, reason = finding
        raise_verdict(verdict, f"{reason} ({derived.notice})")
    lines = derived.rules.get(clause, ())
    if clause in derived.rules and not any(verdict for _, verdict, _ in lines):
        statement = f"not judged, so not proven of these legs: {statement}"
    rules: dict[str, JSON] = {rule: reason or str(verdict) for rule, verdict, reason in lines}
    prove(f"{statement} ({derived.notice})", rules=rules, **observed)


@pytest.fixture(scope="session")
def campaign(request: pytest.FixtureRequest) -> Campaign:
    """The running campaign."""
    return request.config.stash[GATE].campaign


@pytest.fixture(scope="session")
def cards(request: pytest.FixtureRequest) -> LeasedCards:
    """The session's leased cards; gate 1 has none."""
    if CARDS not in request.config.stash:
        raise NotProvenError("gate 1 leases no cards; move the test to gate 2 or 3")
    _require_ready(request.config)
    return request.config.stash[CARDS]


def _require_ready(config: pytest.Config) -> None:
    if NOTHING_RUNS in config.stash:
        raise NotProvenError(f"nothing runs on the cards: {config.stash[NOTHING_RUNS]}")


@pytest.fixture(scope="session")
def arm_runner(
    request: pytest.FixtureRequest, campaign: Campaign, lane: Lane, tmp_path_factory: pytest.TempPathFactory
) -> ArmRunner:
    """Runs programs under supervision: on the leased cards, or on the CPU in gate 1."""
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
        raise NotProvenError("campaign: no table rehearsal; expected one, whose bounds gate 1 uses")
    bounds = campaign.rehearsal.bounds
    return ArmRunner(new_token(), {}, frozenset(), bounds, bytecode, evidence, watched=progress.run, attempt=attempt)


@pytest.fixture(scope="session")
def engine_below(
    request: pytest.FixtureRequest, campaign: Campaign, lane: Lane, cards: LeasedCards, arm_runner: ArmRunner
) -> Callable[[str], EngineRun]:
    """Makes the campaign's engine on the leased cards, for a directory below the evidence."""
    attempt, project = request.config.stash[ATTEMPT], request.config.rootpath
    evidence = attempt.directory / root.EVIDENCE
    return lambda name: EngineRun(campaign, lane, cards, arm_runner, attempt, evidence / name, project)


@pytest.fixture(scope="session")
def diagnosis(engine_below: Callable[[str], EngineRun]) -> Derived[Diagnosis]:
    """Carry out the campaign's exact diagnostic, once a session, and return its analysis."""
    return diagnostic.carry_out(engine_below(DIAGNOSTIC.directory))


@pytest.fixture(scope="session")
def event_profile(engine_below: Callable[[str], EngineRun]) -> Derived[EventAnalysis]:
    """Carry out the campaign's event profile, once a session, and return its analysis."""
    return event_diagnostic.carry_out(engine_below(EVENTS.directory))


@pytest.fixture(scope="session")
def crossover(request: pytest.FixtureRequest, engine_below: Callable[[str], EngineRun]) -> Derived[EndpointAnalysis]:
    """Carry out the campaign's endpoint protocol, once a session, and return its analysis."""
    campaign_file = request.config.stash[GATE].options.campaign
    return endpoint_crossover.carry_out(engine_below(ENDPOINT.directory), campaign_file)


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
    """Calls a function on one of the leased cards, in its own process."""
    return CardProcess(cards, arm_runner, prove.directory / "card-processes")


@pytest.fixture(scope="session")
def lane(request: pytest.FixtureRequest) -> Lane:
    """Lane of the session."""
    return request.config.stash[GATE].lane
