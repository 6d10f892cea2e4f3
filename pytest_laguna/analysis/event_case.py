# SPDX-License-Identifier: Apache-2.0
"""What every rule of the event profile campaign looks at: the plan, and evidence that says why it is not there."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

from pytest_laguna.analysis import root_cause
from pytest_laguna.analysis.diagnostic_case import Case
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.analysis.identity_case import IdentityCase
from pytest_laguna.evidence.arm_record import ArmRecord, RankReport
from pytest_laguna.evidence.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.event_analysis import CONFIGURATION, EVENTS, TEACHER, EventPlan
from pytest_laguna.evidence.event_evidence import EventEvidence
from pytest_laguna.evidence.event_profile import EventProfile
from pytest_laguna.evidence.reading import Missing
from pytest_laguna.verdict import NotProvenError

Content = TypeVar("Content")


@dataclasses.dataclass(frozen=True)
class EventCase:
    """The plan and the evidence."""

    plan: EventPlan
    evidence: EventEvidence

    def record(self, arm: str) -> ArmRecord:
        """What an arm did.

        Raises:
            NotProvenError: it left no record; the reason names what stopped it, or the first thing that went wrong.
            UnusableEvidenceError: its record cannot be used.
        """
        return self.piece(self.evidence.arms[arm].record)

    def records(self) -> Iterator[tuple[str, ArmRecord]]:
        """What each arm did, in their order; raises as ``record`` where one did nothing."""
        return ((arm, self.record(arm)) for arm in self.plan.arms)

    def reports(self, arm: str) -> list[RankReport]:
        """What the ranks of an arm say of themselves; raises as ``record``."""
        return self.record(arm).ranks

    @functools.cached_property
    def profiles(self) -> Mapping[int, EventProfile]:
        """The event profile of each rank; raises as ``record`` where one is missing."""
        self.record(EVENTS)
        pieces = {rank: self.evidence.profiles.get(f"rank{rank}.json") for rank in range(self.plan.ranks)}
        for rank, piece in pieces.items():
            if piece is None:
                why = root_cause.first_failure(self.evidence.runs())
                raise NotProvenError(f"{EVENTS}: rank{rank}.json: there is none{why}")
        return {rank: self.piece(piece) for rank, piece in pieces.items() if piece is not None}

    @functools.cached_property
    def identities(self) -> Sequence[IdentityCase]:
        """What the rules over engine, binaries and models look at; raises as ``record`` without an identity.

        Those rules know an arm by the configuration that it runs: q1 with each arm of the other one is a case.
        """
        identity = self.piece(self.evidence.identity)
        return [self._identity(identity, (TEACHER, arm)) for arm in self.plan.arms if arm != TEACHER]

    def _identity(self, identity: DiagnosticIdentity, arms: tuple[str, ...]) -> IdentityCase:
        configured = {CONFIGURATION[arm]: arm for arm in arms}
        records = {name: self.evidence.arms[arm].record for name, arm in configured.items()}
        around, places = identity.models_around, identity.arm_directories
        renamed = {
            "models_around": {str(name): around[arm] for name, arm in configured.items() if arm in around},
            "arm_directories": {str(name): places[arm] for name, arm in configured.items() if arm in places},
        }
        return IdentityCase(
            identity=identity.model_copy(update=renamed),
            arms={name: record for name, record in records.items() if not isinstance(record, Missing)},
            packets={},
            validator=self.plan.validator,
            expected=tuple(configured),
            interpreter=self.plan.interpreter,
        )

    def piece(self, piece: Content | Missing) -> Content:
        """The content, or the reason with the first thing that went wrong; raises as ``record``."""
        return root_cause.found(piece, self.evidence.runs())


EventRule: TypeAlias = Callable[[EventCase], RuleFinding]

AnyCase: TypeAlias = Case | EventCase
"""What a rule looks at that every campaign with arms has."""

AnyRule: TypeAlias = Callable[[AnyCase], RuleFinding]
