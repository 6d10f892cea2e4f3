# SPDX-License-Identifier: Apache-2.0
"""The input and the record of an arm: one configuration, run once in a fresh process."""

from __future__ import annotations

import enum
import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import pydantic

from pytest_laguna.evidence.schemas import Schema, Sha256
from pytest_laguna.evidence.values import Count, Lane, PositiveCount, SchemaName

Seconds = Annotated[float, pydantic.Field(gt=0, lt=9e6, allow_inf_nan=False)]
"""Shorter than 104 days: up to there every whole number of nanoseconds is a float."""

DRAFT_TOKENS = 7
"""Speculative tokens of every arm with a draft; a verification has one more. Source: the preregistration, M=8."""

MOST_PROFILE_SAMPLES = 512
"""Maximum of replays in an arm: its model holds 512 tokens, and a replay yields at least one."""


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
        """True if the arm has a draft."""
        return self is not Arm.Q1

    @property
    def graphs(self) -> bool:
        """True if the arm captures and replays graphs."""
        return self in {Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE}

    @property
    def flag(self) -> Literal["0", "1"]:
        """Value of the candidate's flag."""
        return "1" if self is Arm.GRAPH_CANDIDATE else "0"


class Planted(enum.StrEnum):
    """A defect planted in the candidate, to see the gate catch it."""

    NONE = "none"
    WRONG_OFFSET = "wrong-offset"
    """The key view is built one element late: the contract must refuse it."""
    WRONG_STRIDE = "wrong-stride"
    """The key view is built with a token stride of one too many: the contract must refuse it."""
    UNCHECKED_WRONG_OFFSET = "unchecked-wrong-offset"
    """The same offset behind the contract, on the way to the kernel: the outputs must differ."""
    UNCHECKED_WRONG_STRIDE = "unchecked-wrong-stride"
    """The same stride behind the contract: the outputs must differ."""


class ArmRequest(Schema):
    """The whole input of an arm process.

    Attributes:
        draft: folder of the draft model; None in the q1 arm alone.
        tokens: number of tokens to generate; nothing else ends the generation.
        planted: only the candidate arm can carry a defect.
        profile_samples: replays of the target's graph to time on each rank; 0 without a profile. Only arms with graphs
            have one.
        event_profile: SHA-256 of the segments' kinds in replay order, which each rank must find; None without an event
            profile. Only graph-control has one, and never beside a replay profile.
        event_fitness_rounds: rounds of the instrument's own trial, in place of the one event profile; 0 for none.
        event_sparse_replays: replays with a few measured intervals each, in place of it; 0 for none.
        isolated: True if the arm must leave the host's network before it imports anything able to use it.
        null: True for A/A: the candidate's slot holds a control, and every arm has the control's flag.
    """

    file_schema: SchemaName[Literal["pytest-laguna-arm-request-v1"]] = "pytest-laguna-arm-request-v1"
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
        """Value of the candidate's flag."""
        return "0" if self.null else self.arm.flag

    @pydantic.model_validator(mode="after")
    def _coherent(self) -> Self:
        if (self.draft is not None) != self.arm.speculates:
            raise ValueError(f"arm {self.arm}: draft {self.draft!r}; expected one in every arm but q1")
        if self.planted is not Planted.NONE and self.arm is not Arm.GRAPH_CANDIDATE:
            message = f"arm {self.arm}: planted {self.planted}; expected it in graph-candidate, which runs that code"
            raise ValueError(message)
        if self.profile_samples and not self.arm.graphs:
            message = f"arm {self.arm}: {self.profile_samples} profile samples; expected 0 without a graph to replay"
            raise ValueError(message)
        if self.event_profile is not None and (self.arm is not Arm.GRAPH_CONTROL or self.profile_samples):
            message = f"arm {self.arm}: an event profile and {self.profile_samples} profile samples"
            raise ValueError(f"{message}; expected an event profile in graph-control, with 0 profile samples")
        others = [number for number in (self.event_fitness_rounds, self.event_sparse_replays) if number]
        if len(others) > (self.event_profile is not None):
            message = f"{self.event_fitness_rounds} rounds of fitness and {self.event_sparse_replays} sparse replays"
            raise ValueError(f"{message}; expected one of them at most, and none without an event profile")
        return self


class Acceptance(Schema):
    """Counts of the draft's proposals.

    Attributes:
        drafts: verification cycles with a proposal.
        draft_tokens: proposed tokens.
        accepted_per_position: cycles with an accepted proposal at each position, first position first.
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
            message = (
                f"drafts {self.drafts}, accepted {self.accepted} of {self.draft_tokens}, per position {positions};"
                " expected counts that fall from position to position and add up to accepted"
            )
            raise ValueError(message)
        return self


class AttentionDigest(Schema):
    """Digest of the target's attention outputs: identity bit for bit, beyond tokens.

    Attributes:
        sha256: over the bytes of the real rows of every output, in the order of the calls.
        layers: number of watched layers; 0 if watching never began, because a profile did not get its samples.
    """

    sha256: Sha256
    calls: Count
    layers: Count


class KernelViews(Schema):
    """Key and value tensors of one target layer at the attention kernel, seen from outside the candidate.

    Attributes:
        same_objects: calls with the very tensors of the first call, which counts.
        geometries: distinct addresses, shapes and strides of the two.
    """

    calls: PositiveCount
    same_objects: PositiveCount
    geometries: PositiveCount


class KernelSignatures(Schema):
    """Arguments of the attention kernel for one target layer.

    The digest covers each argument by its name: of a tensor the shape, strides, data type, storage offset and kind of
    device, of anything else its value. It leaves out addresses: they differ between processes.

    Attributes:
        distinct: number of different sets of tensors.
        sha256: over all arguments of all calls, in the order of the calls.
    """

    calls: PositiveCount
    distinct: PositiveCount
    sha256: Sha256


class RankProcess(Schema):
    """The process of a rank.

    Attributes:
        start_ticks: time of its start in clock ticks since boot; with ``pid`` it names one process for ever.
    """

    pid: PositiveCount
    start_ticks: Count


class MappedFile(Schema):
    """A file with a part mapped as executable in a process.

    Attributes:
        path: as the kernel prints it, with `` (deleted)`` behind it if it no longer leads to this file.
        device: number of its file system, from the kernel's map of the process.
        inode: from the same map.
        size: in bytes, of the file now at the path; None without one.
    """

    path: str
    device: Count
    inode: Count
    size: Count | None


class ProfileReport(Schema):
    """Outcome of a rank's replay profile.

    Attributes:
        taken: number of profiled replays at the end of the generation.
        sha256: digest of ``rank<rank>.json``; None if too few replays came for it to be written.
    """

    samples: PositiveCount
    taken: Count
    sha256: Sha256 | None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.taken > self.samples or (self.sha256 is not None) != (self.taken == self.samples):
            message = f"{self.taken} of {self.samples} samples, file {self.sha256}; expected one after the last sample"
            raise ValueError(message)
        return self


class EventReport(Schema):
    """Outcome of a rank's event profile.

    Attributes:
        rounds: of the instrument's own trial; 0 if the request was for something else.
        replays: of the sparse profile; 0 likewise.
        sha256: digest of ``rank<rank>.json``; None if too few replays came for it to be written.
    """

    rounds: Count
    replays: Count
    sha256: Sha256 | None


class NetworkIsolation(Schema):
    """The network within reach of an arm's process and everything below it.

    Attributes:
        left: inode of the namespace in which it started.
    """

    namespace: PositiveCount
    left: PositiveCount
    interfaces: list[str]


class CapturedGraph(Schema):
    """One capture of a breakable graph.

    Attributes:
        descriptor: vLLM's description of the batch.
        breaks: eager segments.
        kinds: number of segments by kind: graph, attention, collective, other.
        order_sha256: SHA-256 of all kinds in replay order, joined by commas.
    """

    model: Literal["target", "draft"]
    descriptor: str
    graphs: PositiveCount
    breaks: Count
    kinds: dict[str, PositiveCount]
    order_sha256: Sha256


class RankReport(Schema):
    """Report of one rank after the generation.

    Watching (``attention``, ``kernel_views``, ``kernel_signatures``, ``allocations``) begins with the generation, or
    after the last profiled replay: it must not disturb a timed replay.

    Attributes:
        world_size: number of ranks in its process group.
        tensor_parallel_rank: its number among the ranks of each layer.
        model_runner: qualified class name.
        kernel_views: by target layer.
        kernel_signatures: by target layer.
        allocations: number in each of the first watched replays of the target's graph, in their order: of the device's
            allocator, and on a CPU of operations that returned new memory. Empty without graphs.
        sampled_token_ids: sampled by this rank, of every step; the last step may yield more than the length allows.
        mapped: every file mapped as executable at the end of the generation, in the order of paths.
        candidate: the candidate's own proof, in the form of ``candidate_proof``.
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
    """The record of one arm: one cold greedy generation.

    Attributes:
        token_sha256: of the compact JSON list of ``token_ids``.
        text_sha256: of the generated text in UTF-8.
        finish_reason: vLLM's word for the end.
        prompt_token_sha256: of the compact JSON list of the prompt's tokens.
        cached_tokens: prompt tokens found in a cache; a cold generation has none.
        generation_seconds: wall time of the one generate call, monotonic clock.
        start_seconds: wall time from the start of the arm's program to a ready engine.
        acceptance: None in the q1 arm.
        versions: of torch, vllm, transformers and Python.
        configuration: the engine's arguments, and vLLM's configuration made of them.
        environment: of the arm's process at its start; it refuses variables foreign to an arm.
        network: None if the arm stayed in the host's network.
    """

    file_schema: SchemaName[Literal["pytest-laguna-arm-record-v1"]] = "pytest-laguna-arm-record-v1"
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
            raise ValueError("token_sha256: seen another digest; expected that of token_ids")
        if [report.rank for report in self.ranks] != list(range(self.request.tensor_parallel_size)):
            message = f"ranks {[report.rank for report in self.ranks]}; expected each of the request's once, in order"
            raise ValueError(message)
        if (self.acceptance is not None) != self.request.arm.speculates:
            raise ValueError(f"arm {self.request.arm}: acceptance {self.acceptance}; expected one in every arm but q1")
        for report in self.ranks:
            self._require_of_request(report)
        if len({report.process.pid for report in self.ranks}) != len(self.ranks):
            raise ValueError("two ranks in one process; expected one process a rank")
        return self

    def _require_of_request(self, report: RankReport) -> None:
        place = (report.world_size, report.tensor_parallel_rank)
        if place != (self.request.tensor_parallel_size, report.rank):
            message = f"rank {report.rank}: world size and tensor parallel rank {place}; expected those of the request"
            raise ValueError(message)
        samples = report.profile.samples if report.profile else 0
        if samples != self.request.profile_samples:
            message = f"rank {report.rank}: a profile of {samples} samples; expected {self.request.profile_samples}"
            raise ValueError(message)
        told = report.event_profile
        seen = None if told is None else (told.rounds, told.replays)
        asked = (self.request.event_fitness_rounds, self.request.event_sparse_replays)
        if seen != (None if self.request.event_profile is None else asked):
            message = f"rank {report.rank}: an event profile of {seen} rounds and replays; expected that of the request"
            raise ValueError(message)


def token_digest(token_ids: Sequence[int]) -> str:
    """SHA-256 of the compact JSON list, the form of published campaigns."""
    return hashlib.sha256(json.dumps(list(token_ids), separators=(",", ":")).encode()).hexdigest()
