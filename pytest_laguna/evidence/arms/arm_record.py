# SPDX-License-Identifier: Apache-2.0
"""What an arm is asked for and what it records: one configuration, run once in a fresh process."""

from __future__ import annotations

import enum
import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import pydantic

from pytest_laguna.evidence.schemas import Schema, Sha256
from pytest_laguna.evidence.values import Count, Lane, PositiveCount

Seconds = Annotated[float, pydantic.Field(gt=0, lt=9e6, allow_inf_nan=False)]
"""Below the 104 days whose nanoseconds still are a whole number of a float each."""

DRAFT_TOKENS = 7
"""Speculative tokens of every arm with a draft; a verification is one wider. Source: the preregistration, M=8."""

MOST_PROFILE_SAMPLES = 512
"""No arm replays more often: this is how many tokens its model can hold, and a replay yields at least one."""


class Arm(enum.StrEnum):
    """The four arms of the exact diagnostic. Source: the preregistration, Gate 2."""

    Q1 = "q1"
    """No speculation, no graphs: the teacher."""
    EAGER = "eager"
    """Speculation, no graphs."""
    GRAPH_CONTROL = "graph-control"
    """Speculation and breakable graphs, flag 0."""
    GRAPH_CANDIDATE = "graph-candidate"
    """Speculation and breakable graphs, flag 1: the sole treatment."""

    @property
    def speculates(self) -> bool:
        """Whether the arm has a draft."""
        return self is not Arm.Q1

    @property
    def graphs(self) -> bool:
        """Whether the arm captures and replays graphs."""
        return self in {Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE}

    @property
    def flag(self) -> Literal["0", "1"]:
        """The value of the candidate's flag."""
        return "1" if self is Arm.GRAPH_CANDIDATE else "0"


class Planted(enum.StrEnum):
    """A defect put into the candidate on purpose, to see that the gate catches it."""

    NONE = "none"
    WRONG_OFFSET = "wrong-offset"
    """The key view starts one element late when it is built: the contract must refuse it."""
    WRONG_STRIDE = "wrong-stride"
    """The key view's token stride is one too large when it is built: the contract must refuse it."""
    UNCHECKED_WRONG_OFFSET = "unchecked-wrong-offset"
    """The same offset behind the contract, in what the kernel is handed: the outputs must differ."""
    UNCHECKED_WRONG_STRIDE = "unchecked-wrong-stride"
    """The same stride behind the contract: the outputs must differ."""


class ArmRequest(Schema):
    """What an arm process is told; nothing else decides what it does.

    Attributes:
        arm: which of the four configurations.
        lane: where it runs.
        target: folder of the target model.
        draft: folder of the draft model; None in the q1 arm and only there.
        prompt: the text that is continued.
        tokens: how many tokens are generated; there is no other end.
        tensor_parallel_size: ranks.
        collective_breaks: whether each all-reduce is a break of its own.
        planted: a defect to plant; only the candidate arm can carry one.
        profile_samples: replays of the target's graph that each rank times; 0 for no profile. Only arms with graphs
            can have one.
        event_profile: SHA-256 of the segments' kinds in the order that each rank's event profile must find; None for
            no such profile. Only graph-control can have one, and none beside a replay profile.
        event_fitness_rounds: in place of the one event profile, rounds that try what it costs; 0 for none.
        event_sparse_replays: in place of it, replays of which a few intervals each are measured; 0 for none.
        isolated: whether the arm is to leave the host's network before it imports anything that could use it.
        null: whether the candidate's slot holds a control too; then every arm has the flag's value of a control.
    """

    file_schema: Annotated[Literal["pytest-laguna-arm-request-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-arm-request-v1"
    )
    arm: Arm
    lane: Lane
    target: str
    draft: str | None
    prompt: Annotated[str, pydantic.Field(min_length=1)]
    tokens: PositiveCount
    tensor_parallel_size: PositiveCount
    collective_breaks: bool
    planted: Planted
    profile_samples: Annotated[int, pydantic.Field(ge=0, le=MOST_PROFILE_SAMPLES)]
    event_profile: Sha256 | None = None
    event_fitness_rounds: Count = 0
    event_sparse_replays: Count = 0
    isolated: bool = False
    null: bool = False

    @property
    def flag(self) -> Literal["0", "1"]:
        """The value of the candidate's flag."""
        return "0" if self.null else self.arm.flag

    @pydantic.model_validator(mode="after")
    def _coherent(self) -> Self:
        if (self.draft is not None) != self.arm.speculates:
            message = f"arm {self.arm} with draft {self.draft!r}: a draft is named in every arm but q1, and not in q1"
            raise ValueError(message)
        if self.planted is not Planted.NONE and self.arm is not Arm.GRAPH_CANDIDATE:
            message = f"arm {self.arm} with planted {self.planted}: only graph-candidate runs the code it is planted in"
            raise ValueError(message)
        if self.profile_samples and not self.arm.graphs:
            message = f"arm {self.arm} with {self.profile_samples} profile samples: it has no graph to replay"
            raise ValueError(message)
        if self.event_profile is not None and (self.arm is not Arm.GRAPH_CONTROL or self.profile_samples):
            message = f"arm {self.arm}, {self.profile_samples} profile samples and an event profile: only graph-control"
            raise ValueError(f"{message} has one, and one instrument at a time")
        others = [number for number in (self.event_fitness_rounds, self.event_sparse_replays) if number]
        if len(others) > (self.event_profile is not None):
            message = f"{self.event_fitness_rounds} rounds of fitness and {self.event_sparse_replays} sparse replays"
            raise ValueError(f"{message}: expected one of them at most, and none without an event profile")
        return self


class Acceptance(Schema):
    """What became of the draft's proposals.

    Attributes:
        drafts: verification cycles that had a proposal.
        draft_tokens: proposed tokens over all of them.
        accepted: accepted tokens over all of them.
        accepted_per_position: cycles that accepted the proposal at each position, first position first.
    """

    drafts: Count
    draft_tokens: Count
    accepted: Count
    accepted_per_position: list[Count]

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        positions = self.accepted_per_position
        falling = all(first >= second for first, second in itertools.pairwise([self.drafts, *positions]))
        if not falling or sum(positions) != self.accepted or self.accepted > self.draft_tokens:
            message = f"drafts {self.drafts}, accepted {self.accepted}, per position {positions}: do not add up"
            raise ValueError(message)
        return self


class AttentionDigest(Schema):
    """Bitwise identity of the target's attention, beyond tokens.

    Attributes:
        sha256: over the bytes of the real rows of every output, in the order of the calls.
        calls: how many outputs went into it.
        layers: how many layers of the target were watched; 0 where watching never began, because a profile did not
            get its samples.
    """

    sha256: Sha256
    calls: Count
    layers: Count


class KernelViews(Schema):
    """What the attention kernel was handed of one target layer's cache, seen from outside the candidate.

    Attributes:
        calls: of the kernel.
        same_objects: calls with the very key and value tensors of the first, which counts.
        geometries: distinct addresses, shapes and strides of the two.
    """

    calls: PositiveCount
    same_objects: PositiveCount
    geometries: PositiveCount


class KernelSignatures(Schema):
    """With what arguments the attention kernel was called for one target layer.

    Told of an argument are, by its name, of a tensor the shape, strides, data type, storage offset and kind of device,
    and of anything else its value. Addresses are not told; they differ from process to process.

    Attributes:
        calls: of the kernel.
        distinct: how many different sets of tensors were handed to it.
        sha256: over all arguments of all calls, in the order of the calls.
    """

    calls: PositiveCount
    distinct: PositiveCount
    sha256: Sha256


class RankProcess(Schema):
    """The process that a rank ran in.

    Attributes:
        pid: its number.
        start_ticks: when it was started, in clock ticks since the machine was; with ``pid`` it is never used again.
    """

    pid: PositiveCount
    start_ticks: Count


class MappedFile(Schema):
    """A file of which a process had a part mapped as executable.

    Attributes:
        path: as the kernel tells it, with `` (deleted)`` behind it where it leads to that file no longer.
        device: its file system's number, as the kernel's map of the process has it.
        inode: its number there, likewise.
        size: in bytes, of what is at the path; None where nothing is.
    """

    path: str
    device: Count
    inode: Count
    size: Count | None


class ProfileReport(Schema):
    """What became of a rank's replay profile.

    Attributes:
        samples: how many replays it was to have.
        taken: how many it had when the generation was over.
        sha256: digest of ``rank<rank>.json``; None where it was never written, for want of replays.
    """

    samples: PositiveCount
    taken: Count
    sha256: Sha256 | None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.taken > self.samples or (self.sha256 is not None) != (self.taken == self.samples):
            message = f"{self.taken} of {self.samples} samples with file {self.sha256}: written with the last, or never"
            raise ValueError(message)
        return self


class EventReport(Schema):
    """What became of a rank's event profile.

    Attributes:
        rounds: of the instrument's own trial; 0 where something else was asked for.
        replays: of the sparse profile; 0 likewise.
        sha256: digest of ``rank<rank>.json``; None where it was never written, for want of replays.
    """

    rounds: Count
    replays: Count
    sha256: Sha256 | None


class NetworkIsolation(Schema):
    """The network that an arm's process and everything below it could reach.

    Attributes:
        namespace: inode of its network namespace.
        left: inode of the one that it was started in.
        interfaces: of its namespace.
    """

    namespace: PositiveCount
    left: PositiveCount
    interfaces: list[str]


class CapturedGraph(Schema):
    """One capture of a breakable graph.

    Attributes:
        model: ``target`` or ``draft``.
        descriptor: vLLM's description of the batch that it serves.
        graphs: graph segments.
        breaks: eager segments.
        kinds: how many segments are of which kind (graph, attention, collective, other).
        order_sha256: SHA-256 of all kinds in replay order, joined by commas.
    """

    model: Literal["target", "draft"]
    descriptor: str
    graphs: PositiveCount
    breaks: Count
    kinds: dict[str, PositiveCount]
    order_sha256: Sha256


class RankReport(Schema):
    """What one rank says of itself after the generation.

    Watching (``attention``, ``kernel_views``, ``kernel_signatures``, ``allocations``) begins with the generation, or
    after the last profiled replay: it must not disturb what is timed.

    Attributes:
        rank: its number among all ranks.
        world_size: how many there are, as its process group has it.
        tensor_parallel_rank: its number among those that share each layer.
        process: which process it is.
        model_runner: qualified class name.
        graphs: every capture it holds.
        attention: digest over the target's attention outputs.
        kernel_views: what the kernel was handed of the cache, by target layer.
        kernel_signatures: with what arguments it was called, by target layer.
        allocations: made in each of the first watched replays of the target's graph, in their order: of the device's
            allocator, and on a CPU of operations that returned new memory. Empty without graphs.
        profile: None where none was asked for.
        event_profile: None where none was asked for.
        sampled_token_ids: that it sampled itself, of every step; the last may yield more than the length allows.
        mapped: every file mapped as executable when the generation was over, in the order of their paths.
        candidate: the candidate's own proof: the classes that serve attention, and what became of each layer's views.
    """

    rank: Count
    world_size: PositiveCount
    tensor_parallel_rank: Count
    process: RankProcess
    model_runner: str
    graphs: list[CapturedGraph]
    attention: AttentionDigest
    kernel_views: dict[str, KernelViews]
    kernel_signatures: dict[str, KernelSignatures]
    allocations: list[Count]
    profile: ProfileReport | None
    event_profile: EventReport | None
    sampled_token_ids: list[Count]
    mapped: Annotated[list[MappedFile], pydantic.Field(min_length=1)]
    candidate: dict[str, pydantic.JsonValue]


class ArmRecord(Schema):
    """What one arm did: one cold greedy generation.

    Attributes:
        request: what it was told.
        token_ids: the generated tokens.
        token_sha256: of the compact JSON list of ``token_ids``.
        text_sha256: of the generated text in UTF-8.
        finish_reason: vLLM's word for why it ended.
        prompt_tokens: length of the prompt.
        prompt_token_sha256: of the compact JSON list of the prompt's tokens.
        cached_tokens: prompt tokens found in a cache; a cold generation has none.
        generation_seconds: wall time of the one generate call, monotonic clock.
        start_seconds: wall time from the start of the arm's program to a ready engine.
        acceptance: None in the q1 arm.
        ranks: in the order of their numbers.
        versions: of torch, vllm, transformers and Python.
        configuration: what the engine was given and what it made of it.
        environment: of the arm's process when it began; it refuses variables that are not an arm's.
        network: None where it stayed in the host's network.
    """

    file_schema: Annotated[Literal["pytest-laguna-arm-record-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-arm-record-v1"
    )
    request: ArmRequest
    token_ids: list[Count]
    token_sha256: Sha256
    text_sha256: Sha256
    finish_reason: str
    prompt_tokens: PositiveCount
    prompt_token_sha256: Sha256
    cached_tokens: Count
    generation_seconds: Seconds
    start_seconds: Seconds
    acceptance: Acceptance | None
    ranks: Annotated[list[RankReport], pydantic.Field(min_length=1)]
    versions: dict[str, str]
    configuration: dict[str, pydantic.JsonValue]
    environment: dict[str, str]
    network: NetworkIsolation | None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.token_sha256 != token_digest(self.token_ids):
            raise ValueError("token_sha256 is not the digest of token_ids")
        if [report.rank for report in self.ranks] != list(range(self.request.tensor_parallel_size)):
            message = f"ranks {[report.rank for report in self.ranks]}: expected each of the request's once, in order"
            raise ValueError(message)
        if (self.acceptance is not None) != self.request.arm.speculates:
            message = f"acceptance {self.acceptance} in arm {self.request.arm}: every arm but q1 has one, and q1 none"
            raise ValueError(message)
        for report in self.ranks:
            self._require_of_request(report)
        if len({report.process.pid for report in self.ranks}) != len(self.ranks):
            raise ValueError("two ranks in one process: expected one process a rank")
        return self

    def _require_of_request(self, report: RankReport) -> None:
        place = (report.world_size, report.tensor_parallel_rank)
        if place != (self.request.tensor_parallel_size, report.rank):
            message = f"rank {report.rank}: world size and tensor parallel rank {place}: expected those of the request"
            raise ValueError(message)
        samples = report.profile.samples if report.profile else 0
        if samples != self.request.profile_samples:
            message = f"rank {report.rank}: a profile of {samples} samples, asked for {self.request.profile_samples}"
            raise ValueError(message)
        told = report.event_profile
        seen = None if told is None else (told.rounds, told.replays)
        asked = (self.request.event_fitness_rounds, self.request.event_sparse_replays)
        if seen != (None if self.request.event_profile is None else asked):
            message = f"rank {report.rank}: an event profile of {seen} rounds and replays; expected that of the request"
            raise ValueError(message)


def token_digest(token_ids: Sequence[int]) -> str:
    """SHA-256 of the compact JSON list, the form in which published campaigns compare tokens."""
    return hashlib.sha256(json.dumps(list(token_ids), separators=(",", ":")).encode()).hexdigest()
