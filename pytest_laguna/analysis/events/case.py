# SPDX-License-Identifier: Apache-2.0
"""Plan and evidence of the event profile campaign, as its rules read them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pytest_laguna.analysis.arms.case import ArmsCase
from pytest_laguna.analysis.arms.identity_case import IdentityCase
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.evidence.arms.arm_record import RankReport
from pytest_laguna.evidence.arms.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.events.analysis import CONFIGURATION, EVENTS, TEACHER, EventPlan
from pytest_laguna.evidence.events.profile import EventProfile
from pytest_laguna.evidence.events.reader import EventEvidence
from pytest_laguna.evidence.reading import whole
from pytest_laguna.verdict import NotProvenError


class EventCase(ArmsCase[EventPlan, EventEvidence]):
    """Plan and evidence of the event profile campaign."""

    def reports(self, arm: str) -> list[RankReport]:
        """Reports of an arm's ranks; raises as ``record``."""
        return self.record(arm).ranks

    @functools.cached_property
    def profiles(self) -> Mapping[int, EventProfile]:
        """Event profile of each rank; raises as ``record`` if one is missing."""
        self.record(EVENTS)
        pieces = {rank: self.evidence.profiles.get(f"rank{rank}.json") for rank in range(self.plan.ranks)}
        for rank, piece in pieces.items():
            if piece is None:
                raise NotProvenError(
                    f"{EVENTS}: rank{rank}.json: seen none; expected a profile of each rank{self.first_failure()}"
                )
        return {rank: self.piece(piece) for rank, piece in pieces.items() if piece is not None}

    @functools.cached_property
    def identities(self) -> Sequence[IdentityCase]:
        """Inputs of the rules over engine, binaries and models; raises as ``record`` without an identity.

        Those rules know an arm by its configuration, so q1 with each arm of the other configuration is one case.
        """
        identity = self.piece(self.evidence.identity)
        return [self._identity(identity, (TEACHER, arm)) for arm in self.plan.arms if arm != TEACHER]

    def _identity(self, identity: DiagnosticIdentity, arms: tuple[str, ...]) -> IdentityCase:
        configured = {CONFIGURATION[arm]: arm for arm in arms}
        around, places = identity.models_around, identity.arm_directories
        renamed = {
            "models_around": {str(name): around[arm] for name, arm in configured.items() if arm in around},
            "arm_directories": {str(name): places[arm] for name, arm in configured.items() if arm in places},
        }
        return IdentityCase(
            identity=identity.model_copy(update=renamed),
            arms=whole({name: self.evidence.arms[arm].record for name, arm in configured.items()}),
            packets={},
            validator=self.plan.validator,
            expected=tuple(configured),
            interpreter=self.plan.interpreter,
        )


EventRule: TypeAlias = Callable[[EventCase], RuleFinding]
