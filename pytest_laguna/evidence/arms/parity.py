# SPDX-License-Identifier: Apache-2.0
"""A parity packet: the attention of both selectors on one card and the same inputs, without a timing.

Source of shapes and seeds: the published parity packet of the persistent KV-cache views.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence.arms.arm_record import MappedFile, Planted, RankProcess
from pytest_laguna.evidence.arms.candidate_proof import LayerCounters
from pytest_laguna.evidence.schemas import Schema, Sha256
from pytest_laguna.evidence.values import Count, Lane, PositiveCount, SchemaName

PAGES = 16
"""Pages of the cache."""
PAGE_TOKENS = 64
KV_HEADS = 2
HEAD_SIZE = 128
"""Elements of one head; a page holds key and value side by side in its last dimension."""
KV_TOKENS = 577
"""Maximum of cached tokens for each query."""
CALLS = 3
"""Runs of each case: the second shows whether a selector reuses its kernel's arguments."""


class AttentionKind(enum.StrEnum):
    """The two kinds of attention of the target; their order gives a case's number in a seed."""

    FULL = "full"
    SLIDING = "sliding"

    @property
    def query_heads(self) -> int:
        """Query heads on one rank."""
        return 12 if self is AttentionKind.FULL else 18

    @property
    def window(self) -> tuple[int, int]:
        """Keys before and after a query's own position within its view; -1 is all of them."""
        return (-1, -1) if self is AttentionKind.FULL else (511, 0)


def cache_seed(rank: int) -> int:
    """Seed of a card's cache."""
    return 70100 + rank


def query_seed(rank: int, kind: AttentionKind, query: int) -> int:
    """Seed of the queries, keys and values of one case."""
    return 90000 + 1000 * rank + 100 * list(AttentionKind).index(kind) + query


class PacketRequest(Schema):
    """The whole input of a packet's process.

    Attributes:
        rank: position of its card in the lease.
        target: folder of the target model; its configuration shapes the layers.
        queries: number of queries of each case, one a sequence.
    """

    file_schema: SchemaName[Literal["pytest-laguna-packet-request-v1"]] = "pytest-laguna-packet-request-v1"
    lane: Lane
    rank: Count
    target: str
    draft: str
    queries: Annotated[list[PositiveCount], pydantic.Field(min_length=1)]
    planted: Planted


class TensorGeometry(Schema):
    """A tensor's place in its storage; stride and offset in elements."""

    shape: list[Count]
    stride: list[Count]
    offset: Count
    dtype: str


class KernelCalls(Schema):
    """One kernel's calls for one layer, and the two aliases of the cache in them, seen at the kernel.

    Attributes:
        same_objects: calls with the very key and value alias of the first call, which counts.
        places: distinct addresses and geometries of the two.
        key: geometry of the key alias in the first call.
        value: geometry of the value alias in the first call.
        operators: number of dispatches of each torch operator inside the calls, by its full name.
    """

    calls: PositiveCount
    same_objects: PositiveCount
    places: PositiveCount
    key: TensorGeometry
    value: TensorGeometry
    operators: dict[str, PositiveCount]


class LayerReport(Schema):
    """One attention layer, as vLLM made it under one selector.

    Attributes:
        implementation: qualified name of its implementation's class.
        window: as passed to the kernel.
        state: None if the implementation has no views of the candidate.
        attention: calls of the attention kernel.
        update: calls of the cache-writing kernel.
    """

    name: str
    implementation: str
    window: tuple[int, int]
    state: LayerCounters | None
    attention: KernelCalls
    update: KernelCalls


class SelectorReport(Schema):
    """All layers under one value of the flag.

    Attributes:
        backend: qualified name of vLLM's backend class.
        layers: by kind of attention.
    """

    flag: Literal["0", "1"]
    backend: str
    layers: dict[AttentionKind, LayerReport]


class Outcome(Schema):
    """Output and cache of one case under one selector.

    Attributes:
        outputs: digest of the output's bytes, [queries, query heads * head], of each call.
        cache: digest of the cache's bytes after the last call, in the order of its memory.
    """

    outputs: Annotated[list[Sha256], pydantic.Field(min_length=1)]
    cache: Sha256


class PacketCase(Schema):
    """One number of queries and one kind of attention, under both selectors on equal inputs.

    Attributes:
        query: number of queries, one a sequence.
        seed: of queries, keys and values.
        differing_output_bytes: number of unequal bytes over all calls.
        differing_cache_bytes: number of unequal bytes after the last call.
    """

    kind: AttentionKind
    query: PositiveCount
    seed: Count
    off: Outcome
    on: Outcome
    differing_output_bytes: Count
    differing_cache_bytes: Count


class PlatformReport(Schema):
    """The packet's platform, by vLLM and torch.

    Attributes:
        platform: qualified name of vLLM's platform class.
        device_type: torch's name for it.
        visible_devices: accelerators by torch's count; on the cpu lane slots in the mask.
        card: identity of the computing card, of the lease's kind: UUID, PCI address or slot.
    """

    platform: str
    device_type: str
    is_cpu: bool
    is_cuda: bool
    is_xpu: bool
    visible_devices: Count
    device_name: str
    card: str


class FunctionOrigin(Schema):
    """A called function, and its file.

    Attributes:
        name: vLLM's backend calls it so.
        file: of the module.
    """

    name: str
    module: str
    qualified_name: str
    file: str
    sha256: Sha256


class Extension(Schema):
    """A compiled module, loaded in the process."""

    module: str
    file: str
    sha256: Sha256


class KernelReport(Schema):
    """The kernels behind attention.

    Attributes:
        functions: callees of vLLM's backend, attention first.
        served_by: the module with the lane's own operators at its end.
        forbidden: functions of ``served_by`` replaced by a raising handler.
    """

    functions: Annotated[list[FunctionOrigin], pydantic.Field(min_length=1)]
    served_by: Extension
    flash_attention_version: PositiveCount
    extensions: list[Extension]
    forbidden: list[str]


class PacketRecord(Schema):
    """The record of one packet.

    Attributes:
        cache: of one layer, [pages, KV heads, tokens of a page, key and value].
        cache_sha256: of its bytes before each case.
        cases: in the order of running.
        mapped: every file mapped as executable at the end.
        versions: of torch, vllm and Python.
        environment: of the process at its start.
    """

    file_schema: SchemaName[Literal["pytest-laguna-packet-record-v1"]] = "pytest-laguna-packet-record-v1"
    request: PacketRequest
    process: RankProcess
    platform: PlatformReport
    kernels: KernelReport
    cache: TensorGeometry
    cache_sha256: Sha256
    off: SelectorReport
    on: SelectorReport
    cases: list[PacketCase]
    mapped: list[MappedFile]
    versions: dict[str, str]
    environment: dict[str, str]
