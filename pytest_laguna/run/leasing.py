# SPDX-License-Identifier: Apache-2.0
"""The cards of a device gate: leased before its attempt opens, given back when its session ends."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest

from pytest_laguna.analysis.findings import Finding
from pytest_laguna.analysis.machine.idle import judge_idle
from pytest_laguna.attempt.attempt import Attempt
from pytest_laguna.attempt.precondition import Gate
from pytest_laguna.campaign import Idle, LaneSettings, ModelFolders
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.machine import leased_cards
from pytest_laguna.evidence.machine.card_masks import showing
from pytest_laguna.evidence.machine.host import HostState
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.machine.leased_cards import LeasedCard, LeaseStart
from pytest_laguna.evidence.machine.placement import Place, misplaced
from pytest_laguna.experiments.plans import cards_needed
from pytest_laguna.machine import host_audit, idle, leases
from pytest_laguna.machine.cards import Card, CardSource
from pytest_laguna.machine.cards_cpu import cores
from pytest_laguna.machine.choice import choose
from pytest_laguna.machine.environment import EnvironmentRefusedError, inherited_masks, refuse_inherited
from pytest_laguna.machine.errors import CardError, LeaseError
from pytest_laguna.machine.storage import find_place, used_places
from pytest_laguna.machine.sweep import sweep
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict

SWEEP_SECONDS = 30.0
"""Time limit for a lease's leftover processes to end after SIGKILL."""


@dataclasses.dataclass(frozen=True, slots=True)
class LeasedCards:
    """The cards of a session, for as long as it runs.

    Attributes:
        lease: its token is borne by every process under it.
        idle: the campaign's limits for idle cards.
        places: file systems of evidence, temporary files and models; empty if the campaign restricts none.
    """

    source: CardSource
    lease: leases.Lease
    idle: Idle
    places: tuple[Place, ...] = ()

    @property
    def cards(self) -> tuple[Card, ...]:
        """The cards in the order of ``--cards``."""
        return self.lease.cards

    def environment(self) -> Mapping[str, str]:
        """Variables that show a process these cards and no others."""
        return showing(self.source.lane, self.cards)

    def cores(self, cards: Sequence[Card]) -> frozenset[int]:
        """Processor cores of cards on the cpu lane; empty, for no restriction, on the others."""
        return cores(cards) if self.source.lane == "cpu" else frozenset()

    @contextlib.contextmanager
    def audited(self, directory: Path, write: Callable[[Path, bytes], None]) -> Iterator[None]:
        """Record the host before and after a run, in the run's own directory.

        Raises:
            NotProvenError: the host or its cards cannot be inspected.
            UnusableEvidenceError: the lease was lost, so another process may have used its cards.
        """
        self._check_lease()
        before = self._host_state(None)
        yield
        self._check_lease()
        audit = host_audit.audit(before, self._host_state(before))
        write(directory / leased_cards.HOST, files.canonical_json(audit.canonical()))

    def _check_lease(self) -> None:
        try:
            self.lease.check()
        except LeaseError as error:
            raise UnusableEvidenceError(str(error)) from error

    def _host_state(self, before: HostState | None) -> HostState:
        try:
            return host_audit.take_state(self.source, self.source.discover(), self.lease.token, before=before)
        except (CardError, OSError) as error:
            message = f"host: cannot be inspected: {error}"
            raise NotProvenError(message) from error

    def begin(self, attempt: Attempt) -> Finding:
        """Record the lease and judge its cards; with any verdict but PASS nothing may run on them.

        Raises:
            OSError: the record cannot be written.
        """
        directory = attempt.directory / root.EVIDENCE / leased_cards.DIRECTORY
        directory.mkdir(mode=files.PRIVATE_DIRECTORY)
        start = LeaseStart(
            lane=self.source.lane,
            token=self.lease.token,
            cards=[
                LeasedCard(ordinal=card.ordinal, identity=card.identity, name=card.name, memory_bytes=card.memory_bytes)
                for card in self.cards
            ],
            inherited_masks=inherited_masks(os.environ),
            environment=dict(self.environment()),
            cores=sorted(self.cores(self.cards)),
            cleared=[record.token for record in self.lease.cleared],
            places=list(self.places),
        )
        attempt.record(directory / leased_cards.LEASE, files.canonical_json(start.canonical()))
        return self._look("before", attempt)

    def give_back(self, attempt: Attempt | None) -> Finding:
        """End the lease, and quarantine the cards unless they are idle again; without an attempt, nothing has run.

        Returns:
            PASS, or a finding: a process left running, busy cards, or a lease lost meanwhile.

        Raises:
            OSError: the record cannot be written; the cards are quarantined.
        """
        finding: Finding = (Verdict.NOT_PROVEN, "the end of the lease could not be recorded")
        try:
            found = sweep(self.lease.token, seconds=SWEEP_SECONDS).found
            finding = self._glance() if attempt is None else self._look("after", attempt)
            if found:
                finding = (Verdict.FAIL, f"left running: {found[0]}")
        finally:
            finding = self._end(finding)
        return finding

    def _end(self, finding: Finding) -> Finding:
        """Release or quarantine the cards; a lost lease is VOID unless a process was left running."""
        verdict, reason = finding
        try:
            if verdict is Verdict.PASS:
                self.lease.release()
            else:
                self.lease.quarantine(reason)
        except LeaseError as error:
            return finding if verdict is Verdict.FAIL else (Verdict.VOID, str(error))
        return finding

    def _glance(self) -> Finding:
        """Check quickly that unused cards are idle."""
        look = idle.check(self.source, self.idle.memory_bytes)
        held = next((f"card {card}: {why}" for card in self.cards if (why := look(card)) is not None), None)
        return (Verdict.PASS, "idle") if held is None else (Verdict.NOT_PROVEN, held)

    def _look(self, phase: Literal["before", "after"], attempt: Attempt) -> Finding:
        """Take the campaign's snapshots of the cards, record and judge them."""
        name = {"before": leased_cards.IDLE_BEFORE, "after": leased_cards.IDLE_AFTER}[phase]
        path = attempt.directory / root.EVIDENCE / leased_cards.DIRECTORY / name
        try:
            record = self.take_idle(phase, self.cards)
            attempt.record(path, files.canonical_json(record.canonical()))
            return judge_idle(record, self.idle)
        except NotProvenError as error:
            return Verdict.NOT_PROVEN, str(error)
        except UnusableEvidenceError as error:
            return Verdict.VOID, str(error)

    def take_idle(self, phase: Literal["before", "after"], cards: Sequence[Card]) -> IdleRecord:
        """Take the campaign's snapshots of some cards; errors as ``machine.idle.take_record``."""
        return idle.take_record(
            self.source,
            cards,
            phase=phase,
            token=self.lease.token,
            requirement=self.idle,
            settle_seconds=self.idle.settle_seconds,
        )


def take_cards(gate: Gate, attempt: int, project: Path) -> LeasedCards:
    """Choose and lease the cards of ``--cards`` for the attempt of this number.

    Raises:
        pytest.UsageError: the environment holds runtime variables, a card is not available or of another kind, or files
            would lie outside the campaign's storage; one line.
    """
    settings = gate.campaign.lanes[gate.lane]
    directory = root.attempt_directory(gate.lane_directory / f"gate{gate.options.gate}", attempt)
    try:
        refuse_inherited(os.environ, ["pytest", f"--gate={gate.options.gate}", "..."])
        source, cards = choose(gate.lane, gate.options.cards, os.environ)
        require_kind(cards, settings)
        places = require_places(gate.options.sealed_root, project, settings)
        require_number(cards, project, settings)
        lease = leases.acquire(
            cards,
            Path(directory),
            sweep=functools.partial(sweep, seconds=SWEEP_SECONDS),
            idle=idle.check(source, settings.idle.memory_bytes),
        )
    except (EnvironmentRefusedError, CardError, LeaseError, UnusableEvidenceError) as error:
        raise pytest.UsageError(str(error)) from error
    return LeasedCards(source, lease, settings.idle, places)


def require_kind(cards: Sequence[Card], settings: LaneSettings) -> None:
    """Require cards of the campaign's kind.

    Raises:
        CardError: one is another.
    """
    for card in cards:
        if settings.card is not None and card.name != settings.card:
            raise CardError(f"--cards: seen {card}; expected the campaign's {settings.card!r}", "choose others")


def require_number(cards: Sequence[Card], project: Path, settings: LaneSettings) -> None:
    """Require as many cards as an existing model needs for the candidate's contract.

    Raises:
        CardError: the number differs, or the model is missing.
        UnusableEvidenceError: the model's configuration cannot be used.
    """
    model = None if settings.engine is None else settings.engine.model
    if not isinstance(model, ModelFolders):
        return
    target = project / model.target
    if not (target / "config.json").is_file():
        raise CardError(f"{target}: no config.json; expected the campaign's model", "see docs/xpu-lane.md")
    needed = cards_needed(target)
    if len(cards) != needed:
        found = f"--cards: seen {len(cards)} cards; expected {needed}, for two KV heads of {model.target} on each"
        raise CardError(found, f"name exactly {needed} cards")


def require_places(sealed_root: Path, project: Path, settings: LaneSettings) -> tuple[Place, ...]:
    """Find the file systems of all files, and require those of the campaign; empty if it restricts none.

    Raises:
        CardError: a file system is another, or cannot be found.
    """
    if settings.storage is None:
        return ()
    used = used_places(settings, sealed_root, project)
    places = tuple(find_place(purpose, path) for purpose, path in used.items())
    for place in places:
        reason = misplaced(place, settings.storage)
        if reason is not None:
            found, _, fix = reason.rpartition("; ")
            raise CardError(f"storage: {found}", fix)
    return places
