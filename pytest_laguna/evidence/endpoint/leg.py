# SPDX-License-Identifier: Apache-2.0
"""The request and the records of a leg: one fresh server and one pass of the suite.

These models check the form alone. The rules of ``analysis`` judge whether a leg is exact, cold and clean: a false
counter, a warm cache or an absent fact is recorded as it was seen.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, Self

import pydantic

from pytest_laguna.evidence.arms.arm_record import Arm, CapturedGraph, token_digest
from pytest_laguna.evidence.machine.idle import Utc
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.schemas import Schema, Sha256
from pytest_laguna.evidence.values import Count, Finite, Lane, NonNegative, PositiveCount, SchemaName, Text

LegName = Literal["A1", "B1", "B2", "A2"]
"""A is the control and B the candidate; the number counts within a block (source: the laboratory's crossover)."""


class SuitePin(Schema):
    """A suite by digest and by count: two suites have been published with one name and version.

    Attributes:
        sha256: of the file's bytes.
        max_tokens: maximum length of a row's answer.
        rollover_prompt_tokens: minimum length of a rollover row's prompt.
    """

    suite_id: Text
    version: PositiveCount
    sha256: Sha256
    prompts: PositiveCount
    max_tokens: PositiveCount
    rollover_prompt_tokens: PositiveCount


class LegRequest(Schema):
    """The whole input of a leg.

    Attributes:
        sequence: number of the leg in the whole campaign, from 1.
        arm: control or candidate; in an A/A campaign every leg is a control.
        model: the expected id in the server's answers.
        engine_arguments: of the server, by the names of vLLM's engine arguments.
        variables: of the server's environment: all with an effect on results, the selector among them.
    """

    file_schema: SchemaName[Literal["pytest-laguna-leg-request-v1"]] = "pytest-laguna-leg-request-v1"
    leg: LegName
    block: PositiveCount
    sequence: PositiveCount
    arm: Arm
    lane: Lane
    model: Text
    suite: SuitePin
    engine_arguments: dict[str, pydantic.JsonValue]
    variables: dict[str, str]


class Listener(Schema):
    """The listening socket of the server's port.

    Attributes:
        address: as ``host:port``.
        holders: pids of the server's own processes with the socket open.
    """

    address: Text
    inode: PositiveCount
    holders: Annotated[list[PositiveCount], pydantic.Field(min_length=1)]


class ServerProof(Schema):
    """Proof of a server of our own, fresh and of the expected model.

    Attributes:
        start_ticks: when it started, in clock ticks since boot.
        nonce: the leg's random alias of the model; requests name it, so no other server answers them.
        models: every model id of the ready server, in its order.
        ready_seconds: from its start to its list of models.
        listener_before: the port's owner before the first request.
        listener_after: the port's owner after the last one.
    """

    argv: Annotated[list[str], pydantic.Field(min_length=1)]
    pid: PositiveCount
    start_ticks: Count
    nonce: Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{32}$")]
    models: list[Text]
    ready_seconds: NonNegative
    listener_before: Listener
    listener_after: Listener


class RankState(Schema):
    """State of one rank, from its own process.

    Attributes:
        moment: ``captured``: after the last capture of start-up and before any request; ``served``: after the suite.
        start_ticks: when its process started, in clock ticks since boot.
        versions: of torch, vllm, transformers and Python.
        variables: of its process's environment, without mere places.
        graphs: all its captures.
        candidate: the candidate's own proof, as ``laguna_kv.proof.describe_worker`` gives it.
    """

    file_schema: SchemaName[Literal["pytest-laguna-rank-state-v1"]] = "pytest-laguna-rank-state-v1"
    moment: Literal["captured", "served"]
    rank: Count
    pid: PositiveCount
    start_ticks: Count
    model_runner: Text
    versions: dict[str, str]
    variables: dict[str, str]
    graphs: list[CapturedGraph]
    candidate: dict[str, pydantic.JsonValue]


class Counters(Schema):
    """One reading of the server's ``/metrics``; None for an unexposed counter.

    A fractional counter is refused when it is read; a negative one is recorded, and judged later.

    Attributes:
        file: the kept answer, beside the record.
        drafts: ``vllm:spec_decode_num_drafts_total``.
        draft_tokens: ``vllm:spec_decode_num_draft_tokens_total``.
        accepted: ``vllm:spec_decode_num_accepted_tokens_total``.
        accepted_per_position: ``vllm:spec_decode_num_accepted_tokens_per_pos_total`` by its label ``position``.
        decode_count: ``vllm:request_decode_time_seconds_count``.
        decode_seconds: ``vllm:request_decode_time_seconds_sum``.
        finished: ``vllm:request_success_total`` by its label ``finished_reason``.
        prefix_cache_queries: ``vllm:prefix_cache_queries_total``, in tokens.
        prefix_cache_hits: ``vllm:prefix_cache_hits_total``, in tokens.
        external_cache_queries: ``vllm:external_prefix_cache_queries_total``, in tokens: the tier behind the device's.
        external_cache_hits: ``vllm:external_prefix_cache_hits_total``, in tokens.
        cached_prompt_tokens: ``vllm:prompt_tokens_cached_total``.
        preemptions: ``vllm:num_preemptions_total``.
    """

    file: Text
    sha256: Sha256
    drafts: int | None
    draft_tokens: int | None
    accepted: int | None
    accepted_per_position: dict[str, int]
    decode_count: int | None
    decode_seconds: Finite | None
    prompt_tokens: int | None
    generated_tokens: int | None
    finished: dict[str, int]
    prefix_cache_queries: int | None
    prefix_cache_hits: int | None
    external_cache_queries: int | None
    external_cache_hits: int | None
    cached_prompt_tokens: int | None
    preemptions: int | None


class Usage(Schema):
    """Tokens of a row, as counted by the server.

    Attributes:
        cached_tokens: the first of three copies.
    """

    prompt_tokens: PositiveCount
    completion_tokens: PositiveCount
    cached_tokens: Count


class SuiteRow(Schema):
    """One prompt of the suite, asked once.

    Attributes:
        index: place in the suite, from 0.
        kind: the suite's word for the prompt.
        prompt_sha256: of the prompt's text in UTF-8.
        sent_ns: when the request was sent, in nanoseconds after the start of the pass.
        arrival_ns: for each token, end of the socket read with the last byte of its event, in nanoseconds after
            ``sent_ns``.
        done_ns: the same for the end marker.
        token_ids: the answer, one entry for each in ``arrival_ns``.
        event_tokens: tokens of each event with any; speculation sends several at once.
        prompt_token_sha256: of the compact JSON list of the prompt's tokens, as the server named them.
        stream: file of the answer, byte for byte, beside the record.
    """

    index: Count
    prompt_id: Text
    kind: Text
    prompt_sha256: Sha256
    request_id: Text
    response_id: Text
    model: Text
    sent_ns: Count
    arrival_ns: list[Count]
    done_ns: Count
    token_ids: list[Count]
    event_tokens: list[PositiveCount]
    token_sha256: Sha256
    prompt_token_sha256: Sha256
    text_sha256: Sha256
    finish_reason: Text
    usage: Usage
    stream: Text
    stream_sha256: Sha256

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        counts = len(self.token_ids), len(self.arrival_ns), sum(self.event_tokens)
        if len(set(counts)) != 1:
            raise ValueError(f"tokens, arrivals and tokens of events are {counts}; expected one number")
        if any(later < earlier for earlier, later in itertools.pairwise([*self.arrival_ns, self.done_ns])):
            raise ValueError("arrival_ns and done_ns: seen a time before an earlier one; expected none")
        if self.token_sha256 != token_digest(self.token_ids):
            raise ValueError("token_sha256: seen another digest; expected that of token_ids")
        return self


class Freshness(Schema):
    """The requests, gathered during the pass; one entry a row, in the order of the rows.

    Attributes:
        cached_tokens: the second copy, taken from each answer as it ended.
    """

    prompt_ids: list[Text]
    prompt_sha256: list[Sha256]
    request_ids: list[Text]
    cached_tokens: list[Count]


class FinalGate(Schema):
    """Counts from the kept streams, read again from the disk after the server has stopped.

    Attributes:
        completion_tokens: of each.
        cached_tokens: of each, the third copy.
    """

    rows: Count
    completion_tokens: list[Count]
    cached_tokens: list[Count]


class Fact(Schema):
    """A declaration about a leg, with its observation.

    Attributes:
        observation: the fields or files behind it, with their values.
    """

    holds: bool
    observation: Text


class LegFacts(Schema):
    """Declarations; None without an observation.

    Attributes:
        no_retry: each row was asked once.
        no_warm_up: nothing was generated before the first row.
        fresh_service: the server and its ranks were started for this leg.
        no_network: none of its processes had a socket to anywhere but this host.
        no_history: no row carried an earlier one.
        no_ngram: no proposal came from the text itself.
        no_response_reuse: no answer was given twice.
        no_prefix_reuse: no prompt token came from a cache of an earlier row or checkpoint.
    """

    no_retry: Fact | None
    no_warm_up: Fact | None
    fresh_service: Fact | None
    no_network: Fact | None
    no_history: Fact | None
    no_ngram: Fact | None
    no_response_reuse: Fact | None
    no_prefix_reuse: Fact | None


class SocketLook(Schema):
    """The network sockets of the server's processes at one moment; sockets of the Unix domain are not listed.

    Attributes:
        moment: ``ready``, or the prompt id of the row just ended.
        local: sockets bound or connected within this host alone, as ``protocol local -> remote``.
        foreign: sockets connected to another host, or open to one.
    """

    moment: Text
    processes: PositiveCount
    local: list[str]
    foreign: list[str]


class CleanupStatus(Schema):
    """The end of a leg; zero is good (source of the four: the laboratory's cleanup status).

    Attributes:
        original_status: 1 if the pass itself did not come to its end.
        stop_status: 1 if the server ended before it was told to, or had to be killed.
        worker_status: 1 if a process of the server was left, or its absence is not proven.
        idle_status: 1 if the cards were not idle afterwards; None without an observation.
    """

    original_status: Literal[0, 1]
    stop_status: Literal[0, 1]
    worker_status: Literal[0, 1]
    idle_status: Literal[0, 1] | None


class LegEnd(Schema):
    """``end.json``, for every leg with a started server, also for a failed one.

    Attributes:
        reason: why the leg did not come to its end; empty if it did.
        process: the supervisor's record of the server.
    """

    file_schema: SchemaName[Literal["pytest-laguna-leg-end-v1"]] = "pytest-laguna-leg-end-v1"
    reason: str
    cleanup: CleanupStatus
    process: ProcessRecord | None


class LegRecord(Schema):
    """``leg.json``, for every complete leg.

    Attributes:
        started: before anything was started.
        begun_ticks: the same moment in clock ticks since boot, the kernel's unit for the start of a process.
        ended: after the server had ended.
        posted: POST requests begun by the transport during the pass.
        rows: one for each prompt, in the suite's order.
    """

    file_schema: SchemaName[Literal["pytest-laguna-leg-v1"]] = "pytest-laguna-leg-v1"
    request: LegRequest
    started: Utc
    begun_ticks: Count
    ended: Utc
    posted: Count
    server: ServerProof
    ranks_captured: list[RankState]
    ranks_served: list[RankState]
    counters_before: Counters
    counters_after: Counters
    rows: Annotated[list[SuiteRow], pydantic.Field(min_length=1)]
    freshness: Freshness
    final_gate: FinalGate
    facts: LegFacts
    sockets: list[SocketLook]
    end: LegEnd
