# SPDX-License-Identifier: Apache-2.0
"""Rules over one parity packet: both selectors on the leased card, with equal inputs and outputs of the kernel.

Source: the preregistration of the persistent KV-cache views, Gate 2 and its addenda on parity.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_laguna.analysis.arms.arm_pair import CANDIDATE, STOCK
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence.arms.arm_record import Planted
from pytest_laguna.evidence.arms.parity import (
    CALLS,
    HEAD_SIZE,
    KV_HEADS,
    PAGE_TOKENS,
    PAGES,
    AttentionKind,
    KernelCalls,
    LayerReport,
    PacketCase,
    PacketRecord,
    SelectorReport,
    TensorGeometry,
    query_seed,
)
from pytest_laguna.evidence.values import Lane
from pytest_laguna.verdict import Verdict

_CONTENT = 2 * HEAD_SIZE
CACHE = TensorGeometry(
    shape=[PAGES, KV_HEADS, PAGE_TOKENS, _CONTENT],
    stride=[PAGE_TOKENS * KV_HEADS * _CONTENT, _CONTENT, KV_HEADS * _CONTENT, 1],
    offset=0,
    dtype="torch.bfloat16",
)
"""Cache of the record in the layout NHD: a page holds its tokens, a token its heads, a head its key and value."""


@dataclasses.dataclass(frozen=True, slots=True)
class LaneKernels:
    """Modules and functions of a lane's attention.

    Attributes:
        attention: module of the function called by vLLM's backend.
        served_by: module that calls the lane's own operators.
        forbidden: functions of ``served_by`` that compute attention without those operators.
    """

    attention: str
    served_by: str
    forbidden: tuple[str, ...]


KERNELS: Mapping[Lane, LaneKernels] = {
    "cpu": LaneKernels("pytest_laguna.engine.reference_kernels", "pytest_laguna.engine.reference_kernels", ()),
    "cuda": LaneKernels("vllm.vllm_flash_attn.flash_attn_interface", "vllm.vllm_flash_attn.flash_attn_interface", ()),
    "xpu": LaneKernels(
        "vllm._xpu_ops",
        "vllm_xpu_kernels.flash_attn_interface",
        (
            "vllm_xpu_kernels.flash_attn_interface._fallback_varlen_attn",
            "vllm_xpu_kernels.flash_attn_interface.ref_paged_attn",
        ),
    ),
}

UPDATE_OPERATOR = "_C_cache_ops::reshape_and_cache_flash"
"""Operator that writes a device's cache."""
PLAIN_ATTENTION = ("softmax", "einsum", "matmul", "bmm", "baddbmm", "scaled_dot_product")
"""Parts of names of plain torch operators, forbidden in a compiled kernel's call."""

COMPILED_LANES: frozenset[Lane] = frozenset({"cuda", "xpu"})
NOT_APPLICABLE: Mapping[str, frozenset[Lane]] = {
    "compiled-extension": frozenset({"cpu"}),
    "fallback-forbidden": frozenset({"cpu", "cuda"}),
}
"""Lanes that cannot exercise a rule: cpu has no compiled kernel, and only xpu's kernel has a fallback."""


class Called(NamedTuple):
    """Calls of one kernel in one layer, with their place for a reason."""

    where: str
    side: str
    kernel: str
    calls: KernelCalls


@dataclasses.dataclass(frozen=True, slots=True)
class Packet:
    """A packet's record, with the plan's values for it."""

    record: PacketRecord
    lane: Lane
    card: str
    queries: Sequence[int]

    @property
    def sides(self) -> tuple[tuple[str, SelectorReport], tuple[str, SelectorReport]]:
        """Both selectors by name, off first."""
        return ("off", self.record.off), ("on", self.record.on)

    def kernels(self) -> Iterator[Called]:
        """Both kernels of every layer."""
        for name, side in self.sides:
            for kind, layer in side.layers.items():
                for kernel, calls in _kernels(layer):
                    yield Called(f"{self.where}: {kind} {kernel} {name}", name, kernel, calls)

    def pairs(self) -> Iterator[tuple[str, KernelCalls, KernelCalls]]:
        """Kernels of each kind of attention on both sides, with their place, off first."""
        for kind in (kind for kind in AttentionKind if all(kind in side.layers for _, side in self.sides)):
            both = zip(_kernels(self.record.off.layers[kind]), _kernels(self.record.on.layers[kind]), strict=True)
            for (kernel, off), (_, on) in both:
                yield f"{self.where}: {kind} {kernel}", off, on

    @property
    def where(self) -> str:
        """Subject of a reason."""
        return f"card {self.record.request.rank}"


def answers_plan(packet: Packet) -> Finding | None:
    """Rule ``answers-plan``: the request has the plan's lane and queries, and no planted defect."""
    request = packet.record.request
    seen = (request.lane, request.queries, request.planted)
    expected = (packet.lane, list(packet.queries), Planted.NONE)
    if seen != expected:
        return Verdict.VOID, f"{packet.where}: seen lane, queries, planted defect {seen}; expected {expected}"
    return None


def platform_of_lane(packet: Packet) -> Finding | None:
    """Rule ``platform-of-lane``: vLLM chose the lane's platform, by each of its names for it."""
    platform = packet.record.platform
    seen = (platform.device_type, platform.is_cpu, platform.is_cuda, platform.is_xpu)
    expected = (packet.lane, packet.lane == "cpu", packet.lane == "cuda", packet.lane == "xpu")
    if seen != expected:
        told = f"seen {platform.platform} with device, cpu, cuda, xpu {seen}"
        return Verdict.VOID, f"{packet.where}: {told}; expected {expected}"
    return None


def one_card_visible(packet: Packet) -> Finding | None:
    """Rule ``one-card-visible``: the process saw one card."""
    visible = packet.record.platform.visible_devices
    if visible != 1:
        return Verdict.VOID, f"{packet.where}: seen {visible} visible cards; expected one"
    return None


def card_of_lease(packet: Packet) -> Finding | None:
    """Rule ``card-of-lease``: the packet was computed on the leased card."""
    card = packet.record.platform.card
    if card.casefold() != packet.card.casefold():
        return Verdict.VOID, f"{packet.where}: seen card {card}; expected the leased {packet.card}"
    return None


def cases_once(packet: Packet) -> Finding | None:
    """Rule ``cases-once``: each number of queries has one case with each kind of attention."""
    counted = Counter((str(case.kind), case.query) for case in packet.record.cases)
    expected = {(str(kind), query) for kind in AttentionKind for query in packet.queries}
    if missing := sorted(expected - counted.keys()):
        return Verdict.NOT_PROVEN, f"{packet.where}: seen no case {_named(missing[0])}; expected {len(expected)} cases"
    if extra := sorted(case for case, count in counted.items() if count != 1 or case not in expected):
        seen = f"{counted[extra[0]]} cases {_named(extra[0])}"
        return Verdict.VOID, f"{packet.where}: seen {seen}; expected q{_span(packet.queries)} once each"
    return None


def both_kinds(packet: Packet) -> Finding | None:
    """Rule ``both-kinds``: a layer of each kind of attention ran on both sides."""
    for name, side in packet.sides:
        if missing := sorted(set(AttentionKind) - side.layers.keys()):
            return Verdict.NOT_PROVEN, f"{packet.where}: seen no {missing[0]} layer {name}; expected one of each kind"
    return None


def inputs_frozen(packet: Packet) -> Finding | None:
    """Rule ``inputs-frozen``: cache, windows and seeds are the published ones."""
    if packet.record.cache != CACHE:
        return Verdict.VOID, f"{packet.where}: seen the cache {packet.record.cache}; expected {CACHE}"
    for name, side in packet.sides:
        seen = {str(kind): layer.window for kind, layer in side.layers.items()}
        expected = {str(kind): kind.window for kind in AttentionKind}
        if seen != expected:
            return Verdict.VOID, f"{packet.where}: {name}: seen windows {seen}; expected {expected}"
    for case in packet.record.cases:
        seed = query_seed(packet.record.request.rank, case.kind, case.query)
        if case.seed != seed:
            return Verdict.VOID, f"{packet.where}: {_case(case)}: seen seed {case.seed}; expected {seed}"
    return None


def off_is_stock(packet: Packet) -> Finding | None:
    """Rule ``off-is-stock``: with the selector off, vLLM's own classes ran without a state."""
    side = packet.record.off
    for kind, layer in side.layers.items():
        seen = (side.flag, side.backend, layer.implementation)
        if seen != ("0", *STOCK):
            told = f"seen flag, backend, class {seen}"
            return Verdict.FAIL, f"{packet.where}: {kind} off: {told}; expected {('0', *STOCK)}"
        if layer.state is not None:
            return Verdict.FAIL, f"{packet.where}: {kind} off: seen the state {layer.state}; expected none"
    return None


def on_is_candidate(packet: Packet) -> Finding | None:
    """Rule ``on-is-candidate``: with the selector on, the candidate's classes ran with a state."""
    side = packet.record.on
    for kind, layer in side.layers.items():
        seen = (side.flag, side.backend, layer.implementation)
        expected = ("1", *CANDIDATE)
        if seen != expected:
            return Verdict.FAIL, f"{packet.where}: {kind} on: seen flag, backend, class {seen}; expected {expected}"
        if layer.state is None:
            return Verdict.FAIL, f"{packet.where}: {kind} on: seen no state; expected one"
    return None


def views_built_once(packet: Packet) -> Finding | None:
    """Rule ``views-built-once``: each layer built its views once, kept them, and used them at every kernel call."""
    for kind, layer in packet.record.on.layers.items():
        if layer.state is None:
            continue  # a finding of on-is-candidate
        seen = (layer.state.builds, layer.state.invalidations, layer.state.forward_hits, layer.state.update_hits)
        expected = (1, 0, layer.attention.calls, layer.update.calls)
        if seen != expected:
            told = f"seen builds, invalidations, uses by attention and by update {seen}"
            return Verdict.FAIL, f"{packet.where}: {kind} on: {told}; expected {expected}"
    return None


def calls_counted(packet: Packet) -> Finding | None:
    """Rule ``calls-counted``: each kernel served every repetition of every case."""
    expected = CALLS * len(packet.queries)
    for called in packet.kernels():
        if called.calls.calls != expected:
            return Verdict.FAIL, f"{called.where}: seen {called.calls.calls} calls of the kernel; expected {expected}"
    return None


def views_reused(packet: Packet) -> Finding | None:
    """Rule ``views-reused``: on, each kernel gets the same two tensor objects at every call; off, new ones each time.

    The observer sits at the kernel, not in the candidate; equal objects with the selector off would prove it blind.
    """
    for where, side, _, calls in packet.kernels():
        same = calls.calls if side == "on" else 1
        if (calls.same_objects, calls.places) != (same, 1):
            told = f"seen {calls.same_objects} of {calls.calls} calls with the first's views, {calls.places} places"
            return Verdict.FAIL, f"{where}: {told}; expected {same} and 1"
    return None


def views_equal(packet: Packet) -> Finding | None:
    """Rule ``views-equal``: shapes, strides, offsets and types of each kernel's views are equal off and on."""
    for where, off, on in packet.pairs():
        if (off.key, off.value) != (on.key, on.value):
            part, expected, seen = ("key", off.key, on.key) if off.key != on.key else ("value", off.value, on.value)
            return Verdict.FAIL, f"{where}: seen {part} {seen} on; expected {expected} as off"
    return None


def outputs_equal(packet: Packet) -> Finding | None:
    """Rule ``outputs-equal``: every call of every case gives the same bytes with the selector off and on."""
    for case in packet.record.cases:
        where = f"{packet.where}: {_case(case)}"
        if len(case.off.outputs) != CALLS or len(case.on.outputs) != CALLS:
            seen = f"{len(case.off.outputs)} and {len(case.on.outputs)} outputs"
            return Verdict.NOT_PROVEN, f"{where}: seen {seen}; expected {CALLS} each"
        if len(set(case.off.outputs)) != 1:
            return Verdict.VOID, f"{where}: seen different bytes from equal calls off; expected equal bytes"
        equal, differing = case.off.outputs == case.on.outputs, case.differing_output_bytes
        if equal != (differing == 0):
            return Verdict.VOID, f"{where}: seen {differing} differing bytes; expected {_count_for(equal=equal)}"
        if not equal:
            return Verdict.FAIL, f"{where}: seen {differing} differing bytes of the outputs; expected none"
    return None


def caches_equal(packet: Packet) -> Finding | None:
    """Rule ``caches-equal``: the update changes the cache, to the same bytes off and on."""
    for case in packet.record.cases:
        where = f"{packet.where}: {_case(case)}"
        equal, differing = case.off.cache == case.on.cache, case.differing_cache_bytes
        if equal != (differing == 0):
            return Verdict.VOID, f"{where}: seen {differing} differing bytes; expected {_count_for(equal=equal)}"
        if not equal:
            return Verdict.FAIL, f"{where}: seen {differing} differing bytes of the caches; expected none"
        if case.off.cache == packet.record.cache_sha256:
            return Verdict.VOID, f"{where}: seen the cache unchanged by the update; expected new bytes in it"
    return None


def _count_for(*, equal: bool) -> str:
    return "none, by equal digests" if equal else "some, by different digests"


def kernel_of_lane(packet: Packet) -> Finding | None:
    """Rule ``kernel-of-lane``: the lane's functions and module served attention."""
    kernels, expected = packet.record.kernels, KERNELS[packet.lane]
    modules = {function.name: function.module for function in kernels.functions}
    seen = (modules.get("flash_attn_varlen_func"), kernels.served_by.module)
    if seen != (expected.attention, expected.served_by):
        wanted = (expected.attention, expected.served_by)
        return Verdict.VOID, f"{packet.where}: seen attention called in and served by {seen}; expected {wanted}"
    if "reshape_and_cache_flash" not in modules:
        return Verdict.VOID, f"{packet.where}: seen no kernel that writes the cache; expected its record"
    return None


def compiled_extension(packet: Packet) -> Finding | None:
    """Rule ``compiled-extension``: the compiled kernel of the recorded version was loaded from its module's folder."""
    if packet.lane not in COMPILED_LANES:
        return None
    kernels = packet.record.kernels
    name = _extension_name(packet)
    directory = posixpath.dirname(kernels.served_by.file)
    found = [extension for extension in kernels.extensions if extension.module.rpartition(".")[2] == name]
    if len(found) != 1 or posixpath.dirname(found[0].file) != directory:
        seen = [extension.file for extension in found] or "none"
        return Verdict.VOID, f"{packet.where}: seen {name} from {seen}; expected one in {directory}"
    return None


def fallback_forbidden(packet: Packet) -> Finding | None:
    """Rule ``fallback-forbidden``: each function for attention without the kernel raises when called."""
    seen, expected = sorted(packet.record.kernels.forbidden), sorted(KERNELS[packet.lane].forbidden)
    if seen != expected:
        return Verdict.VOID, f"{packet.where}: seen forbidden {seen}; expected {expected}"
    return None


def no_fallback(packet: Packet) -> Finding | None:
    """Rule ``no-fallback``: only the lane's kernels ran operators, as often as they were called.

    On the cpu lane the platform's reference kernels are plain torch, without any other library.
    """
    for called in packet.kernels():
        against = _compiled(packet, called) if packet.lane in COMPILED_LANES else _plain(called)
        if against is not None:
            return Verdict.FAIL, f"{called.where}: {against}"
    return None


def _plain(called: Called) -> str | None:
    foreign = sorted(name for name in called.calls.operators if not name.startswith("aten::"))
    if foreign or not called.calls.operators:
        return f"seen operators {foreign or 'none'}; expected plain torch alone"
    return None


def _compiled(packet: Packet, called: Called) -> str | None:
    wanted = f"{_extension_name(packet)}::" if called.kernel == "attention" else UPDATE_OPERATOR
    operators = called.calls.operators
    ran = sum(count for name, count in operators.items() if name.startswith(wanted))
    plain = sorted(name for name in operators if _is_plain_attention(name))
    if ran != called.calls.calls or plain:
        told = f"seen {wanted} {ran} times in {called.calls.calls} calls, plain attention {plain or 'none'}"
        return f"{told}; expected once a call, and none"
    return None


def operators_equal(packet: Packet) -> Finding | None:
    """Rule ``operators-equal``: both selectors' kernels ran the same operators equally often."""
    for where, off, on in packet.pairs():
        if off.operators != on.operators:
            differing = sorted(off.operators.items() ^ on.operators.items())
            return Verdict.FAIL, f"{where}: seen operator {differing[0]} on one side only; expected equal operators"
    return None


RULES: Mapping[str, Callable[[Packet], Finding | None]] = {
    "answers-plan": answers_plan,
    "platform-of-lane": platform_of_lane,
    "one-card-visible": one_card_visible,
    "card-of-lease": card_of_lease,
    "kernel-of-lane": kernel_of_lane,
    "compiled-extension": compiled_extension,
    "fallback-forbidden": fallback_forbidden,
    "no-fallback": no_fallback,
    "inputs-frozen": inputs_frozen,
    "cases-once": cases_once,
    "both-kinds": both_kinds,
    "off-is-stock": off_is_stock,
    "on-is-candidate": on_is_candidate,
    "views-built-once": views_built_once,
    "calls-counted": calls_counted,
    "views-reused": views_reused,
    "views-equal": views_equal,
    "operators-equal": operators_equal,
    "caches-equal": caches_equal,
    "outputs-equal": outputs_equal,
}


def judge_packet(record: PacketRecord, lane: Lane, card: str, queries: Sequence[int]) -> dict[str, Finding | None]:
    """Findings against one packet by rule, also by ``NOT_APPLICABLE`` ones; ``card`` is the leased card's identity."""
    packet = Packet(record, lane, card, queries)
    return {name: rule(packet) for name, rule in RULES.items()}


def _extension_name(packet: Packet) -> str:
    return f"_vllm_fa{packet.record.kernels.flash_attention_version}_C"


def _is_plain_attention(operator: str) -> bool:
    return operator.startswith("aten::") and any(word in operator for word in PLAIN_ATTENTION)


def _case(case: PacketCase) -> str:
    return _named((str(case.kind), case.query))


def _named(case: tuple[str, int]) -> str:
    return f"q{case[1]} {case[0]}"


def _span(queries: Sequence[int]) -> str:
    return f"{min(queries)} to q{max(queries)}"


def _kernels(layer: LayerReport) -> tuple[tuple[str, KernelCalls], ...]:
    return ("attention", layer.attention), ("update", layer.update)
