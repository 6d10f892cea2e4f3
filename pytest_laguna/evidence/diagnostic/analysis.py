# SPDX-License-Identifier: Apache-2.0
"""The exact diagnostic: its plan, the places of its evidence, and its analysis."""

from __future__ import annotations

from typing import Final, Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.arms.plan import ArmsPlan
from pytest_laguna.evidence.schemas import Schema, Sentence, Sha256
from pytest_laguna.evidence.values import Decides, Finite, NonNegative, SchemaName
from pytest_laguna.verdict import Verdict

DIRECTORY = "diagnostic"
"""Place below the attempt's ``evidence``.

Its files:

    plan.json  target-config.json  draft-config.json  identity.json  idle-before.json  idle-after.json  analysis.json
    packets/<position of the card in the lease>/{request,record,process,idle,host}.json
    arms/<arm>/{request,record,process,idle,host}.json
    arms/<arm>/profile/rank<rank>.json, where the arm is profiled

A packet or an arm that left no record has ``failure.json`` in its place: ``{"reason": <one line>}``.
"""

NOTICE: Final = "diagnostic only: neither benchmark nor submission evidence"

CLAUSES: Final = (
    "identity-exact",
    "cards-idle",
    "host-within-limits",
    "arms-fresh",
    "cache-cold",
    "tokens-identical",
    "drafts-bounded",
    "topology-unchanged",
    "sole-treatment",
    "selector-proven",
    "parity-packets",
    "replay-samples",
    "view-preparations",
    "timing",
)
"""Clauses of gate 2, in the order of judging."""


_PUBLISHED_COUNTS = (272, 31, 7, 48, 4)
"""Tokens, samples, tokens of a draft, layers of the target, and ranks."""
_PUBLISHED_QUERIES = frozenset(range(2, 9))
_PUBLISHED_DIFFERENCE = 0.001


class DiagnosticPlan(ArmsPlan):
    """The plan of the exact diagnostic.

    Attributes:
        flag: the environment variable of the treatment; ``control`` and ``treatment`` are its two values.
        samples: replays in the profile of each rank of both graph arms.
        identical: pairs of arms whose tokens and text must be equal bit for bit; every other pair is reported.
        acceptance_rate_difference: maximum difference of accepted / proposed between speculating arms.
        accepted_per_cycle: its minimum in every speculating arm: a never accepted draft bounds nothing.
        queries: lengths of the cases of a parity packet.
        null: True for A/A: the candidate's slot holds a control, and every difference is noise.
    """

    file_schema: SchemaName[Literal["pytest-laguna-diagnostic-plan-v1"]] = "pytest-laguna-diagnostic-plan-v1"
    flag: str
    control: str
    treatment: str
    draft_tokens: pydantic.PositiveInt
    samples: pydantic.PositiveInt
    decides: Decides
    identical: list[tuple[Arm, Arm]]
    acceptance_rate_difference: NonNegative
    accepted_per_cycle: NonNegative
    queries: list[pydantic.PositiveInt]
    null: bool = False

    @property
    def has_published_shape(self) -> bool:
        """True if it asks at least for the published diagnostic; no other is called by the published names.

        Source: the preregistration, Gate 2: 272 tokens, 31 samples, q2 through q8, and drafts of seven tokens, of which
        some must be accepted, on 48 layers and four ranks; and the published bound of their acceptance.
        """
        counts = (self.completion_tokens, self.samples, self.draft_tokens, self.target_layers, self.ranks)
        same = counts == _PUBLISHED_COUNTS
        bounded = self.acceptance_rate_difference <= _PUBLISHED_DIFFERENCE and self.accepted_per_cycle > 0
        return same and bounded and set(self.queries) >= _PUBLISHED_QUERIES


class RuleResult(Schema):
    """Verdict of one rule.

    Attributes:
        verdict: PASS without a finding; None if the rule is reported only, or the lane cannot exercise it.
        reason: one line that names arm, rank and fact; empty for PASS.
    """

    verdict: Verdict | None
    reason: Sentence = ""

    @pydantic.field_validator("reason")
    @classmethod
    def _one_line(cls, reason: str) -> str:
        """Escape the control characters of names of files and words of records."""
        return files.printable(reason)


class Percentiles(Schema):
    """A quantity over the samples, in nanoseconds: each is the maximum over the ranks, and percentiles are linear."""

    minimum: Finite
    p10: Finite
    median: Finite
    p90: Finite
    maximum: Finite


class Comparison(Schema):
    """One timing gate, in nanoseconds.

    Attributes:
        control: the gated figure of the control.
        saving: control - candidate.
        passed: True if the published rule holds.
        interval: of the saving, 95 %; None if the samples are too few to bound it, as those of one generation an arm.
        detectable: minimum detectable effect of these samples; None likewise.
    """

    control: Finite
    candidate: Finite
    saving: Finite
    passed: bool
    interval: tuple[Finite, Finite] | None
    detectable: Finite | None


class Diagnosis(Schema):
    """``diagnostic/analysis.json``: a pure function of the files beside it.

    Attributes:
        clauses: results by clause and rule.
        timing: the six published timing gates by name; None if the profiles cannot be compared.
        distributions: by arm and quantity.
        published: verdict of the published rules, whether or not they decide here. None without timing, if the
            diagnostic is not exact, if the plan asks for less than was published, and if the arms' tokens differ: the
            rules call nothing else by either name.
    """

    file_schema: SchemaName[Literal["pytest-laguna-diagnosis-v2"]] = "pytest-laguna-diagnosis-v2"
    notice: Literal["diagnostic only: neither benchmark nor submission evidence"] = NOTICE
    plan_sha256: Sha256
    decides: Decides
    clauses: dict[str, dict[str, RuleResult]]
    timing: dict[str, Comparison] | None
    distributions: dict[str, dict[str, Percentiles]]
    published: Literal["diagnostic_pass", "exact_timing_stop"] | None
