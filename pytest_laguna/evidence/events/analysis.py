# SPDX-License-Identifier: Apache-2.0
"""The event profile: its plan, the places of its evidence, and its analysis."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import pydantic

from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.arms.plan import ArmsPlan
from pytest_laguna.evidence.arms.replay_profile import Count, Nanoseconds, SegmentKind
from pytest_laguna.evidence.diagnostic.analysis import RuleResult
from pytest_laguna.evidence.events.profile import EventClock, StreamIdentity
from pytest_laguna.evidence.schemas import Schema, Sha256
from pytest_laguna.evidence.values import Finite, SchemaName

DIRECTORY = "event-profile"
"""Place below the attempt's ``evidence``.

Its files:

    plan.json  target-config.json  draft-config.json  identity.json  idle-before.json  idle-after.json
    closure.json  analysis.json
    arms/<arm>/{request,record,process,idle,host}.json
    arms/<arm>/profile/rank<rank>.json, of every arm but q1

An arm that left no record has ``failure.json`` in its place: ``{"reason": <one line>}``.
"""

TEACHER, EVENTS, FITNESS, SPARSE = "q1", "graph-event", "graph-fitness", "graph-sparse"
CONFIGURATION: Final = {
    TEACHER: Arm.Q1,
    EVENTS: Arm.GRAPH_CONTROL,
    FITNESS: Arm.GRAPH_CONTROL,
    SPARSE: Arm.GRAPH_CONTROL,
}
"""Configuration of each arm, in the order of running; the last two run if a campaign asks for them."""

CLAUSES: Final = (
    "identity-exact",
    "cards-idle",
    "host-within-limits",
    "arms-fresh",
    "cache-cold",
    "tokens-identical",
    "topology-unchanged",
    "profile-complete",
    "closure-bound",
    "instrument-fit",
    "decision",
)
"""Clauses of gate 2, in the order of judging."""

Action: TypeAlias = Literal[
    "eager_fa2_submission_candidate_design_only",
    "replay_plan_submission_research_only",
    "collective_completion_join_proof_only",
    "stop_host_side_micro_optimisation",
    "instrument_unfit",
    "withheld_host_lead",
]
"""Next step: the first four are the preregistration's, the last two withhold them."""


class Fitness(Schema, strict=True):
    """The trial of the instrument itself.

    Attributes:
        rounds: each replays without events, with host clock readings alone, and with events.
        slowdown_limit: maximum ratio of the replay with events to the one without; above it, shares mean nothing.
    """

    rounds: Annotated[int, pydantic.Field(ge=3, le=128)]
    slowdown_limit: Annotated[float, pydantic.Field(gt=1, allow_inf_nan=False)]


class EventPlan(ArmsPlan):
    """The plan of the event profile.

    Attributes:
        material_percent: minimum share of the largest category to dominate.
        fitness: None without a trial, as in the published campaign.
        sparse_replays: replays with a few measured intervals each; 0 likewise.
    """

    file_schema: SchemaName[Literal["pytest-laguna-event-plan-v1"]] = "pytest-laguna-event-plan-v1"
    material_percent: Annotated[float, pydantic.Field(gt=50, lt=100, allow_inf_nan=False)]
    fitness: Fitness | None
    sparse_replays: Count

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms in the order of running."""
        asked = {FITNESS: self.fitness is not None, SPARSE: self.sparse_replays > 0}
        return tuple(arm for arm in CONFIGURATION if asked.get(arm, True))


class EventClosure(Schema):
    """``closure.json``: digests of all files of the analysis, written after the last run.

    Attributes:
        model_generations: number of started arms, each for one generation.
        files: SHA-256 by path below the directory.
    """

    file_schema: SchemaName[Literal["pytest-laguna-event-closure-v1"]] = "pytest-laguna-event-closure-v1"
    model_generations: Count
    files: dict[str, Sha256]


class RangeClass(Schema):
    """A repeated graph of the decoder's layers."""

    count: pydantic.PositiveInt
    total_ns: Nanoseconds
    mean_ns: Finite


class Outlier(Schema):
    """An interval much longer than the others of its class."""

    layer: Count
    range_class: str
    duration_ns: Nanoseconds
    median_ns: Finite


class SourceRanges(Schema):
    """The intervals by their place in the model's source, in nanoseconds."""

    prefix_ns: list[Nanoseconds]
    layers: list[list[Nanoseconds]]
    tail_ns: list[Nanoseconds]
    classes: dict[str, RangeClass]
    outliers: list[Outlier]


class HostShare(Schema):
    """Bounds of the stream's waiting for the host, from the host's lead.

    Attributes:
        waiting_least_ns: by kind.
        waiting_most_ns: by kind.
        smallest_lead_ns: of the host over the stream at any boundary but the first.
    """

    waiting_least_ns: dict[SegmentKind, Finite]
    waiting_most_ns: dict[SegmentKind, Finite]
    smallest_lead_ns: int


class SparseShare(Schema):
    """A share of a replay, estimated from a few intervals of many.

    Attributes:
        percent: of the replay's intervals; ``low`` and ``high`` are the ends of its 95 % interval.
        drawn: number of measured intervals.
    """

    percent: Finite
    low: Finite
    high: Finite
    drawn: pydantic.PositiveInt


class SelectedRank(Schema):
    """The slowest rank.

    Attributes:
        category_ns: the same by kind of segment.
        category_percent: their shares; None if they are withheld.
        ranges: None for an unknown form.
        host: None on a CPU, and without the host's lead in the profile.
    """

    rank: Count
    total_ns: Nanoseconds
    clock: EventClock
    stream: StreamIdentity
    category_ns: dict[SegmentKind, Nanoseconds]
    category_percent: dict[SegmentKind, Finite] | None
    ranges: SourceRanges | None
    host: HostShare | None


class MeasuredFitness(Schema):
    """Cost of the instrument; ratios are medians over the rounds of the rank with the largest.

    Attributes:
        slowdown: the whole replay with events over the one without.
        stamped_slowdown: the same with host clock readings alone, the basis of the next ratios.
        kind_slowdown: by kind of segment, host time with events over without.
        spread: the largest of those over the smallest: 1 for an instrument that slows all kinds alike.
        limit: the campaign's, of ``slowdown``.
    """

    slowdown: Finite
    stamped_slowdown: Finite
    kind_slowdown: dict[SegmentKind, Finite]
    spread: Finite
    limit: Finite

    @property
    def fit(self) -> bool:
        """True if the slow-down is within the limit."""
        return self.slowdown <= self.limit


class EventAnalysis(Schema):
    """``event-profile/analysis.json``: a pure function of the files beside it.

    Attributes:
        status: the published contract's name of a complete profile; None without one.
        clauses: results by clause and rule.
        rank_total_ns: by rank; it selects the slowest rank before any category is computed.
        selected: None without a profile of each rank.
        fitness: ``unmeasured`` if the campaign asks for no trial.
        fitness_figures: None likewise, and without a file of each rank.
        sparse: by rank and category, if the campaign asks for it; it decides nothing.
        sparse_classes: likewise by place in the source.
        action: None without a complete profile, and if the trial of the instrument proves nothing.
        network_isolated: every arm ran in a network namespace of its own with nothing but loopback; None if an arm does
            not prove it.
        device_work_only: no interval is shown to hold device work alone.
    """

    file_schema: SchemaName[Literal["pytest-laguna-event-analysis-v2"]] = "pytest-laguna-event-analysis-v2"
    status: Literal["exact_event_profile_stop"] | None
    plan_sha256: Sha256
    clauses: dict[str, dict[str, RuleResult]]
    rank_total_ns: dict[str, Nanoseconds]
    selected: SelectedRank | None
    fitness: Literal["unmeasured", "fit", "unfit", "not_proven"]
    fitness_figures: MeasuredFitness | None
    sparse: dict[str, dict[SegmentKind, SparseShare]]
    sparse_classes: dict[str, dict[str, SparseShare]]
    action: Action | None
    network_isolated: Literal[True] | None
    rank_local_only: Literal[True] = True
    global_critical_path_validated: Literal[False] = False
    collective_cross_stream_completion_validated: Literal[False] = False
    device_work_only: Literal["not_validated"] = "not_validated"
    diagnostic_only: Literal[True] = True
    not_benchmark_or_submission_evidence: Literal[True] = True
    authorize_uninstrumented_endpoint: Literal[False] = False
    authorize_submission: Literal[False] = False
