# SPDX-License-Identifier: Apache-2.0
"""A parity packet: one card, both selectors, the same inputs, and what attention made of them. It times nothing.

Source of shapes and seeds: the published parity packet of the persistent KV-cache views.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence.arms.arm_record import MappedFile, Planted, RankProcess
from pytest_laguna.evidence.arms.candidate_proof import LayerCounters
from pytest_laguna.evidence.schemas import Schema, Sha256
from pytest_laguna.evidence.values import Count, Lane, PositiveCount

PAGES = 16
"""Pages of the cache."""
PAGE_TOKENS = 64
KV_HEADS = 2
HEAD_SIZE = 128
"""Elements of one head; a page holds key and value side by side in its last dimension."""
KV_TOKENS = 577
"""Tokens of the cache that each query attends to at most."""
CALLS = 3
"""How often each case is run: what a selector hands its kernel the second time shows whether it is reused."""


class AttentionKind(enum.StrEnum):
    """The two kinds of attention of the target; their order is the number of their case in a seed."""

    FULL = "full"
    SLIDING = "sliding"

    @property
    def query_heads(self) -> int:
        """Query heads on one rank."""
        return 12 if self is AttentionKind.FULL else 18

    @property
    def window(self) -> tuple[int, int]:
        """Keys before and after its own position that a query sees; -1 is all of them."""
        return (-1, -1) if self is AttentionKind.FULL else (511, 0)


def cache_seed(rank: int) -> int:
    """Seed of a card's cache."""
    return 70100 + rank


def query_seed(rank: int, kind: AttentionKind, query: int) -> int:
    """Seed of the queries, keys and values of one case."""
    return 90000 + 1000 * rank + 100 * list(AttentionKind).index(kind) + query


class PacketRequest(Schema):
    """What a packet's process is told; nothing else decides what it does.

    Attributes:
        lane: where it runs.
        rank: position of its card in the lease.
        target: folder of the target model, whose configuration the layers are made under.
        draft: folder of the draft model, likewise.
        queries: how many queries each case verifies, one a sequence.
        planted: a defect to plant in the candidate.
    """

    file_schema: Annotated[Literal["pytest-laguna-packet-request-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-packet-request-v1"
    )
    lane: Lane
    rank: Count
    target: str
    draft: str
    queries: Annotated[list[PositiveCount], pydantic.Field(min_length=1)]
    planted: Planted


class TensorGeometry(Schema):
    """How a tensor lies in its storage; strides and offset in elements.

    Attributes:
        shape: of it.
        stride: of each dimension.
        offset: of its first element.
        dtype: torch's name.
    """

    shape: list[Count]
    stride: list[Count]
    offset: Count
    dtype: str


class KernelCalls(Schema):
    """One kernel's calls for one layer, and the two aliases of the cache that it was handed, seen at the kernel.

    Attributes:
        calls: of the kernel.
        same_objects: calls with the very key and value alias of the first, which counts.
        places: distinct addresses and geometries of the two.
        key: geometry of the first.
        value: likewise.
        operators: how often each torch operator reached the dispatcher inside the calls, by its full name.
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
        name: the layer's.
        implementation: qualified name of its implementation's class.
        window: as the implementation hands it to the kernel.
        state: what became of the candidate's views; None where the implementation has none.
        attention: calls of the attention kernel.
        update: calls of the kernel that writes the cache.
    """

    name: str
    implementation: str
    window: tuple[int, int]
    state: LayerCounters | None
    attention: KernelCalls
    update: KernelCalls


class SelectorReport(Schema):
    """Everything that ran under one value of the flag.

    Attributes:
        flag: the value.
        backend: qualified name of the backend class that vLLM selected.
        layers: by kind of attention.
    """

    flag: Literal["0", "1"]
    backend: str
    layers: dict[AttentionKind, LayerReport]


class Outcome(Schema):
    """What one selector made of one case.

    Attributes:
        outputs: digest of the output's bytes, [queries, query heads * head], of each call.
        cache: digest of the cache's bytes after the last call, in the order of its memory.
    """

    outputs: Annotated[list[Sha256], pydantic.Field(min_length=1)]
    cache: Sha256


class PacketCase(Schema):
    """One number of queries and one kind of attention, under both selectors on equal inputs.

    Attributes:
        kind: of attention.
        query: queries, one a sequence.
        seed: of queries, keys and values.
        off: with the selector off.
        on: with it on.
        differing_output_bytes: over all calls, counted in the bytes themselves.
        differing_cache_bytes: likewise, after the last call.
    """

    kind: AttentionKind
    query: PositiveCount
    seed: Count
    off: Outcome
    on: Outcome
    differing_output_bytes: Count
    differing_cache_bytes: Count


class PlatformReport(Schema):
    """Where the packet ran, as vLLM and torch see it.

    Attributes:
        platform: qualified name of vLLM's platform class.
        device_type: torch's, by that platform.
        is_cpu: vLLM's own answer.
        is_cuda: likewise.
        is_xpu: likewise.
        visible_devices: accelerators that torch counts; on the cpu lane slots in the mask.
        device_name: by vLLM.
        card: identity of the card that was computed on, of the lease's kind: UUID, PCI address or slot.
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
    """A function that was called, and the file that it comes from.

    Attributes:
        name: under which vLLM's backend calls it.
        module: that defines it.
        qualified_name: there.
        file: of the module.
        sha256: of that file.
    """

    name: str
    module: str
    qualified_name: str
    file: str
    sha256: Sha256


class Extension(Schema):
    """A compiled module beside the attention kernel's, loaded in the process.

    Attributes:
        module: its name.
        file: that it was loaded from.
        sha256: of that file.
    """

    module: str
    file: str
    sha256: Sha256


class KernelReport(Schema):
    """What served attention.

    Attributes:
        functions: what vLLM's backend calls, attention first.
        served_by: the module that ends in the lane's own operators, and its file.
        flash_attention_version: that vLLM's implementations were made for.
        extensions: the compiled modules beside ``served_by``.
        forbidden: functions of ``served_by`` that were replaced by a handler that raises.
    """

    functions: Annotated[list[FunctionOrigin], pydantic.Field(min_length=1)]
    served_by: Extension
    flash_attention_version: PositiveCount
    extensions: list[Extension]
    forbidden: list[str]


class PacketRecord(Schema):
    """What one packet did.

    Attributes:
        request: what it was told.
        process: that it ran in.
        platform: where it ran.
        kernels: what served attention.
        cache: geometry of a layer's cache, [pages, KV heads, tokens of a page, key and value].
        cache_sha256: of its bytes before each case.
        off: with the selector off.
        on: with it on.
        cases: every case, in the order in which they ran.
        mapped: every file of which the process had a part mapped as executable when all was done.
        versions: of torch, vllm and Python.
        environment: of the process when it began.
    """

    file_schema: Annotated[Literal["pytest-laguna-packet-record-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-packet-record-v1"
    )
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
