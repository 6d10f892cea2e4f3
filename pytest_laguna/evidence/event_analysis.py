# SPDX-License-Identifier: Apache-2.0
"""The event profile campaign: what is expected of it, where its evidence lies, and what the analysis made of it."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import pydantic

from pytest_laguna.evidence.arm_record import Arm
from pytest_laguna.evidence.arms_plan import ArmsPlan
from pytest_laguna.evidence.diagnostic import Finite, RuleResult
from pytest_laguna.evidence.event_profile import EventClock, StreamIdentity
from pytest_laguna.evidence.replay_profile import Count, Nanoseconds, SegmentKind
from pytest_laguna.evidence.schemas import Schema, Sha256

DIRECTORY = "event-profile"
"""Below the attempt's ``evidence``. Its files:

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
"""The arms in their order, with the configuration that each runs; the last two where a campaign asks for them."""

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
"""What the campaign must show, in the order in which it is judged; each is a clause of its gate 2."""

Action: TypeAlias = Literal[
    "eager_fa2_submission_candidate_design_only",
    "replay_plan_submission_research_only",
    "collective_completion_join_proof_only",
    "stop_host_side_micro_optimisation",
    "instrument_unfit",
    "withheld_host_lead",
]
"""What comes next. The first four are the preregistration's; the last two withhold them."""


class Fitness(Schema):
    """How the instrument itself is tried.

    Attributes:
        rounds: each replays without events, with host clock readings alone, and with events.
        slowdown_limit: the largest ratio of the replay with events to the one without at which shares mean anything.
    """

    rounds: Annotated[int, pydantic.Field(ge=3, le=128)]
    slowdown_limit: Annotated[float, pydantic.Field(gt=1, allow_inf_nan=False)]


class EventPlan(ArmsPlan):
    """What the campaign, the cards and the models' configuration files say before anything runs.

    Attributes:
        material_percent: the least share with which the largest category dominates.
        fitness: None in the published campaign, which did not ask.
        sparse_replays: of which a few intervals each are measured; 0 likewise.
    """

    file_schema: Annotated[Literal["pytest-laguna-event-plan-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-event-plan-v1"
    )
    material_percent: Annotated[float, pydantic.Field(gt=50, lt=100, allow_inf_nan=False)]
    fitness: Fitness | None
    sparse_replays: Count

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that run, in their order."""
        asked = {FITNESS: self.fitness is not None, SPARSE: self.sparse_replays > 0}
        return tuple(arm for arm in CONFIGURATION if asked.get(arm, True))


class EventClosure(Schema):
    """``closure.json``: binds every file that the analysis looks at, written after the last run.

    Attributes:
        model_generations: how many arms were started, each for one generation.
        files: SHA-256 by path below the directory.
    """

    file_schema: Annotated[Literal["pytest-laguna-event-closure-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-event-closure-v1"
    )
    model_generations: Count
    files: dict[str, Sha256]


class RangeClass(Schema):
    """A repeated graph of the decoder's layers."""

    count: pydantic.PositiveInt
    total_ns: Nanoseconds
    mean_ns: Finite


class Outlier(Schema):
    """An interval that is much longer than the others of its class."""

    layer: Count
    range_class: str
    duration_ns: Nanoseconds
    median_ns: Finite


class SourceRanges(Schema):
    """The intervals by their place in the model's source, in nanoseconds.

    Attributes:
        prefix_ns: before the first decoder layer.
        layers: the intervals of each layer.
        tail_ns: after the last one.
        classes: of the repeated graphs.
        outliers: among them.
    """

    prefix_ns: list[Nanoseconds]
    layers: list[list[Nanoseconds]]
    tail_ns: list[Nanoseconds]
    classes: dict[str, RangeClass]
    outliers: list[Outlier]


class HostShare(Schema):
    """What the host's lead says of the intervals.

    Attributes:
        waiting_least_ns: by kind, how long the stream waited for the host at least.
        waiting_most_ns: by kind, at most.
        smallest_lead_ns: of the host over the stream at any boundary but the first.
    """

    waiting_least_ns: dict[SegmentKind, Finite]
    waiting_most_ns: dict[SegmentKind, Finite]
    smallest_lead_ns: int


class SparseShare(Schema):
    """A share of a replay, estimated from a few intervals of many.

    Attributes:
        percent: of the replay's intervals.
        low: end of the 95 % interval.
        high: the other end.
        drawn: how many intervals it rests on.
    """

    percent: Finite
    low: Finite
    high: Finite
    drawn: pydantic.PositiveInt


class SelectedRank(Schema):
    """The slowest rank.

    Attributes:
        rank: its number.
        total_ns: of its intervals.
        clock: what took the times.
        stream: that was measured.
        category_ns: its intervals by kind.
        category_percent: their shares; None where they are withheld.
        ranges: its intervals by source; None for a form that is not known.
        host: None on a CPU, and where the profile does not tell.
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
    """What the instrument costs; ratios are medians over the rounds of the rank with the largest.

    Attributes:
        slowdown: the whole replay with events over the one without.
        stamped_slowdown: with host clock readings alone, which the next ratios rest on.
        kind_slowdown: by kind of segment, host time with events over without.
        spread: the largest of those over the smallest: 1 is an instrument that slows all kinds alike.
        limit: the campaign's, of ``slowdown``.
    """

    slowdown: Finite
    stamped_slowdown: Finite
    kind_slowdown: dict[SegmentKind, Finite]
    spread: Finite
    limit: Finite

    @property
    def fit(self) -> bool:
        """Whether the slow-down is within the limit."""
        return self.slowdown <= self.limit


class EventAnalysis(Schema):
    """``event-profile/analysis.json``: a pure function of the files beside it.

    Attributes:
        status: what the published contract calls a complete profile; None without one.
        plan_sha256: digest of ``plan.json``.
        clauses: by the campaign's clause, what each of its rules came to.
        rank_total_ns: by rank; the slowest is selected by it before any category is looked at.
        selected: None without a profile of each rank.
        fitness: ``unmeasured`` where the campaign does not ask.
        fitness_figures: None likewise, and without a file of each rank.
        sparse: by rank and category, where a campaign asks for it; it decides nothing.
        sparse_classes: likewise by place in the source.
        action: None without a complete profile, and where the trial of the instrument proves nothing.
        network_isolated: that every arm ran in a network namespace of its own with nothing but loopback; absent (None)
            where an arm does not prove it.
        device_work_only: whether an interval holds device work alone; nothing here has shown it.
    """

    file_schema: Annotated[Literal["pytest-laguna-event-analysis-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-event-analysis-v1"
    )
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
