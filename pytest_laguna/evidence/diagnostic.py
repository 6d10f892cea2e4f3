# SPDX-License-Identifier: Apache-2.0
"""The exact diagnostic: what a campaign expects of it, where its evidence lies, and what the analysis made of it."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import Arm
from pytest_laguna.evidence.arms_plan import ArmsPlan
from pytest_laguna.evidence.schemas import Schema, Sha256
from pytest_laguna.verdict import Verdict

Decides: TypeAlias = Literal["exactness", "exactness+timing"]
Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]

DIRECTORY = "diagnostic"
"""Below the attempt's ``evidence``. Its files:

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
"""What the diagnostic must show, in the order in which it is judged; each is a clause of the campaign's gate 2."""


_PUBLISHED_COUNTS = (272, 31, 7, 48, 4)
"""Tokens, samples, tokens of a draft, layers of the target, and ranks."""
_PUBLISHED_QUERIES = frozenset(range(2, 9))
_PUBLISHED_DIFFERENCE = 0.001


class DiagnosticPlan(ArmsPlan):
    """What the campaign, the cards and the models' configuration files say before anything runs.

    Attributes:
        flag: the environment variable that is the sole treatment.
        control: its value in every arm but the candidate.
        treatment: its value in the candidate.
        draft_tokens: speculative tokens a cycle in every arm with a draft.
        samples: replays that each rank of both graph arms profiles.
        decides: whether the timing rules decide, or are reported only.
        identical: the pairs of arms whose tokens and text must be equal bit for bit; every other pair is reported.
        acceptance_rate_difference: the most by which accepted / proposed may differ between speculating arms.
        accepted_per_cycle: the least of it in every speculating arm: a draft that is never accepted bounds nothing.
        queries: lengths that a parity packet verifies.
        null: whether the candidate's slot holds a control too: then a difference that is found is noise, and nothing is
            said of the candidate.
    """

    file_schema: Annotated[Literal["pytest-laguna-diagnostic-plan-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-diagnostic-plan-v1"
    )
    flag: str
    control: str
    treatment: str
    draft_tokens: pydantic.PositiveInt
    samples: pydantic.PositiveInt
    decides: Decides
    identical: list[tuple[Arm, Arm]]
    acceptance_rate_difference: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
    accepted_per_cycle: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
    queries: list[pydantic.PositiveInt]
    null: bool = False

    @property
    def has_published_shape(self) -> bool:
        """Whether it asks at least for what was published; what asks for less is not called by the published names.

        Source: the preregistration, Gate 2: 272 tokens, 31 samples, q2 through q8, and drafts of seven tokens, of which
        some must be accepted, on 48 layers and four ranks; and the published bound of their acceptance.
        """
        counts = (self.completion_tokens, self.samples, self.draft_tokens, self.target_layers, self.ranks)
        same = counts == _PUBLISHED_COUNTS
        bounded = self.acceptance_rate_difference <= _PUBLISHED_DIFFERENCE and self.accepted_per_cycle > 0
        return same and bounded and set(self.queries) >= _PUBLISHED_QUERIES


class RuleResult(Schema):
    """What one rule came to.

    Attributes:
        verdict: PASS when nothing speaks against it; None when it is reported only, or the lane cannot exercise it.
        reason: one line that names arm, rank and fact; for PASS empty.
    """

    verdict: Verdict | None
    reason: str

    @pydantic.field_validator("reason")
    @classmethod
    def _one_line(cls, reason: str) -> str:
        """Names of files and words of records may hold control characters, which become escapes."""
        return files.printable(reason)


class Distribution(Schema):
    """A quantity over the samples, in nanoseconds: each is the maximum over the ranks, and percentiles are linear."""

    minimum: Finite
    p10: Finite
    median: Finite
    p90: Finite
    maximum: Finite


class Comparison(Schema):
    """One timing gate.

    Attributes:
        control: the gated figure of the control, in nanoseconds.
        candidate: of the candidate.
        saving: control - candidate.
        passed: whether the published rule holds.
        interval: of the saving, 95 %; None where the samples are too few to bound it, as one generation an arm is.
        detectable: the smallest saving that these samples could have told from nothing; None likewise.
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
        clauses: by the campaign's clause, what each of its rules came to.
        timing: the six published timing gates by name; None when the profiles cannot be compared.
        distributions: by arm and quantity.
        published: what the published rules say, whether or not they decide here; None without timing, where the
            diagnostic is not exact, where the plan asks for less than was published, and where an arm gave other tokens
            than the others: they call nothing else by either name.
        plan_sha256: digest of ``plan.json``.
    """

    file_schema: Annotated[Literal["pytest-laguna-diagnosis-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-diagnosis-v1"
    )
    notice: Literal["diagnostic only: neither benchmark nor submission evidence"] = NOTICE
    plan_sha256: Sha256
    decides: Decides
    clauses: dict[str, dict[str, RuleResult]]
    timing: dict[str, Comparison] | None
    distributions: dict[str, dict[str, Distribution]]
    published: Literal["diagnostic_pass", "exact_timing_stop"] | None
