# SPDX-License-Identifier: Apache-2.0
"""Plan and evidence of the exact diagnostic, as its rules read them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pytest_laguna.analysis.arms.arm_pair import Expected, Pair
from pytest_laguna.analysis.arms.case import ArmsCase
from pytest_laguna.analysis.arms.identity_case import IdentityCase
from pytest_laguna.analysis.diagnostic.replay_checks import CONTAINMENT, preparation_checks
from pytest_laguna.analysis.diagnostic.replay_profile import ArmProfile, reduce_profiles
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.arms.parity import PacketRecord
from pytest_laguna.evidence.diagnostic.analysis import DiagnosticPlan
from pytest_laguna.evidence.diagnostic.reader import DiagnosticEvidence
from pytest_laguna.evidence.reading import whole
from pytest_laguna.verdict import NotProvenError

GRAPH_ARMS = tuple(arm for arm in Arm if arm.graphs)
SPECULATING_ARMS = tuple(arm for arm in Arm if arm.speculates)


class DiagnosticCase(ArmsCase[DiagnosticPlan, DiagnosticEvidence]):
    """Plan and evidence of the exact diagnostic."""

    def packet(self, position: int) -> PacketRecord:
        """Record of the packet at a position; raises as ``record``."""
        if position not in self.evidence.packets:
            raise NotProvenError(f"packets/{position}: seen none; expected a packet a card{self.first_failure()}")
        return self.piece(self.evidence.packets[position].record)

    def pair(self) -> Pair:
        """The two graph arms, in the form of gate 1's rules; raises as ``record``."""
        control, candidate = map(self.record, GRAPH_ARMS)
        return Pair(control, candidate, self.expected())

    def expected(self) -> Expected:
        """Values from the plan for gate 1's rules."""
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
        """Profiles of both graph arms, reduced in one pass over their files."""
        return {
            arm: reduce_profiles(
                self.evidence.profiles[arm],
                {**CONTAINMENT, **preparation_checks(self._runs(arm), self.plan.target_layers)},
            )
            for arm in GRAPH_ARMS
        }

    def _runs(self, arm: Arm) -> Arm:
        """Arm that fills a slot; in an A/A campaign the candidate's slot holds a control."""
        return Arm.GRAPH_CONTROL if self.plan.null and arm is Arm.GRAPH_CANDIDATE else arm

    @functools.cached_property
    def identity(self) -> IdentityCase:
        """Input of the rules over engine, binaries and models; raises as ``record`` without an identity."""
        packets = whole({position: run.record for position, run in self.evidence.packets.items()})
        return IdentityCase(
            identity=self.piece(self.evidence.identity),
            arms=whole({arm: self.evidence.arms[arm].record for arm in Arm}),
            packets={position: record.mapped for position, record in packets.items()},
            validator=self.plan.validator,
            interpreter=self.plan.interpreter,
            packet_versions={position: record.versions for position, record in packets.items()},
            null=self.plan.null,
        )


Rule: TypeAlias = Callable[[DiagnosticCase], RuleFinding]
