# SPDX-License-Identifier: Apache-2.0
"""What every rule of the exact diagnostic looks at: the plan, and evidence that says why it is not there."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from pytest_laguna.analysis import root_cause
from pytest_laguna.analysis.arm_pair import Expected, Pair
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.analysis.identity_case import IdentityCase
from pytest_laguna.analysis.replay_checks import CONTAINMENT, preparation_checks
from pytest_laguna.analysis.replay_profile import ArmProfile, reduce_profiles
from pytest_laguna.evidence.arm_record import Arm, ArmRecord
from pytest_laguna.evidence.diagnostic import DiagnosticPlan
from pytest_laguna.evidence.diagnostic_evidence import DiagnosticEvidence
from pytest_laguna.evidence.parity import PacketRecord
from pytest_laguna.evidence.reading import Missing
from pytest_laguna.verdict import NotProvenError

Content = TypeVar("Content")

GRAPH_ARMS = tuple(arm for arm in Arm if arm.graphs)
SPECULATING_ARMS = tuple(arm for arm in Arm if arm.speculates)


@dataclasses.dataclass(frozen=True)
class Case:
    """The plan and the evidence."""

    plan: DiagnosticPlan
    evidence: DiagnosticEvidence

    def record(self, arm: Arm) -> ArmRecord:
        """What an arm did.

        Raises:
            NotProvenError: it left no record; the reason names what stopped it, or the first thing that went wrong.
            UnusableEvidenceError: its record cannot be used.
        """
        return self.piece(self.evidence.arms[arm].record)

    def packet(self, position: int) -> PacketRecord:
        """What a packet did; raises as ``record``."""
        if position not in self.evidence.packets:
            raise NotProvenError(f"packets/{position}: there is none{self.first_failure()}")
        return self.piece(self.evidence.packets[position].record)

    def records(self, arms: tuple[Arm, ...] = tuple(Arm)) -> Iterator[tuple[Arm, ArmRecord]]:
        """What each arm did, in their order; raises as ``record`` where one did nothing."""
        return ((arm, self.record(arm)) for arm in arms)

    def pair(self) -> Pair:
        """The two graph arms, in the form of the rules that gate 1 judges them by; raises as ``record``."""
        control, candidate = map(self.record, GRAPH_ARMS)
        return Pair(control, candidate, self.expected())

    def expected(self) -> Expected:
        """What those rules expect."""
        return Expected(
            flag=self.plan.flag,
            control=self.plan.control,
            treatment=self.plan.control if self.plan.null else self.plan.treatment,
            validator=self.plan.validator,
            completion_tokens=self.plan.completion_tokens,
            graphs=self.plan.topology.graphs,
            breaks=self.plan.topology.breaks,
            target_layers=self.plan.target_layers,
        )

    @functools.cached_property
    def profiles(self) -> Mapping[Arm, ArmProfile]:
        """The profiles of both graph arms, reduced in one pass over their files."""
        return {
            arm: reduce_profiles(
                self.evidence.profiles[arm],
                {**CONTAINMENT, **preparation_checks(self._runs(arm), self.plan.target_layers)},
            )
            for arm in GRAPH_ARMS
        }

    def _runs(self, arm: Arm) -> Arm:
        """What runs in an arm's slot."""
        return Arm.GRAPH_CONTROL if self.plan.null and arm is Arm.GRAPH_CANDIDATE else arm

    @functools.cached_property
    def identity(self) -> IdentityCase:
        """What the rules over engine, binaries and models look at; raises as ``record`` without an identity."""
        return IdentityCase(
            identity=self.piece(self.evidence.identity),
            arms={arm: run.record for arm, run in self.evidence.arms.items() if not isinstance(run.record, Missing)},
            packets={
                position: run.record.mapped
                for position, run in self.evidence.packets.items()
                if not isinstance(run.record, Missing)
            },
            validator=self.plan.validator,
            interpreter=self.plan.interpreter,
            packet_versions={
                position: run.record.versions
                for position, run in self.evidence.packets.items()
                if not isinstance(run.record, Missing)
            },
            null=self.plan.null,
        )

    def piece(self, piece: Content | Missing) -> Content:
        """The content, or the reason with the first thing that went wrong; raises as ``record``."""
        return root_cause.found(piece, self.evidence.runs())

    def first_failure(self) -> str:
        """The first thing that went wrong, as the end of a line."""
        return root_cause.first_failure(self.evidence.runs())


Rule: TypeAlias = Callable[[Case], RuleFinding]
